//! Findings about disks: room and speed of the current and the cache folder.

use std::path::{Path, PathBuf};

use backend_offload::{Bytes, disk_speed};
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
