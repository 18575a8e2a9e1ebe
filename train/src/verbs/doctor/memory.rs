//! Findings about host memory: RAM, the caps of control group and WSL2, and the limit of page-locked memory.

use std::fs;
use std::path::Path;

use backend_offload::{Bytes, available_host_memory, control_group_limit};

use super::Finding;

/// `root` is `/`; tests give a folder.
pub(super) fn findings(root: &Path) -> Vec<Finding> {
    let mut findings = vec![ram(root, available_host_memory())];
    findings.extend(cgroup(root));
    findings.extend(page_locked(root));
    findings
}

fn ram(root: &Path, available: Option<u64>) -> Finding {
    let total = read(root, "proc/meminfo").and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    let Some(total) = total.map(|kib| Bytes(kib * 1024)) else {
        return Finding::note("RAM", "the system does not report its memory", "set `memory.host_budget`");
    };
    let available = available.map(|free| format!(", {} available", Bytes(free)));
    let found = format!("{total}{}", available.unwrap_or_default());
    if is_wsl(root) {
        return Finding::note(
            "RAM",
            found + " under WSL2, which by default gives Linux half of Windows' memory",
            "for more, set `memory=` under `[wsl2]` in %UserProfile%\\.wslconfig and run `wsl --shutdown`",
        );
    }
    Finding::fine("RAM", found)
}

/// Microsoft's kernels name their maker.
fn is_wsl(root: &Path) -> bool {
    read(root, "proc/sys/kernel/osrelease")
        .is_some_and(|release| release.to_lowercase().contains("microsoft"))
}

fn cgroup(root: &Path) -> Option<Finding> {
    let limit = control_group_limit(root)?;
    Some(Finding::note(
        "control group",
        format!("limits this process to {}", Bytes(limit)),
        "for more, start the container with a higher limit (`docker run --memory`)",
    ))
}

/// NVIDIA's driver and `io_uring` pin memory; Linux counts the latter against this limit.
fn page_locked(root: &Path) -> Option<Finding> {
    let limits = read(root, "proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    let limit = line.split_whitespace().next()?;
    Some(match limit.parse::<u64>() {
        Err(_) => Finding::fine("page-locked memory", limit),
        Ok(bytes) if bytes >= 1 << 26 => Finding::fine("page-locked memory", Bytes(bytes).to_string()),
        Ok(bytes) => Finding::note(
            "page-locked memory",
            format!("limited to {}", Bytes(bytes)),
            "if copies are refused, raise `memlock` in /etc/security/limits.conf, or `docker run --ulimit memlock=-1`",
        ),
    })
}

fn read(root: &Path, file: &str) -> Option<String> {
    fs::read_to_string(root.join(file)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for (file, text) in files {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().expect("below the root")).expect("making");
            fs::write(file, text).expect("writing");
        }
        root
    }

    #[test]
    fn the_tightest_limit_of_the_groups_above_counts() {
        let root = machine(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.max", "4294967296\n"),
            ("sys/fs/cgroup/memory.max", "8589934592\n"),
        ]);
        let finding = cgroup(root.path()).expect("a limit");
        insta::assert_snapshot!(finding, @"note     control group      limits this process to 4.00 GiB; for more, start the container with a higher limit (`docker run --memory`)");
    }

    /// As in Docker: the container's own group is at the root, and the path names a group of the host.
    #[test]
    fn the_limit_of_a_version_1_group_that_is_mounted_at_the_root_is_reported() {
        let root = machine(&[
            ("proc/self/cgroup", "4:memory:/docker/1f\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "4294967296\n"),
        ]);
        let finding = cgroup(root.path()).expect("a limit");
        assert_eq!(finding.found, "limits this process to 4.00 GiB");
    }

    #[test]
    fn without_a_limit_of_either_version_nothing_is_reported() {
        let unlimited = [
            ("proc/self/cgroup", "5:cpu,memory:/a\n0::/a\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
        ];
        assert!(cgroup(machine(&unlimited).path()).is_none());
    }

    #[test]
    fn wsl2_is_recognised_by_its_kernel_and_its_cap_is_explained() {
        let memory = ("proc/meminfo", "MemTotal: 8388608 kB\n");
        let wsl = machine(&[memory, ("proc/sys/kernel/osrelease", "5.15.153.1-microsoft-standard-WSL2\n")]);
        insta::assert_snapshot!(ram(wsl.path(), Some(3 << 30)), @"note     RAM                8.00 GiB, 3.00 GiB available under WSL2, which by default gives Linux half of Windows' memory; for more, set `memory=` under `[wsl2]` in %UserProfile%\\.wslconfig and run `wsl --shutdown`");
        let plain = machine(&[memory, ("proc/sys/kernel/osrelease", "6.8.0-45-generic\n")]);
        insta::assert_snapshot!(ram(plain.path(), Some(3 << 30)), @"fine     RAM                8.00 GiB, 3.00 GiB available");
        insta::assert_snapshot!(ram(machine(&[]).path(), None), @"note     RAM                the system does not report its memory; set `memory.host_budget`");
    }

    #[test]
    fn a_low_limit_of_page_locked_memory_is_noted() {
        let finding = |limit: &str| {
            let limits =
                format!("Max locked memory         {limit}              {limit}              bytes\n");
            page_locked(machine(&[("proc/self/limits", &limits)]).path()).expect("a limit")
        };
        insta::assert_snapshot!(finding("65536"), @"note     page-locked memory limited to 64.00 KiB; if copies are refused, raise `memlock` in /etc/security/limits.conf, or `docker run --ulimit memlock=-1`");
        insta::assert_snapshot!(finding("unlimited"), @"fine     page-locked memory unlimited");
        insta::assert_snapshot!(finding("8589934592"), @"fine     page-locked memory 8.00 GiB");
    }
}
