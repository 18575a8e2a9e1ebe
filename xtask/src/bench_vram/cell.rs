//! One cell: a model at a budget, and its outcome. Cells are the raw data of a record.

use anyhow::{Context, Result, bail, ensure};

use crate::records::csv;

use super::{
    budget::{Budget, Limit},
    summary::Summary,
};

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cell {
    pub(super) model: String,
    pub(super) budget: Budget,
    /// The budget in bytes; `None` without a limit, and if a share has no peak to refer to.
    pub(super) limit: Limit,
    pub(super) outcome: Outcome,
}

/// Every outcome except `Fits` carries its reason in one line.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    Fits(Box<Summary>),
    DoesNotFit(String),
    /// Ended by a signal; the kernel sends one when memory runs out.
    Killed(String),
    OutOfTime(String),
    Skipped(String),
    /// Failed for a reason unrelated to memory.
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

    fn named(name: &str, reason: &str, summary: impl FnOnce() -> Result<Summary>) -> Result<Self> {
        let reason = reason.to_owned();
        Ok(match name {
            "fits" => Self::Fits(Box::new(summary()?)),
            "does not fit" => Self::DoesNotFit(reason),
            "killed" => Self::Killed(reason),
            "out of time" => Self::OutOfTime(reason),
            "skipped" => Self::Skipped(reason),
            "failed" => Self::Failed(reason),
            other => bail!("the outcome `{other}` is unknown"),
        })
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

pub(super) fn from_csv(text: &str) -> Result<Vec<Cell>> {
    let mut rows = csv::read(text)?.into_iter();
    let header = rows.next().context("the table is empty")?;
    (2..)
        .zip(rows)
        .map(|(line, row): (usize, _)| parse(&header, &row).with_context(|| format!("line {line}")))
        .collect()
}

fn parse(header: &[String], row: &[String]) -> Result<Cell> {
    ensure!(row.len() == header.len(), "{} fields under {} columns", row.len(), header.len());
    let text = |name: &str| {
        let at = header.iter().position(|column| column == name);
        at.map(|at| row[at].as_str()).with_context(|| format!("there is no column `{name}`"))
    };
    let bytes = text("budget_bytes")?;
    Ok(Cell {
        model: text("model")?.to_owned(),
        budget: text("budget")?.parse()?,
        limit: (!bytes.is_empty()).then(|| bytes.parse()).transpose().context("column `budget_bytes`")?,
        outcome: Outcome::named(text("outcome")?, text("reason")?, || Summary::from_columns(text))?,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::{super::summary::tests::summary, *};

    /// A model that fits at half of its peak, and not at a quarter.
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
    fn cells_read_back_from_their_record() {
        let mut cells = three();
        let Outcome::Fits(summary) = &mut cells[0].outcome else { unreachable!("the first one fits") };
        (summary.loss, summary.step_ms_median, summary.seconds) = (None, Some(0.1 + 0.2), 1e-7);
        summary.bytes_to_disk = Some(7);
        (summary.least_in, summary.joules_per_kilotoken) = (Some(8), Some(0.3));
        assert_eq!(from_csv(&to_csv(&cells)).unwrap(), cells);
        for name in ["killed", "out of time", "skipped", "failed"] {
            cells[2].outcome = Outcome::named(name, "why", || unreachable!("it did not fit")).unwrap();
            assert_eq!(cells[2].outcome.name(), name);
            assert_eq!(from_csv(&to_csv(&cells)).unwrap(), cells);
        }
    }

    #[test]
    fn an_invalid_record_is_refused_with_line_and_column() {
        let text = to_csv(&three());
        let error = |from: &str, to: &str| format!("{:#}", from_csv(&text.replace(from, to)).unwrap_err());
        assert!(error("40000000", "lots").starts_with("line 2: column `peak_device_bytes`: `lots`"));
        assert!(error("does not fit", "perhaps").starts_with("line 4: the outcome `perhaps`"));
        assert!(error("parameters", "params").contains("no column `parameters`"));
        let columns = OWN_COLUMNS.len() + Summary::COLUMNS.len();
        let short = format!("line 3: {} fields under {columns} columns", columns - 1);
        assert!(error("toy,50%", "toy").contains(&short));
        let since = Summary::COLUMNS.iter().position(|name| *name == "bytes_to_disk").unwrap();
        let older: Vec<Vec<String>> = csv::read(&text)
            .unwrap()
            .into_iter()
            .map(|row| row.into_iter().take(OWN_COLUMNS.len() + since).collect())
            .collect();
        assert_eq!(from_csv(&csv::write(&older)).unwrap(), three(), "before there was a disk");
        assert!(from_csv("").is_err());
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
