//! Bytes that a run has written to the disk tier, and their limit.
//!
//! The journal keeps the count over all processes of a run, since equal runs leave equal checkpoints. Repeated steps
//! count twice. Each rank counts its own. No step exceeds the limit, judged by the last step and the states on the disk
//! (`a_run_takes_all_steps_under_its_limit_and_none_that_goes_above_it`).

use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context;
use backend_offload::Bytes;
use serde_json::Value;

use crate::journal;

/// Callers pass the device's counter, in bytes since the process began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wear {
    limit: Option<u64>,
    /// Bytes written before this process, and the counter then.
    earlier: u64,
    counted: u64,
    /// Bytes of optimizer states on the disk, written at opening and by each update.
    states: u64,
    /// Bytes written at the end of the last step, and since the one before.
    written: u64,
    step: u64,
}

impl Wear {
    /// Call before `states` bytes are placed on the disk.
    pub(crate) fn open(run: &Path, limit: Option<u64>, counter: u64, states: u64) -> anyhow::Result<Self> {
        let [written, step] = told_in(run)?;
        Ok(Self { limit, earlier: written, counted: counter, states, written, step })
    }

    pub(crate) fn written(&self, counter: u64) -> u64 {
        self.earlier + (counter - self.counted)
    }

    /// Reason not to begin: placing the states and one step would exceed the limit.
    pub(crate) fn refusal(&self) -> Option<String> {
        let step = self.step.max(self.states);
        let limit = self.limit.filter(|limit| self.written + self.states + step > *limit)?;
        Some(format!(
            "the run has written {} to the disk, and {} of the optimizer's state that go there and a step of {} would go above \
             `memory.max_disk_writes` = {}; raise it",
            Bytes(self.written),
            Bytes(self.states),
            Bytes(step),
            Bytes(limit)
        ))
    }

    /// Bytes written so far belong to earlier steps.
    pub(crate) fn begin(&mut self, counter: u64) {
        self.written = self.written(counter);
    }

    /// True early enough to measure a whole step below the limit.
    pub(crate) fn has_to_be_exact(&self, counter: u64) -> bool {
        let written = self.written(counter);
        let step = written - self.written + self.states;
        self.limit.is_some_and(|limit| written + 4 * step > limit)
    }

    /// A reason to stop, if another such step would exceed the limit.
    pub(crate) fn step(&mut self, counter: u64) -> Option<String> {
        let written = self.written(counter);
        (self.step, self.written) = (written - self.written, written);
        let step = self.step.max(self.states);
        let limit = self.limit.filter(|limit| written + step > *limit)?;
        let [written, step, limit] = [written, step, limit].map(Bytes);
        Some(format!(
            "{written} were written to the disk, and a step of {step} would go above `memory.max_disk_writes` = {limit}"
        ))
    }
}

/// Bytes according to the journal: all, and of the last step.
fn told_in(run: &Path) -> anyhow::Result<[u64; 2]> {
    let path = run.join(journal::FILE);
    let [mut written, mut step] = [0; 2];
    let mut read = || -> std::io::Result<()> {
        for line in journal::lines(run)? {
            let record = serde_json::from_slice::<Value>(&line?).unwrap_or_default();
            written = record["drive_wear"].as_u64().unwrap_or(written);
            if record["kind"] == "step" {
                step = record["disk_written"].as_u64().unwrap_or_default();
            }
        }
        Ok(())
    };

    match read() {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("reading {}", path.display()))
        }
        _ => Ok([written, step]),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn opened(run: &Path, limit: u64, states: u64) -> Wear {
        Wear::open(run, Some(limit), 7, states).expect("no journal, or one that can be read")
    }

    /// Steps write `blocks`, then states. Returns their number and bytes.
    fn steps_until_it_stops(mut wear: Wear, [blocks, states]: [u64; 2], late: u64) -> (u64, u64) {
        let (mut counter, mut under_way) = (7 + states, 0);
        wear.begin(counter);
        for step in 1.. {
            counter += under_way + blocks + states - late;
            under_way = late;
            if wear.has_to_be_exact(counter) {
                counter += std::mem::take(&mut under_way);
            }
            if wear.step(counter).is_some() {
                return (step, wear.written(counter) + under_way);
            }
        }
        unreachable!("every limit is reached")
    }

    #[test]
    fn a_run_takes_all_steps_under_its_limit_and_none_that_goes_above_it() {
        let none = tempfile::tempdir().expect("a folder");
        for (blocks, states) in [(10, 0), (0, 10), (3, 10), (10, 3), (1, 100)] {
            for limit in (states + blocks + states..2000).step_by(7) {
                for late in [0, states / 3, states] {
                    let most = (limit - states) / (blocks + states);
                    let expected = (most, states + most * (blocks + states));
                    let wear = opened(none.path(), limit, states);
                    let told = format!("{blocks} and {states} below {limit}, {late} late");
                    assert_eq!(steps_until_it_stops(wear, [blocks, states], late), expected, "{told}");
                }
            }
        }
    }

    #[test]
    fn a_step_whose_update_was_withheld_does_not_count_for_the_next_one() {
        let none = tempfile::tempdir().expect("a folder");
        for (limit, stops) in [(22, true), (23, false)] {
            let mut wear = opened(none.path(), limit, 10);
            wear.begin(17);
            assert_eq!(wear.step(20).is_some(), stops, "13 are written, and an update writes 10: {limit}");
        }
    }

    #[test]
    fn the_count_goes_on_where_the_journal_ends_and_refuses_what_cannot_take_a_step() {
        let run = tempfile::tempdir().expect("a folder");
        assert_eq!(opened(run.path(), 20, 10).refusal(), None);
        let refused = opened(run.path(), 19, 10).refusal().expect("placing takes 10, and a step as many");
        assert!(refused.contains("has written 0 B") && refused.contains("= 19 B; raise it"), "{refused}");
        let lines = [
            r#"{"kind":"step","step":1,"disk_written":30,"drive_wear":40}"#,
            r#"{"kind":"step","step":2,"disk_written":25,"drive_wear":65}"#,
            r#"{"kind":"disk","step":2,"drive_wear":75}"#,
            r#"{"kind":"step","step":3,"disk_w"#,
        ];
        fs::write(run.path().join(journal::FILE), lines.join("\n")).expect("a file");
        let wear = opened(run.path(), 110, 10);
        assert_eq!((wear.written(7), wear.written(17), wear.refusal()), (75, 85, None));
        assert!(opened(run.path(), 109, 10).refusal().is_some(), "75, 10 and a step of 25");
    }
}
