//! Findings about disks: room and speed of the current and the cache folder.

use std::path::{Path, PathBuf};

use backend_offload::{Bytes, DiskSpeed, disk_speed};
use durable::free_bytes;

use super::Finding;
use crate::figures::si;
use crate::machine::cache_folder;

const WRITTEN: usize = 64 << 20;

/// Checkpoints of the smallest preset need less.
const LITTLE: u64 = 1 << 30;

pub(super) fn findings() -> Vec<Finding> {
    let mut findings = vec![finding("current folder", Path::new("."))];
    findings.extend(cache_folder().map(|cache| cache_finding(&cache)));
    findings
}

fn finding(subject: &'static str, folder: &Path) -> Finding {
    let writable = tempfile::tempfile_in(folder).and_then(|_| free_bytes(folder));
    let free = match writable {
        Ok(free) => free,
        Err(error) => {
            let found = format!("no file can be written in {} ({error})", folder.display());
            return Finding::missing(subject, found, "change to a folder of yours");
        }
    };
    let speed = if free < WRITTEN as u64 { None } else { disk_speed(folder, WRITTEN).ok() };
    room(subject, free, speed)
}

fn room(subject: &'static str, free: u64, speed: Option<DiskSpeed>) -> Finding {
    let speed =
        speed.map(|speed| format!(", writes {}, reads {}", si(speed.write, "B/s"), si(speed.read, "B/s")));
    let found = format!("{} free{}", Bytes(free), speed.unwrap_or_default());
    if free < LITTLE {
        return Finding::note(subject, found, "free some: checkpoints and prepared data go here");
    }
    Finding::fine(subject, found)
}

/// The cache is optional: nothing is missing.
fn cache_finding(cache: &Path) -> Finding {
    let existing = cache.ancestors().find(|folder| folder.exists()).map(PathBuf::from);
    let finding = finding("cache folder", existing.as_deref().unwrap_or(cache));
    match finding.verdict {
        super::Verdict::Missing => Finding::note(
            "cache folder",
            finding.found,
            "set XDG_CACHE_HOME to a folder of yours; without it each start measures the machine again",
        ),
        _ => Finding { found: format!("{} at {}", finding.found, cache.display()), ..finding },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_takes_no_file_is_missing_and_a_cache_there_is_only_noted() {
        let root = tempfile::tempdir().expect("a folder");
        let said = |finding: Finding| finding.to_string().replace(&root.path().display().to_string(), "ROOT");
        let absent = said(finding("current folder", &root.path().join("absent")));
        let begins = "missing  current folder     no file can be written in ROOT/absent (";
        assert!(absent.starts_with(begins), "{absent}");
        assert!(absent.ends_with("); change to a folder of yours"), "{absent}");

        // Below a file nothing can be made, not even by root.
        std::fs::write(root.path().join("file"), "").expect("writing");
        let cache = said(cache_finding(&root.path().join("file/spillway")));
        let begins = "note     cache folder       no file can be written in ROOT/file (";
        assert!(cache.starts_with(begins), "{cache}");
        assert!(
            cache.contains("); set XDG_CACHE_HOME to a folder of yours; without it each start"),
            "{cache}"
        );
    }

    #[test]
    fn little_room_is_noted_and_its_speed_said_if_it_was_measured() {
        let speed = DiskSpeed { write: 2.5e8, read: 1e9 };
        insta::assert_snapshot!(room("current folder", 512 << 20, Some(speed)), @"note     current folder     512.00 MiB free, writes 250 MB/s, reads 1.00 GB/s; free some: checkpoints and prepared data go here");
        insta::assert_snapshot!(room("current folder", 32 << 20, None), @"note     current folder     32.00 MiB free; free some: checkpoints and prepared data go here");
        insta::assert_snapshot!(room("cache folder", 2 << 30, None), @"fine     cache folder       2.00 GiB free");
    }
}
