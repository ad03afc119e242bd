//! How much memory there is: the machine's, the control group's and what the
//! process may map.

/// Memory available to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SystemMemory {
    /// What the system could give without swapping; page cache counts as
    /// available (MemAvailable). `None` where the system does not tell.
    pub available: Option<u64>,
    /// All memory of the machine.
    pub total: Option<u64>,
    /// What the tightest control group (v1 or v2) still allows, page cache not
    /// counted as used. `None` without a limit.
    pub group_available: Option<u64>,
    /// The tightest control group's limit.
    pub group_total: Option<u64>,
    /// Address space that this process may still map (RLIMIT_AS, `ulimit -v`):
    /// the limit minus what is mapped now, files included, and minus
    /// [`ADDRESS_RESERVE`]. `None` without a limit.
    pub address_space: Option<u64>,
    /// Memory of its own that this process may still map (RLIMIT_DATA, `ulimit
    /// -d`), less the same reserve; files do not count. `None` without a limit.
    pub data: Option<u64>,
}

/// Address space that a run takes besides the buffers that are planned: a heap
/// of the C library, which reserves 64 MiB at a time for a thread that allocates
/// (glibc's HEAP_MAX_SIZE on 64-bit machines).
pub const ADDRESS_RESERVE: u64 = 64 << 20;

impl SystemMemory {
    /// What a run may use: the least of what the machine, the group and the limits
    /// of the process leave. Right once the model is mapped; before, see
    /// [`SystemMemory::usable_after_mapping`].
    pub fn usable(&self) -> Option<u64> {
        self.usable_after_mapping(0)
    }

    /// What a run may use in a process that has still to map `mapped` bytes of
    /// weights. They cost address space, and no memory that counts.
    pub fn usable_after_mapping(&self, mapped: u64) -> Option<u64> {
        let address_space = self.address_space.map(|bytes| bytes.saturating_sub(mapped));
        [self.available, self.group_available, address_space, self.data].into_iter().flatten().min()
    }

    /// What there is in all, for mapped weights and run together.
    pub fn installed(&self) -> Option<u64> {
        [self.total, self.group_total].into_iter().flatten().min()
    }
}

/// The memory limit of a run that names none, in a process that has mapped its
/// model.
pub fn default_limit() -> Option<u64> {
    system_memory().usable()
}

/// Reads the memory of the machine and of the control groups, and the limits of
/// this process.
pub fn system_memory() -> SystemMemory {
    read_system_memory()
}

#[cfg(not(target_os = "linux"))]
fn read_system_memory() -> SystemMemory {
    SystemMemory::default()
}

#[cfg(target_os = "linux")]
fn read_system_memory() -> SystemMemory {
    use std::path::Path;
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = tightest_group(&groups, Path::new("/sys/fs/cgroup"));
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    SystemMemory {
        available: kib_field(&meminfo, "MemAvailable:"),
        total: kib_field(&meminfo, "MemTotal:"),
        group_available: group.map(|group| group.available()),
        group_total: group.map(|group| group.limit),
        address_space: left_to_map((&limits, "Max address space"), (&status, "VmSize:")),
        data: left_to_map((&limits, "Max data size"), (&status, "VmData:")),
    }
}

/// What a limit in the text of `/proc/self/limits` leaves beside a field in that
/// of `/proc/self/status`; `None` where the (soft) limit is `unlimited`.
#[cfg(target_os = "linux")]
fn left_to_map((limits, limit): (&str, &str), (status, field): (&str, &str)) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(limit))?;
    let limit: u64 = line.split_whitespace().next()?.parse().ok()?;
    let mapped = kib_field(status, field).unwrap_or(0);
    Some(limit.saturating_sub(mapped).saturating_sub(ADDRESS_RESERVE))
}

/// A field such as `MemAvailable:   123 kB` of a proc file, in bytes.
#[cfg(target_os = "linux")]
pub(super) fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Limit and use of a control group.
#[cfg(target_os = "linux")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Group {
    limit: u64,
    used: u64,
    cache: u64,
}

#[cfg(target_os = "linux")]
impl Group {
    fn available(&self) -> u64 {
        self.limit.saturating_sub(self.used.saturating_sub(self.cache))
    }
}

/// File names of one control-group version.
#[cfg(target_os = "linux")]
struct GroupFiles {
    limit: &'static str,
    used: &'static str,
    cache_field: &'static str,
}

#[cfg(target_os = "linux")]
const V1: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cache_field: "total_inactive_file",
};

#[cfg(target_os = "linux")]
const V2: GroupFiles =
    GroupFiles { limit: "memory.max", used: "memory.current", cache_field: "inactive_file" };

/// The group of `/proc/self/cgroup` text, or an ancestor, that leaves least.
#[cfg(target_os = "linux")]
fn tightest_group(groups: &str, root: &std::path::Path) -> Option<Group> {
    let mut found: Vec<Group> = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (base, files) = match controllers {
            "" => (root.to_path_buf(), V2),
            list if list.split(',').any(|name| name == "memory") => (root.join("memory"), V1),
            _ => continue,
        };
        // Inside a container the path may be the host's; then only the root of
        // the mount exists, and it is the container's own group.
        let own = base.join(path.trim_start_matches('/'));
        let ancestors = own.ancestors().take_while(|group| group.starts_with(&base));
        found.extend(ancestors.filter_map(|group| read_group(group, &files)));
    }
    found.into_iter().min_by_key(Group::available)
}

