//! How much memory there is: the machine's and the control group's.

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
}

impl SystemMemory {
    /// What a run may use: the smaller of the machine's and the group's.
    pub fn usable(&self) -> Option<u64> {
        smaller(self.available, self.group_available)
    }

    /// What there is in all, for mapped weights and run together.
    pub fn installed(&self) -> Option<u64> {
        smaller(self.total, self.group_total)
    }
}

fn smaller(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The memory limit of a run that names none.
pub fn default_limit() -> Option<u64> {
    system_memory().usable()
}

/// Reads the memory of the machine and of the control groups.
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
    SystemMemory {
        available: kib_field(&meminfo, "MemAvailable:"),
        total: kib_field(&meminfo, "MemTotal:"),
        group_available: group.map(|group| group.available()),
        group_total: group.map(|group| group.limit),
    }
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
    fn the_machine_has_memory() {
        let memory = system_memory();
        assert!(memory.usable().unwrap() <= memory.total.unwrap());
        assert!(memory.usable().unwrap() > 0);
    }
}
