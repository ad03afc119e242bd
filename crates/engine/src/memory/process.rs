//! What the operating system says about this process.

/// Resident memory of the process in bytes; `None` where the system does not
/// tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessMemory {
    /// Anonymous resident memory: what the process itself allocated and touched
    /// (RssAnon). Mapped weights are not in it.
    pub anonymous: Option<u64>,
    /// Largest resident memory so far, mapped weights included (VmHWM).
    pub peak_resident: Option<u64>,
}

/// Reads the process's memory from the system.
pub fn process_memory() -> ProcessMemory {
    read_process_memory()
}

#[cfg(target_os = "linux")]
fn read_process_memory() -> ProcessMemory {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ProcessMemory {
        anonymous: super::limit::kib_field(&status, "RssAnon:"),
        peak_resident: super::limit::kib_field(&status, "VmHWM:"),
    }
}

#[cfg(not(target_os = "linux"))]
fn read_process_memory() -> ProcessMemory {
    ProcessMemory::default()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn anonymous_memory_follows_touched_pages() {
        const SIZE: usize = 64 << 20;
        let before = process_memory().anonymous.unwrap();
        // Opaque, or the optimiser leaves the allocation out.
        let touched = std::hint::black_box(vec![1u8; SIZE]);
        let with = process_memory().anonymous.unwrap();
        assert!(with > before + SIZE as u64 / 2, "{before} -> {with}");
        assert_eq!(touched[SIZE - 1], 1);
        assert!(process_memory().peak_resident.unwrap() >= SIZE as u64);
    }
}