#[cfg(target_os = "linux")]
fn read_group(group: &std::path::Path, files: &GroupFiles) -> Option<Group> {
    let number = |name| -> Option<u64> {
        std::fs::read_to_string(group.join(name)).ok()?.trim().parse().ok()
    };
    // v2 writes "max" for no limit (not a number); v1 a number near i64::MAX.
    const NO_LIMIT: u64 = 1 << 60;
    let limit = number(files.limit).filter(|&limit| limit < NO_LIMIT)?;
    let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cache = stat
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(name, _)| *name == files.cache_field)
        .and_then(|(_, bytes)| bytes.trim().parse().ok());
    Some(Group { limit, used: number(files.used)?, cache: cache.unwrap_or(0) })
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;

    /// A made-up control-group tree: (path, limit, used, stat).
    fn tree(
        name: &str,
        files: &GroupFiles,
        groups: &[(&str, &str, &str, &str)],
    ) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("tidekv-{name}-{}", std::process::id()));
        for (path, limit, used, stat) in groups {
            let group = root.join(path);
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join(files.limit), limit).unwrap();
            fs::write(group.join(files.used), used).unwrap();
            fs::write(group.join("memory.stat"), stat).unwrap();
        }
        root
    }

    #[test]
    fn version_2_limit_of_an_ancestor_counts_and_page_cache_is_free() {
        let groups = [
            ("a", "1073741824\n", "600000000\n", "anon 1\ninactive_file 100000000\n"),
            ("a/b", "max\n", "5\n", ""),
        ];
        let root = tree("v2", &V2, &groups);
        let group = tightest_group("0::/a/b\n", &root).unwrap();
        assert_eq!(group.limit, 1 << 30);
        assert_eq!(group.available(), (1 << 30) - 500_000_000);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn version_1_unlimited_is_no_limit_and_a_limit_is_found() {
        let groups = [
            ("memory", "9223372036854771712\n", "5\n", ""),
            ("memory/x", "2000\n", "500\n", "total_inactive_file 100\n"),
        ];
        let root = tree("v1", &V1, &groups);
        let found = tightest_group("4:cpu:/x\n3:memory:/x\n", &root).unwrap();
        assert_eq!((found.limit, found.available()), (2000, 1600));
        assert_eq!(tightest_group("3:memory:/\n", &root), None);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn limits_of_the_process_count_what_is_mapped_and_what_will_be() {
        let limits = |soft: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max data size             7                    7                    bytes\n\
                 Max address space         {soft}           unlimited            bytes\n"
            )
        };
        let status = "VmPeak:\t  9000 kB\nVmSize:\t  1024 kB\n";
        let left = |soft| left_to_map((&limits(soft), "Max address space"), (status, "VmSize:"));
        assert_eq!(left("unlimited"), None);
        assert_eq!(left("268435456"), Some((256 << 20) - (1 << 20) - ADDRESS_RESERVE));
        assert_eq!(left("1000"), Some(0));

        let memory = SystemMemory {
            available: Some(900),
            group_available: Some(800),
            address_space: Some(700),
            data: Some(750),
            ..SystemMemory::default()
        };
        assert_eq!((memory.usable(), memory.usable_after_mapping(600)), (Some(700), Some(100)));
        assert_eq!(memory.usable_after_mapping(1000), Some(0));
        let wide = SystemMemory { address_space: None, ..memory };
        assert_eq!(wide.usable_after_mapping(1000), Some(750));
    }

    /// Says what may be used, for the test after it, which runs it in a process
    /// with a limit.
    #[test]
    fn child_that_says_what_is_usable() {
        println!("usable {}", system_memory().usable().unwrap());
    }

    #[test]
    fn the_limit_of_this_process_is_seen() {
        const LIMIT: u64 = 1 << 30;
        let name = concat!(module_path!(), "::child_that_says_what_is_usable");
        let name = name.split_once("::").unwrap().1;
        let usable = |flag: &str, limit: &str| -> u64 {
            let output = std::process::Command::new("sh")
                .args(["-c", r#"ulimit "$1" "$2" && exec "$3" --exact "$4" --nocapture"#, "sh"])
                .args([flag, limit])
                .arg(std::env::current_exe().unwrap())
                .arg(name)
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let number = said.split_once("usable ").map(|(_, rest)| rest);
            number.and_then(|rest| rest.lines().next()).expect(&said).parse().unwrap()
        };
        for flag in ["-v", "-d"] {
            let limited = usable(flag, &(LIMIT >> 10).to_string());
            assert!(limited < LIMIT - ADDRESS_RESERVE, "{flag}: {limited}");
        }
        let free = usable("-v", "unlimited");
        assert!(free > LIMIT, "{free} bytes are too few for this test");
    }

    #[test]
    fn the_machine_has_memory() {
        let memory = system_memory();
        assert!(memory.usable().unwrap() <= memory.total.unwrap());
        assert!(memory.usable().unwrap() > 0);
    }
}
