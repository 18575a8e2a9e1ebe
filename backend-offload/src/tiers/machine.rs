//! Host memory available to this process.
//!
//! Page cache that the kernel can give up counts as available (`page_cache_of_a_container_counts_as_available`). Only
//! Linux has these files.

use std::fs;
use std::path::Path;

/// Bytes that machine and control group leave, if reported.
pub fn available_memory() -> Option<u64> {
    let machine = meminfo_available(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(cgroup_room(&groups, Path::new("/sys/fs/cgroup")).map_or(machine, |room| machine.min(room)))
}

/// The tightest limit of the process's control group and those above it, if any. `root` is `/`; tests give a folder.
pub fn control_group_limit(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let limit = |group: &Path, names: &Names| number(&group.join(names.limit));
    let limit = least_of_groups(&groups, &root.join("sys/fs/cgroup"), limit);
    // Version 1 writes a number near 2⁶³ for no limit.
    limit.filter(|limit| *limit < 1 << 60)
}

fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

struct Names {
    limit: &'static str,
    used: &'static str,
    /// In `memory.stat`: file pages not used lately, in all groups below.
    cache: &'static str,
}

const VERSION_1: Names =
    Names { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", cache: "total_inactive_file" };

const VERSION_2: Names = Names { limit: "memory.max", used: "memory.current", cache: "inactive_file" };

fn cgroup_room(groups: &str, mounted: &Path) -> Option<u64> {
    least_of_groups(groups, mounted, group_room)
}

/// The least number `of` the groups of `/proc/self/cgroup`, up to the root.
fn least_of_groups(groups: &str, mounted: &Path, of: impl Fn(&Path, &Names) -> Option<u64>) -> Option<u64> {
    let numbers = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (hierarchy, names) = if controllers.is_empty() {
            (mounted.to_owned(), VERSION_2)
        } else if controllers.split(',').any(|name| name == "memory") {
            (mounted.join("memory"), VERSION_1)
        } else {
            return None;
        };
        let own = Path::new(path.trim_start_matches('/'));
        own.ancestors().filter_map(|group| of(&hierarchy.join(group), &names)).min()
    });
    numbers.min()
}

/// `None` without a limit.
fn group_room(group: &Path, names: &Names) -> Option<u64> {
    let (limit, used) = (number(&group.join(names.limit))?, number(&group.join(names.used))?);
    let statistics = fs::read_to_string(group.join("memory.stat")).ok();
    let cache = statistics.and_then(|text| statistic(&text, names.cache)).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cache)))
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn statistic(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Recorded after copies of large files.
    const STATISTICS_1: &str = include_str!("machine/memory-stat-v1.txt");
    /// In the format of Linux 6.8.
    const STATISTICS_2: &str = include_str!("machine/memory-stat-v2.txt");

    struct Groups(tempfile::TempDir);

    impl Groups {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a folder"))
        }

        fn with(self, group: &str, files: &[(&str, &str)]) -> Self {
            let folder = self.0.path().join(group);
            fs::create_dir_all(&folder).expect("our folder");
            for (name, text) in files {
                fs::write(folder.join(name), text).expect("our file");
            }
            self
        }

        fn room(&self, groups: &str) -> Option<u64> {
            cgroup_room(groups, self.0.path())
        }
    }

    #[test]
    fn available_memory_is_read_from_the_kernel_in_bytes() {
        let text = "MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\n";
        assert_eq!(meminfo_available(text), Some(8_000_000 * 1024));
        assert!(available_memory().expect("a Linux machine tells") > 1 << 20);
    }

    #[test]
    fn page_cache_of_a_container_counts_as_available() {
        let limit = (64 * GIB).to_string();
        let (used, cache) = (62_409_187_328, 53_691_125_760);
        let groups = Groups::new().with(
            "kubepods.slice/pod1/container",
            &[
                ("memory.max", &limit),
                ("memory.current", &format!("{used}\n")),
                ("memory.stat", STATISTICS_2),
            ],
        );
        let room = groups.room("0::/kubepods.slice/pod1/container\n");
        assert_eq!(room, Some(64 * GIB - (used - cache)));

        let (used, cache) = (8_452_984_832, 3_542_220_800);
        let groups = Groups::new().with(
            "memory/docker/1f",
            &[
                ("memory.limit_in_bytes", &limit),
                ("memory.usage_in_bytes", &format!("{used}\n")),
                ("memory.stat", STATISTICS_1),
            ],
        );
        let room = groups.room("5:devices:/docker/1f\n4:memory:/docker/1f\n0::/\n");
        assert_eq!(room, Some(64 * GIB - (used - cache)));
    }

    #[test]
    fn the_tightest_group_up_to_the_root_decides() {
        let limited = |limit: u64| [("memory.max", limit.to_string()), ("memory.current", GIB.to_string())];
        let with = |groups: Groups, name, limit| {
            let files = limited(limit);
            groups.with(name, &files.each_ref().map(|(name, text)| (*name, text.as_str())))
        };
        let groups = with(with(with(Groups::new(), "", 9 * GIB), "a", 4 * GIB), "a/b", 6 * GIB);
        assert_eq!(groups.room("0::/a/b\n"), Some(3 * GIB));
        assert_eq!(groups.room("0::/\n"), Some(8 * GIB));
        let unlimited = groups.with("c", &[("memory.max", "max\n"), ("memory.current", "7\n")]);
        assert_eq!(unlimited.room("0::/c\n"), Some(8 * GIB));
    }

    /// A container sees its own group at the root; the path names a group of the host.
    #[test]
    fn a_group_that_is_mounted_at_the_root_is_found() {
        let files = [("memory.limit_in_bytes", "1000\n"), ("memory.usage_in_bytes", "400\n")];
        let groups = Groups::new().with("memory", &files);
        assert_eq!(groups.room("4:memory:/docker/1f\n"), Some(600));
    }
}
