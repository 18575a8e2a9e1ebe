//! The work that follows a step, from configuration and progress.

use runs::config::Config;

use super::Progress;
use crate::exit::Ending;

/// Equal on all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) evaluate: bool,
    pub(crate) sample: bool,
    pub(crate) save: bool,
    /// Follows the other work.
    pub(crate) ending: Option<Ending>,
}

const EVALUATE: u8 = 1;
const SAMPLE: u8 = 2;
const SAVE: u8 = 4;
const ENDING: u8 = 0b1_1000;
const ENDINGS: [(Option<Ending>, u8); 4] =
    [(None, 0), (Some(Ending::Done), 8), (Some(Ending::Interrupted), 16), (Some(Ending::Diverged), 24)];

impl Due {
    /// Work due since step `before`, the last one with equal weights. `stop` is this process's own request.
    pub(crate) fn after(config: &Config, progress: &Progress, before: u64, stop: bool) -> Self {
        if diverged(config, progress.withheld) {
            return Self { save: true, ending: Some(Ending::Diverged), ..Self::default() };
        }

        if progress.step >= config.train.steps {
            return Self::at_the_end(config);
        }

        let in_turn = |every: u64| every > 0 && progress.step / every > before / every;
        let due = Self {
            evaluate: in_turn(config.eval.every),
            sample: in_turn(config.eval.sample_every),
            save: in_turn(config.checkpoint.every),
            ending: None,
        };
        if stop { due.with_stop() } else { due }
    }

    pub(crate) fn at_the_end(config: &Config) -> Self {
        Self { evaluate: true, sample: true, save: config.checkpoint.last, ending: Some(Ending::Done) }
    }

    pub(crate) fn stops(self) -> bool {
        self.ending == Some(Ending::Interrupted)
    }

    /// Unless the run ends anyway.
    pub(crate) fn with_stop(self) -> Self {
        match self.ending {
            None => Self { save: true, ending: Some(Ending::Interrupted), ..self },
            Some(_) => self,
        }
    }

    pub(crate) fn to_byte(self) -> u8 {
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let ending = ENDINGS.iter().find(|(ending, _)| *ending == self.ending).map_or(0, |(_, bits)| *bits);
        flag(self.evaluate, EVALUATE) | flag(self.sample, SAMPLE) | flag(self.save, SAVE) | ending
    }

    pub(crate) fn from_byte(byte: u8) -> Self {
        let ending = ENDINGS.iter().find(|(_, bits)| *bits == byte & ENDING).and_then(|(ending, _)| *ending);
        let is_set = |bit: u8| byte & bit != 0;
        Self { evaluate: is_set(EVALUATE), sample: is_set(SAMPLE), save: is_set(SAVE), ending }
    }
}

pub(super) fn diverged(config: &Config, withheld: u64) -> bool {
    withheld >= config.train.bad_steps
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERYTHING: Due = Due { evaluate: true, sample: true, save: true, ending: None };

    fn config(last: bool) -> Config {
        let mut config = Config::load("toy", &[]).expect("a preset");
        (config.train.steps, config.train.bad_steps) = (12, 3);
        (config.eval.every, config.eval.sample_every) = (4, 5);
        (config.checkpoint.every, config.checkpoint.last) = (6, last);
        config
    }

    fn at(step: u64) -> Progress {
        Progress { step, ..Progress::default() }
    }

    fn steps(equal_every: u64) -> [Vec<u64>; 3] {
        let config = config(true);
        let due = |step: u64| Due::after(&config, &at(step), step - equal_every, false);
        [|due: Due| due.evaluate, |due: Due| due.sample, |due: Due| due.save]
            .map(|kind| (1..12).filter(|step| step % equal_every == 0 && kind(due(*step))).collect())
    }

    #[test]
    fn work_follows_every_so_many_steps_or_the_next_ones_with_equal_weights() {
        assert_eq!(steps(1), [vec![4, 8], vec![5, 10], vec![6]]);
        assert_eq!(steps(3), [vec![6, 9], vec![6], vec![6]]);
        assert_eq!(steps(5), [vec![5, 10], vec![5, 10], vec![10]]);
    }

    #[test]
    fn a_stop_ends_with_a_checkpoint() {
        let due = |step: u64| Due::after(&config(true), &at(step), step - 3, true);
        assert_eq!(due(3), Due { save: true, ending: Some(Ending::Interrupted), ..Due::default() });
        assert_eq!(due(6), EVERYTHING.with_stop());
    }

    #[test]
    fn the_last_step_ends_the_run_though_a_stop_was_asked_for() {
        let end = Due { ending: Some(Ending::Done), ..EVERYTHING };
        assert_eq!(Due::after(&config(true), &at(12), 10, true), end);
        assert_eq!(Due::after(&config(false), &at(12), 10, false), Due { save: false, ..end });
    }

    #[test]
    fn steps_without_a_usable_gradient_end_with_a_checkpoint_and_nothing_else() {
        let diverged = Due { save: true, ending: Some(Ending::Diverged), ..Due::default() };
        for step in [4, 12] {
            let progress = Progress { withheld: 3, ..at(step) };
            assert_eq!(Due::after(&config(false), &progress, 0, true), diverged);
        }
        let twice = Progress { withheld: 2, ..at(1) };
        assert_eq!(Due::after(&config(true), &twice, 0, false), Due::default());
    }

    #[test]
    fn a_byte_holds_every_decision() {
        for (ending, _) in ENDINGS {
            for flags in 0..8_u8 {
                let [evaluate, sample, save] = [0, 1, 2].map(|bit| flags >> bit & 1 == 1);
                let due = Due { evaluate, sample, save, ending };
                assert_eq!(Due::from_byte(due.to_byte()), due);
            }
        }
    }
}
