//! Lines of steps on standard error; on a terminal one changes with every step.

use std::io::{IsTerminal, Write, stderr};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// Unless `--log-every` counts steps.
const STAYS_EVERY: Duration = Duration::from_secs(10);

const LEGEND: &str = "each line: loss per token; learning rate; norm of all gradients; time of the step; tokens per second; \
                      memory. `moved` are bytes over the link, `stall` is the share of the step that waits for them";

#[derive(Debug)]
pub(crate) struct StepLines {
    every: Option<NonZeroU64>,
    changes: bool,
    stayed: Option<Instant>,
}

impl StepLines {
    /// Every so many steps a line stays; `None` means every ten seconds.
    pub(crate) fn new(every: Option<NonZeroU64>) -> Self {
        Self { every, changes: stderr().is_terminal(), stayed: None }
    }

    pub(crate) fn show(&mut self, [step, steps]: [u64; 2], line: &str, short: &str) {
        if self.stays([step, steps], Instant::now()) {
            if self.stayed.replace(Instant::now()).is_none() {
                eprintln!("{}{LEGEND}", clear());
            }
            eprintln!("{}{line}", clear());
        } else if self.changes {
            // A closed terminal is no reason to stop training.
            _ = write!(stderr(), "{}{short}\r", clear());
        }
    }

    /// First, last, and due ones between.
    fn stays(&self, [step, steps]: [u64; 2], now: Instant) -> bool {
        let Some(before) = self.stayed else { return true };
        step == steps
            || match self.every {
                Some(count) => step.is_multiple_of(count.get()),
                None => now.saturating_duration_since(before) >= STAYS_EVERY,
            }
    }
}

pub(crate) fn clear() -> &'static str {
    if stderr().is_terminal() { "\x1b[2K" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_line_stay_and_those_due_between() {
        let now = Instant::now();
        let lines = |every: Option<u64>, stayed| StepLines {
            every: every.and_then(NonZeroU64::new),
            changes: false,
            stayed,
        };
        assert!(lines(None, None).stays([7, 100], now) && lines(Some(50), None).stays([7, 100], now));
        assert!(lines(None, Some(now)).stays([100, 100], now));
        assert!(!lines(None, Some(now)).stays([8, 100], now + STAYS_EVERY / 2));
        assert!(lines(None, Some(now)).stays([8, 100], now + STAYS_EVERY));
        assert!(!lines(Some(50), Some(now)).stays([49, 100], now + STAYS_EVERY));
        assert!(lines(Some(50), Some(now)).stays([50, 100], now));
    }
}
