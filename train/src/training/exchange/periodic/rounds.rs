//! Lengths of rounds: by steps, by time, or as a run recorded them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use runs::BadInput;
use runs::config::Round;
use serde_json::{Value, json};

use crate::journal::{FILE, lines};
use crate::ranks::Ranks;

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

    /// If rounds follow a record, rank 0 reads it for all. It has to hold rounds from step `after` to `until`.
    pub(super) fn open(&mut self, after: u64, until: u64, ranks: &mut Ranks) -> anyhow::Result<()> {
        self.rank = ranks.rank();
        let Round::AsIn(run) = &self.round else { return Ok(()) };
        let world = ranks.world();
        let told = ranks.led(|| {
            let name = || format!("`ranks.round` = \"{}\"", self.round);
            let rounds = recorded(run).map_err(|error| BadInput(format!("{}: {error:#}", name())))?;
            let mut at = after;
            while at < until {
                let counts = rounds.get(&at).filter(|counts| counts.len() >= world && !counts.contains(&0));
                at += counts.and_then(|counts| counts.iter().max()).ok_or_else(|| {
                    let name = name();
                    BadInput(format!("{name} records no round of {world} ranks after step {at} of {until}"))
                })?;
            }
            Ok(serde_json::to_vec(&rounds)?)
        })?;
        self.recorded = serde_json::from_slice(&told).context("reading rank 0's record of rounds")?;
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

    pub(super) fn is_over(&self, step: u64) -> bool {
        let taken = step - self.after;
        match &self.round {
            Round::Steps(steps) => taken >= *steps,
            Round::Time(time) => self.begun.elapsed() >= *time,
            Round::AsIn(_) => {
                let own = self.recorded.get(&self.after).and_then(|counts| counts.get(self.rank));
                own.is_none_or(|own| taken >= *own)
            }
        }
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
    use std::path::PathBuf;
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;
    use crate::exit::is_bad_input;
    use crate::ranks::tests::on_each;

    fn over(rounds: &Rounds, step: u64) -> bool {
        rounds.is_over(step)
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
        let ends = on_each(2, |ranks| {
            let mut rounds = Rounds::new(Round::AsIn(run.path().to_owned()));
            rounds.open(0, 9, ranks).expect("a journal");
            let ends = if ranks.leads() { [5, 8] } else { [2, 9] };
            for (after, end) in [0, 5].into_iter().zip(ends) {
                rounds.begin(after);
                assert!(!over(&rounds, end - 1) && over(&rounds, end), "rank {} after {after}", ranks.rank());
            }
            [(0, 10), (1, 9)].map(|(after, until)| {
                let error = rounds.open(after, until, ranks).expect_err("not recorded");
                assert!(is_bad_input(&error), "{error:#}");
                error.to_string()
            })
        });
        assert!(ends[0][0].contains("no round of 2 ranks after step 9 of 10"), "{ends:?}");
        assert!(ends[0][1].contains("no round of 2 ranks after step 1 of 9"), "{ends:?}");
        let refused = |run: PathBuf, world| {
            on_each(world, |ranks| {
                Rounds::new(Round::AsIn(run.clone())).open(0, 9, ranks).expect_err("refused").to_string()
            })
        };
        assert!(refused(run.path().to_owned(), 3)[0].contains("no round of 3 ranks after step 0"));
        assert!(refused(run.path().join("none"), 1)[0].contains("reading the rounds of"));
    }
}
