//! Host memory available to this process.

/// Bytes that machine and control group leave, if the system reports them.
#[cfg(target_os = "linux")]
pub fn available_memory() -> Option<u64> {
    let machine = meminfo_available(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
    Some(cgroup_room().map_or(machine, |room| machine.min(room)))
}

#[cfg(not(target_os = "linux"))]
pub fn available_memory() -> Option<u64> {
    None
}

#[cfg(target_os = "linux")]
fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// The tightest limit up to the root (version 2), or the memory controller's (version 1).
#[cfg(target_os = "linux")]
fn cgroup_room() -> Option<u64> {
    use std::path::{Path, PathBuf};
    let number = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut room: Option<u64> = None;
    let mut narrow = |limit: Option<u64>, used: Option<u64>| {
        if let (Some(limit), Some(used)) = (limit, used) {
            let left = limit.saturating_sub(used);
            room = Some(room.map_or(left, |other| other.min(left)));
        }
    };

    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let below = path.trim_start_matches('/');
        if controllers.is_empty() {
            for group in Path::new(below).ancestors() {
                let group = Path::new("/sys/fs/cgroup").join(group);
                narrow(number(group.join("memory.max")), number(group.join("memory.current")));
            }
        } else if controllers.split(',').any(|name| name == "memory") {
            let group = Path::new("/sys/fs/cgroup/memory").join(below);
            narrow(number(group.join("memory.limit_in_bytes")), number(group.join("memory.usage_in_bytes")));
        }
    }
    room
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_from_the_kernel_in_bytes() {
        let text = "MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\n";
        assert_eq!(meminfo_available(text), Some(8_000_000 * 1024));
        assert!(available_memory().expect("a Linux machine tells") > 1 << 20);
    }
}
