//! What the operating system says about this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

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

/// The largest anonymous resident memory of the process while this value lives. The system keeps no
/// such mark, so a thread looks every few milliseconds: what comes and goes inside a step is seen.
pub struct AnonymousPeak {
    seen: Arc<Seen>,
    /// `None` where the system gave no thread; then only [`AnonymousPeak::bytes`] looks.
    watcher: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    /// Bytes; 0 for nothing yet.
    peak: AtomicU64,
    enough: AtomicBool,
}

impl Seen {
    fn look(&self) {
        self.peak.fetch_max(process_memory().anonymous.unwrap_or(0), Ordering::Relaxed);
    }
}

impl AnonymousPeak {
    /// Time between two looks, each of which takes some 20 microseconds.
    const EVERY: Duration = Duration::from_millis(10);

    /// Starts to look.
    pub fn start() -> AnonymousPeak {
        let seen = Arc::new(Seen::default());
        seen.look();
        let watched = Arc::clone(&seen);
        let watch = move || {
            while !watched.enough.load(Ordering::Relaxed) {
                watched.look();
                thread::park_timeout(Self::EVERY);
            }
        };
        let watcher = thread::Builder::new().name("tidekv-memory".to_owned()).spawn(watch).ok();
        AnonymousPeak { seen, watcher }
    }

    /// The largest so far; `None` where the system does not tell.
    pub fn bytes(&self) -> Option<u64> {
        self.seen.look();
        Some(self.seen.peak.load(Ordering::Relaxed)).filter(|&bytes| bytes > 0)
    }
}

impl Drop for AnonymousPeak {
    fn drop(&mut self) {
        self.seen.enough.store(true, Ordering::Relaxed);
        if let Some(watcher) = self.watcher.take() {
            watcher.thread().unpark();
            // It has nothing that could panic, and nothing to say.
            let _ = watcher.join();
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn memory_that_came_and_went_is_in_the_peak() {
        const SIZE: usize = 64 << 20;
        let peak = AnonymousPeak::start();
        let before = peak.bytes().unwrap();
        let touched = std::hint::black_box(vec![1u8; SIZE]);
        thread::sleep(20 * AnonymousPeak::EVERY);
        assert_eq!(touched[SIZE - 1], 1);
        drop(touched);
        let after = peak.bytes().unwrap();
        assert!(after > before + SIZE as u64 / 2, "{before} -> {after}");
    }

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
