//! A model at a budget, with its outcome: a record's raw data.

use crate::records::csv;

use super::{
    budget::{Budget, Limit},
    summary::Summary,
};

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cell {
    pub(super) model: String,
    pub(super) budget: Budget,
    /// `None` without a limit, or for a share without a peak.
    pub(super) limit: Limit,
    pub(super) outcome: Outcome,
}

/// All but `Fits` carry a one-line reason.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    Fits(Box<Summary>),
    DoesNotFit(String),
    /// The kernel sends a signal when memory runs out.
    Killed(String),
    OutOfTime(String),
    Skipped(String),
    /// For a reason other than memory.
    Failed(String),
}

impl Outcome {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Fits(_) => "fits",
            Self::DoesNotFit(_) => "does not fit",
            Self::Killed(_) => "killed",
            Self::OutOfTime(_) => "out of time",
            Self::Skipped(_) => "skipped",
            Self::Failed(_) => "failed",
        }
    }

    pub(super) fn reason(&self) -> Option<&str> {
        match self {
            Self::Fits(_) => None,
            Self::DoesNotFit(reason)
            | Self::Killed(reason)
            | Self::OutOfTime(reason)
            | Self::Skipped(reason)
            | Self::Failed(reason) => Some(reason),
        }
    }

    pub(super) fn summary(&self) -> Option<&Summary> {
        if let Self::Fits(summary) = self { Some(summary) } else { None }
    }
}

impl Cell {
    pub(super) fn summary(&self) -> Option<&Summary> {
        self.outcome.summary()
    }

    pub(super) fn reference<'a>(&self, cells: &'a [Self]) -> Option<&'a Summary> {
        let is_it = |cell: &&Self| cell.model == self.model && cell.budget == Budget::Unlimited;
        cells.iter().find(is_it)?.summary()
    }
}

const OWN_COLUMNS: [&str; 5] = ["model", "budget", "budget_bytes", "outcome", "reason"];

pub(super) fn header() -> Vec<String> {
    OWN_COLUMNS.iter().chain(Summary::COLUMNS).map(|&name| name.to_owned()).collect()
}

pub(super) fn row(cell: &Cell) -> Vec<String> {
    let own = [
        cell.model.clone(),
        cell.budget.to_string(),
        cell.limit.map(|bytes| bytes.to_string()).unwrap_or_default(),
        cell.outcome.name().to_owned(),
        cell.outcome.reason().unwrap_or_default().to_owned(),
    ];
    let nothing = || vec![String::new(); Summary::COLUMNS.len()];
    own.into_iter().chain(cell.summary().map_or_else(nothing, Summary::to_columns)).collect()
}

pub(super) fn to_csv(cells: &[Cell]) -> String {
    let rows: Vec<Vec<String>> = std::iter::once(header()).chain(cells.iter().map(row)).collect();
    csv::write(&rows)
}

#[cfg(test)]
pub(super) mod tests {
    use super::{super::summary::tests::summary, *};

    pub(in super::super) fn three() -> Vec<Cell> {
        let spilling = Summary {
            tokens_per_second: 2160.0,
            peak_device_bytes: 20_000_000,
            peak_host_bytes: 16 << 20,
            bytes_out: 100 << 20,
            bytes_in: 200 << 20,
            stall_seconds: 1.0,
            ..summary()
        };
        let cell = |budget: &str, limit, outcome| Cell {
            model: "toy".to_owned(),
            budget: budget.parse().unwrap(),
            limit,
            outcome,
        };
        vec![
            cell("unlimited", None, Outcome::Fits(Box::new(summary()))),
            cell("50%", Some(20_000_000), Outcome::Fits(Box::new(spilling))),
            cell("25%", Some(10_000_000), Outcome::DoesNotFit("step 1: \"mul\", wants 12 MiB".to_owned())),
        ]
    }

    #[test]
    fn a_cell_is_a_row_of_its_columns_and_leaves_those_empty_that_it_lacks() {
        let mut cells = three();
        let Outcome::Fits(summary) = &mut cells[0].outcome else { unreachable!("the first one fits") };
        (summary.loss, summary.step_ms_median, summary.bytes_to_disk) = (None, Some(0.1 + 0.2), Some(7));
        let rows = csv::read(&to_csv(&cells)).unwrap();
        let column = |name: &str| rows[0].iter().position(|column| column == name).unwrap();
        let values = |row: usize| {
            ["model", "budget_bytes", "outcome", "step_ms_median", "loss", "bytes_to_disk"]
                .map(|name| rows[row][column(name)].as_str())
        };
        assert_eq!(values(1), ["toy", "", "fits", "0.30000000000000004", "", "7"]);
        assert_eq!(values(3), ["toy", "10000000", "does not fit", "", "", ""]);
        assert_eq!(rows[3][column("reason")], "step 1: \"mul\", wants 12 MiB");
        assert!(rows.iter().all(|row| row.len() == rows[0].len()));
    }

    #[test]
    fn a_cell_is_compared_with_the_unlimited_run_of_its_own_model() {
        let mut cells = three();
        assert_eq!(cells[1].reference(&cells), Some(&summary()));
        let stranger = Cell { model: "other".to_owned(), ..cells[1].clone() };
        assert_eq!(stranger.reference(&cells), None);
        cells[0].outcome = Outcome::Killed("signal: 9".to_owned());
        assert_eq!(cells[1].reference(&cells), None);
    }
}
