//! Lengths of rounds: by steps, by time, or as a run recorded them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use runs::config::Round;
use serde_json::{Value, json};

use crate::journal::{FILE, lines};

/// Journal records of rounds.
pub(crate) const KIND: &str = "round";

pub(super) struct Rounds {
    round: Round,
    rank: usize,
    /// Steps of each rank by the step after which a round began.
    recorded: BTreeMap<u64, Vec<u64>>,
    begun: Instant,
    /// The step after which this round began.
    after: u64,
}

impl Rounds {
    pub(super) fn new(round: Round) -> Self {
        Self { round, rank: 0, recorded: BTreeMap::new(), begun: Instant::now(), after: 0 }
    }

    /// Reads a record, if rounds follow one.
    pub(super) fn open(&mut self, rank: usize) -> anyhow::Result<()> {
        self.rank = rank;
        if let Round::AsIn(run) = &self.round {
            self.recorded = recorded(run).with_context(|| format!("`ranks.round` = \"{}\"", self.round))?;
        }
        Ok(())
    }

    pub(super) fn begin(&mut self, after: u64) {
        (self.begun, self.after) = (Instant::now(), after);
    }

    pub(super) fn after(&self) -> u64 {
        self.after
    }

    pub(super) fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    pub(super) fn is_over(&self, step: u64) -> anyhow::Result<bool> {
        let taken = step - self.after;
        Ok(match &self.round {
            Round::Steps(steps) => taken >= *steps,
            Round::Time(time) => self.begun.elapsed() >= *time,
            Round::AsIn(run) => {
                let own = self.recorded.get(&self.after).and_then(|counts| counts.get(self.rank));
                let (run, after, rank) = (run.display(), self.after, self.rank);
                let own = own.with_context(|| {
                    format!("`ranks.round`: {run} records no round after step {after} for rank {rank}")
                })?;
                taken >= *own
            }
        })
    }
}

/// The journal's record of a round that led from step `after` to `step`.
pub(super) fn record(after: u64, step: u64, counts: &[u64], seconds: f64) -> Value {
    json!({ "step": step, "after": after, "counts": counts, "round_seconds": seconds })
}

fn recorded(run: &Path) -> anyhow::Result<BTreeMap<u64, Vec<u64>>> {
    let path = run.join(FILE);
    let name = || format!("reading the rounds of {}", path.display());
    let mut rounds = BTreeMap::new();
    for line in lines(run).with_context(name)? {
        let record: Value = serde_json::from_slice(&line.with_context(name)?).unwrap_or_default();
        if record["kind"] != KIND {
            continue;
        }
        let counts = record["counts"].as_array().into_iter().flatten().map(Value::as_u64).collect();
        if let (Some(after), Some(counts)) = (record["after"].as_u64(), counts) {
            rounds.insert(after, counts);
        }
    }
    Ok(rounds)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    fn over(rounds: &Rounds, step: u64) -> bool {
        rounds.is_over(step).expect("known")
    }

    #[test]
    fn a_round_lasts_so_many_steps_or_so_long() {
        let mut rounds = Rounds::new(Round::Steps(3));
        rounds.begin(7);
        assert_eq!([8, 9, 10, 11].map(|step| over(&rounds, step)), [false, false, true, true]);
        let mut rounds = Rounds::new(Round::Time(Duration::from_millis(300)));
        rounds.begin(7);
        assert!(!over(&rounds, 900));
        sleep(Duration::from_millis(300));
        assert!(over(&rounds, 8));
    }

    #[test]
    fn a_recorded_round_is_as_long_again_on_each_rank() {
        let run = tempfile::tempdir().expect("a folder");
        let lines = [record(0, 5, &[5, 2], 1.0), record(5, 9, &[3, 4], 1.0)].map(|mut record| {
            record["kind"] = KIND.into();
            record.to_string()
        });
        let text = [&b"no text: \xff\n"[..], lines.join("\n").as_bytes(), b"\n{\"kind\":"].concat();
        fs::write(run.path().join(FILE), text).expect("written");
        for (rank, ends) in [(0, [5, 8]), (1, [2, 9])] {
            let mut rounds = Rounds::new(Round::AsIn(run.path().to_owned()));
            rounds.open(rank).expect("a journal");
            for (after, end) in [0, 5].into_iter().zip(ends) {
                rounds.begin(after);
                assert!(!over(&rounds, end - 1) && over(&rounds, end), "rank {rank} after {after}");
            }
            rounds.begin(9);
            let error = rounds.is_over(10).expect_err("not recorded").to_string();
            assert!(error.contains("no round after step 9"), "{error}");
        }
        let absent = Rounds::new(Round::AsIn(run.path().join("none"))).open(0).expect_err("no journal");
        assert!(format!("{absent:#}").contains("reading the rounds of"), "{absent:#}");
    }
}
