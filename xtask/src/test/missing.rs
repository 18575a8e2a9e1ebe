//! Tests that did not run, by missing need, as crate `suite` writes them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use suite::Need;

#[derive(Debug, Default)]
pub(super) struct Missing(BTreeMap<Need, BTreeSet<String>>);

impl Missing {
    /// Lines of need, tab, test, tab and program; repeats count once. Programs may have tests of one name.
    pub(super) fn read(lines: &str) -> Self {
        let mut missing = BTreeMap::<Need, BTreeSet<String>>::new();
        for (name, test) in lines.lines().filter_map(|line| line.split_once('\t')) {
            if let Some(need) = Need::ALL.into_iter().find(|need| need.name() == name) {
                missing.entry(need).or_default().insert(test.to_owned());
            }
        }
        Self(missing)
    }

    pub(super) fn tests(&self) -> usize {
        self.0.values().flatten().collect::<BTreeSet<_>>().len()
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (need, tests)) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}{need} {} ({})", tests.len(), need.remedy())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_asks_twice_or_lacks_two_things_is_one_test() {
        let missing = Missing::read("mpi\ta\nmpi\ta\nmpi-5\ta\nmpi\tb\n");
        assert_eq!(missing.tests(), 2);
        assert!(missing.to_string().starts_with("mpi 2 (apt-get install openmpi-bin"), "{missing}");
    }

    #[test]
    fn tests_of_one_name_in_two_programs_are_two_tests() {
        assert_eq!(Missing::read("mpi\ta\tit-1\nmpi\ta\tit-2\nmpi-5\ta\tit-2\n").tests(), 2);
    }
}
