//! The most checkpoints on the disk at once, including the one being written.
//!
//! The worst case: which evaluations are best is unknown.

use runs::config::Config;

pub(super) fn most(config: &Config) -> u64 {
    let saves = Saves::of(config);
    saves.with_latest_best().max(saves.with_old_best().unwrap_or(0)).saturating_add(1)
}

/// Files of each rank's own. Two stay, while the next is written, unless the run saves less often.
pub(super) fn own_files(config: &Config) -> u64 {
    let saves = Saves::of(config);
    most(config).max(3).min(saves.saved(saves.before - 1) + 1)
}

/// Saves before the last step. A period of 0 means never.
struct Saves {
    before: u64,
    every: u64,
    evaluated: u64,
    keep_last: u64,
    keep_every: u64,
}

impl Saves {
    fn of(config: &Config) -> Self {
        let rules = &config.checkpoint;
        Self {
            before: config.train.steps.max(1),
            every: rules.every,
            evaluated: config.eval.every,
            keep_last: rules.keep_last as u64,
            keep_every: rules.keep_every.unwrap_or(0),
        }
    }

    fn with_latest_best(&self) -> u64 {
        let all = self.saved(self.before - 1);
        let latest = all.min(self.keep_last);
        let mut first_of_latest = 0..self.before;
        while first_of_latest.start < first_of_latest.end {
            let middle = first_of_latest.start + (first_of_latest.end - first_of_latest.start) / 2;
            if self.saved(middle) > all - latest {
                first_of_latest.end = middle;
            } else {
                first_of_latest.start = middle + 1;
            }
        }
        latest
            + self.for_good(first_of_latest.start.saturating_sub(1), first_of_latest.start.saturating_sub(1))
    }

    /// Checkpoints if the best is older than the latest; `None` if impossible.
    fn with_old_best(&self) -> Option<u64> {
        let all = multiples(self.before - 1, self.every);
        let older = all.checked_sub(self.keep_last)?;
        // No later evaluation was better: the latest are multiples of `checkpoint.every`.
        let first_of_latest = older.checked_add(1)?.checked_mul(self.every)?;
        let last = (first_of_latest - 1).checked_div(self.evaluated)? * self.evaluated;
        let stays_anyway = |step: u64| self.keep_every > 0 && step.is_multiple_of(self.keep_every);
        // If two successive evaluations are kept for good, all are.
        let best = [last, last.saturating_sub(self.evaluated)];
        let best = best.into_iter().find(|step| *step > 0 && !stays_anyway(*step))?;
        Some(self.keep_last + self.for_good(first_of_latest - 1, best) + 1)
    }

    fn saved(&self, step: u64) -> u64 {
        let both = multiples(step, lcm(self.every, self.evaluated));
        multiples(step, self.every) + multiples(step, self.evaluated) - both
    }

    /// Saves kept for good: regular ones up to step `due`, best ones up to `better`.
    fn for_good(&self, due: u64, better: u64) -> u64 {
        let of_due = lcm(self.every, self.keep_every);
        let of_better = lcm(self.evaluated, self.keep_every);
        multiples(due, of_due) + multiples(better, of_better) - multiples(better, lcm(of_due, of_better))
    }
}

fn multiples(up_to: u64, period: u64) -> u64 {
    up_to.checked_div(period).unwrap_or(0)
}

/// 0 above 64 bits.
fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a.checked_div(x).and_then(|part| part.checked_mul(b)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use runs::checkpoint::Checkpoints;

    use super::*;

    fn config(steps: u64, every: u64, evaluated: u64, keep_last: usize, keep_every: Option<u64>) -> Config {
        let mut config = Config::load("toy", &[]).expect("a preset");
        (config.train.steps, config.eval.every) = (steps, evaluated);
        let rules = &mut config.checkpoint;
        (rules.every, rules.keep_last, rules.keep_every) = (every, keep_last, keep_every);
        config
    }

    /// Steps of saves, and whether each is the best; bit n of `better` is evaluation n.
    fn saves(config: &Config, better: u64) -> Vec<(u64, bool)> {
        let due = |step: u64, every: u64| every > 0 && step.is_multiple_of(every);
        let steps = 1..config.train.steps;
        let saves = steps.filter_map(|step| {
            let evaluation = due(step, config.eval.every).then(|| step / config.eval.every - 1);
            let is_best = evaluation.is_some_and(|nth| better >> nth & 1 == 1);
            (is_best || due(step, config.checkpoint.every)).then_some((step, is_best))
        });
        saves.chain([(config.train.steps, false)]).collect()
    }

    fn counted(config: &Config) -> u64 {
        let rules = &config.checkpoint;
        let evaluations = multiples(config.train.steps - 1, config.eval.every);
        let courses = (0..1_u64 << evaluations).map(|better| {
            let (mut there, mut best, mut most) = (BTreeSet::new(), None, 0);
            for (step, is_best) in saves(config, better) {
                there.insert(step);
                most = most.max(there.len());
                best = if is_best { Some(step) } else { best };
                let latest: BTreeSet<u64> = there.iter().rev().take(rules.keep_last).copied().collect();
                there.retain(|step| {
                    let for_good = rules.keep_every.is_some_and(|every| step.is_multiple_of(every));
                    latest.contains(step) || Some(*step) == best || for_good
                });
            }
            most as u64
        });
        courses.max().expect("at least one course")
    }

    #[test]
    fn the_count_is_the_most_over_all_courses_of_a_run() {
        for steps in [1, 2, 7, 10] {
            for every in [0, 1, 2, 3, 5] {
                for evaluated in [0, 1, 2, 3, 4] {
                    for keep_last in [1, 2, 3] {
                        for keep_every in [None, Some(1), Some(2), Some(3), Some(4), Some(6)] {
                            let config = config(steps, every, evaluated, keep_last, keep_every);
                            let text = (steps, every, evaluated, keep_last, keep_every);
                            assert_eq!(most(&config), counted(&config), "{text:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_count_matches_the_folders_on_disk() {
        for (every, evaluated, keep_last, keep_every) in
            [(1, 3, 2, None), (0, 2, 2, None), (3, 2, 1, Some(4)), (2, 5, 1, Some(4))]
        {
            let config = config(10, every, evaluated, keep_last, keep_every);
            let evaluations = multiples(9, evaluated);
            let mut most_there = 0;
            for better in 0..1 << evaluations {
                let run = tempfile::tempdir().expect("a folder");
                let checkpoints = Checkpoints::in_run(run.path());
                for (step, is_best) in saves(&config, better) {
                    let there = || std::fs::read_dir(run.path().join("checkpoints")).expect("made").flatten();
                    let saved = checkpoints.save(step, 0, |folder| {
                        most_there = most_there.max(there().filter(|entry| entry.path().is_dir()).count());
                        Ok(std::fs::write(folder.join("numbers"), "some")?)
                    });
                    saved.expect("saved");
                    if is_best {
                        checkpoints.mark_best(step).expect("it is there");
                    }
                    checkpoints.prune(keep_last, keep_every).expect("removed");
                }
            }
            assert_eq!(most(&config), most_there as u64, "{every} {evaluated} {keep_last} {keep_every:?}");
        }
    }
}
