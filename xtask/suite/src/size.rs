//! The three sizes of the test suite.

use std::{env, ops::Range, str::FromStr};

/// Variable that names the size: `quick`, `gate` or `full`.
pub const SIZE: &str = "SPILLWAY_TESTS";

/// How many cases of each promise run. Larger sizes run all tests of smaller ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// Minutes: each promise that is fast enough, once.
    Quick,
    /// Each promise of ARCHITECTURE.md; required of a change.
    Gate,
    /// Hours: every schedule, seed, kill and program, with fresh random cases.
    Full,
}

impl Size {
    /// This size's argument.
    pub fn pick<T>(self, quick: T, gate: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Gate => gate,
            Self::Full => full,
        }
    }

    /// As [`SIZE`] names it.
    pub fn name(self) -> &'static str {
        self.pick("quick", "gate", "full")
    }

    fn first<T>(self, quick: usize, all: &[T]) -> &[T] {
        &all[..self.pick(quick, all.len(), all.len())]
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = [Self::Quick, Self::Gate, Self::Full].into_iter().find(|size| size.name() == name);
        found.ok_or_else(|| format!("{SIZE} is `{name}`; it may be `quick`, `gate` or `full`"))
    }
}

/// The size of this run.
///
/// # Panics
/// If `SPILLWAY_TESTS` names no size.
pub fn size() -> Size {
    match env::var(SIZE) {
        Ok(name) => name.parse().unwrap_or_else(|error: String| panic!("{error}")),
        Err(_) => Size::Quick,
    }
}

/// Variable that gives the full suite's number of random schedules.
const SEEDS: &str = "SPILLWAY_SEEDS";

/// Seeds of random schedules: one; in the full suite twenty, or `SPILLWAY_SEEDS`, others in each run.
///
/// # Panics
/// If the variables hold no numbers.
pub fn schedule_seeds() -> Range<u64> {
    let number = |name: &str, otherwise| match env::var(name) {
        Ok(text) => text.parse::<u64>().unwrap_or_else(|_| panic!("{name} is `{text}`, not a number")),
        Err(_) => otherwise,
    };
    if size() < Size::Full {
        return 1..2;
    }
    let first = 1 + number("PROPTEST_RNG_SEED", 0) % 1_000_000;
    first..first + number(SEEDS, 20)
}

/// Random cases: `usual`, or ten times as many in the full suite.
pub fn cases(usual: u32) -> u32 {
    size().pick(usual, usual, usual * 10)
}

/// The first `quick` cases in the quick suite, all in larger ones.
///
/// # Panics
/// If there are fewer cases.
pub fn first<T>(quick: usize, all: &[T]) -> &[T] {
    size().first(quick, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_chosen_by_its_name_and_a_wrong_name_is_refused() {
        let chosen = ["quick", "gate", "full"].map(|name| name.parse::<Size>().unwrap().pick(1, 2, 3));
        assert_eq!(chosen, [1, 2, 3]);
        assert_eq!(
            "nightly".parse::<Size>(),
            Err("SPILLWAY_TESTS is `nightly`; it may be `quick`, `gate` or `full`".to_owned())
        );
    }

    #[test]
    fn the_quick_suite_takes_the_first_cases_and_the_larger_ones_take_all() {
        let taken = [Size::Quick, Size::Gate, Size::Full].map(|size| size.first(1, &["a", "b", "c"]).len());
        assert_eq!(taken, [1, 3, 3]);
    }
}
