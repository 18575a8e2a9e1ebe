//! Medians and quartiles of one exchange.

use super::sample::{Kind, Link, Sample};

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cell {
    pub(super) link: Link,
    pub(super) ranks: usize,
    pub(super) kind: Kind,
    pub(super) bytes: u64,
    pub(super) sent: u64,
    pub(super) turns: usize,
    pub(super) seconds: f64,
    /// First and third, of the seconds.
    pub(super) quartiles: (f64, f64),
}

impl Cell {
    /// Lower quartile, for fitting: other load only adds time.
    pub(super) fn undisturbed(&self) -> f64 {
        self.quartiles.0
    }

    pub(super) fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }
}

pub(super) fn cells(samples: &[Sample]) -> Vec<Cell> {
    let key = |sample: &Sample| (sample.link, sample.ranks, sample.kind, sample.bytes);
    let mut keys: Vec<_> = Vec::new();
    for sample in samples {
        if !keys.contains(&key(sample)) {
            keys.push(key(sample));
        }
    }
    let cell = |(link, ranks, kind, bytes)| {
        let own: Vec<&Sample> =
            samples.iter().filter(|sample| key(sample) == (link, ranks, kind, bytes)).collect();
        let seconds: Vec<f64> = own.iter().map(|sample| sample.seconds).collect();
        Cell {
            link,
            ranks,
            kind,
            bytes,
            sent: own.iter().map(|sample| sample.sent).max().unwrap_or(0),
            turns: own.len(),
            seconds: quantile(&seconds, 0.5),
            quartiles: (quantile(&seconds, 0.25), quantile(&seconds, 0.75)),
        }
    };
    keys.into_iter().map(cell).collect()
}

/// NaN if empty.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = share * sorted.len().saturating_sub(1) as f64;
    sorted.get(place.round() as usize).copied().unwrap_or(f64::NAN)
}

/// A baseline, another kind and the baseline again, compared in each turn.
pub(super) type Trio = [Kind; 3];

pub(super) const SUMS: Trio = [Kind::Plain, Kind::Alone, Kind::PlainAgain];
pub(super) const STEPS: Trio = [Kind::Step, Kind::StepUnderMpi, Kind::StepAgain];

/// The second kind's extra time, by ratios within a turn.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Overhead {
    pub(super) bytes: u64,
    pub(super) turns: usize,
    /// Median seconds.
    pub(super) first: f64,
    pub(super) second: f64,
    /// Median ratio of second to first, minus one.
    pub(super) share: f64,
    /// Their quartiles, minus one.
    pub(super) quartiles: (f64, f64),
    /// Median ratio of the repeated first to the first, minus one.
    pub(super) noise: f64,
}

pub(super) fn overheads(samples: &[Sample], [first, second, again]: Trio) -> Vec<Overhead> {
    let cells = cells(samples);
    let overhead = |cell: &Cell| {
        let of = |kind| {
            move |sample: &&Sample| {
                sample.kind == kind && (sample.link, sample.bytes) == (cell.link, cell.bytes)
            }
        };
        let ratios = |kind| {
            let turns = samples.iter().filter(of(kind));
            let ratio = |sample: &Sample| {
                let first = samples.iter().filter(of(first)).find(|first| first.turn == sample.turn)?;
                Some(sample.seconds / first.seconds)
            };
            turns.filter_map(ratio).collect::<Vec<f64>>()
        };
        let other = cells.iter().find(|other| other.kind == second && other.bytes == cell.bytes)?;
        let found = ratios(second);
        Some(Overhead {
            bytes: cell.bytes,
            turns: found.len(),
            first: cell.seconds,
            second: other.seconds,
            share: quantile(&found, 0.5) - 1.0,
            quartiles: (quantile(&found, 0.25) - 1.0, quantile(&found, 0.75) - 1.0),
            noise: quantile(&ratios(again), 0.5) - 1.0,
        })
    };
    cells.iter().filter(|cell| cell.kind == first).filter_map(overhead).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(kind: Kind, seconds: &[f64]) -> Vec<Sample> {
        let sample = |(turn, seconds): (u64, &f64)| Sample {
            link: Link::None,
            ranks: 1,
            kind,
            bytes: 1000,
            turn,
            sent: 0,
            seconds: *seconds,
        };
        (0..).zip(seconds).map(sample).collect()
    }

    #[test]
    fn a_cell_is_the_median_of_its_turns_and_one_slow_turn_does_not_move_it() {
        let cell = cells(&turns(Kind::Exact, &[4.0, 2.0, 900.0, 1.0, 3.0])).remove(0);
        assert_eq!((cell.turns, cell.quartiles), (5, (2.0, 4.0)));
        assert!((cell.seconds - 3.0).abs() < 1e-12 && (cell.rate() - 1000.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn links_ranks_kinds_and_sizes_are_cells_of_their_own() {
        let samples = super::super::sample::tests::samples();
        assert_eq!(cells(&samples).len(), samples.len());
    }

    #[test]
    fn overhead_is_compared_within_a_turn_so_that_a_machine_that_slows_down_changes_nothing() {
        let plain = turns(Kind::Plain, &[1.0, 2.0, 4.0]);
        let alone = turns(Kind::Alone, &[1.01, 2.02, 4.04]);
        let again = turns(Kind::PlainAgain, &[1.0, 2.0, 4.0]);
        let found = overheads(&[plain, alone, again].concat(), SUMS).remove(0);
        assert!((found.share - 0.01).abs() < 1e-9 && found.noise.abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn an_overhead_has_the_quartiles_of_its_turns_and_ignores_other_kinds() {
        let step = turns(Kind::Step, &[1.0; 5]);
        let under_mpi = turns(Kind::StepUnderMpi, &[1.0, 1.01, 1.02, 1.04, 9.0]);
        let again = turns(Kind::StepAgain, &[0.99; 5]);
        let samples = [step, under_mpi, again].concat();
        let found = overheads(&samples, STEPS).remove(0);
        let near = |found: f64, expected: f64| (found - expected).abs() < 1e-9;
        assert!(near(found.share, 0.02) && near(found.noise, -0.01), "{found:?}");
        assert!(near(found.quartiles.0, 0.01) && near(found.quartiles.1, 0.04), "{found:?}");
        assert_eq!(found.turns, 5);
        assert!(overheads(&samples, SUMS).is_empty());
    }
}
