//! Tokens per second of a record's rows, read back for a verdict.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use clap::ValueEnum as _;

use crate::records::csv;

use super::{
    capped::{self, Way},
    record, suite,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// The trainer, with its optimizer on the device.
    Device,
    /// The trainer, with its optimizer on the host.
    Host,
    Peer(Way),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Speed {
    pub(crate) model: String,
    pub(crate) by: By,
    /// As asked for; `None` without a limit.
    pub(crate) budget: Option<String>,
    /// Its bytes, if they are known.
    pub(crate) limit: Option<u64>,
    pub(crate) outcome: String,
    /// If it fits.
    pub(crate) tokens_per_second: Option<f64>,
}

/// Of a comparison, which has the trainer's rows, too; else of a sweep.
const TABLES: [&str; 2] = [capped::ROWS, record::CELLS];

/// Whether `folder` holds a record of `bench-vram`, finished or not.
pub(crate) fn is_record(folder: &Path) -> bool {
    TABLES.iter().any(|table| folder.join(table).is_file())
}

/// Rows of a model in a way that is none of [`By`] are left out.
pub(crate) fn read(folder: &Path) -> Result<Vec<Speed>> {
    let table = TABLES.iter().map(|table| folder.join(table)).find(|path| path.is_file());
    let path = table.with_context(|| format!("{} holds no record of models", folder.display()))?;
    let read = || parse(&fs::read_to_string(&path)?);
    read().with_context(|| format!("reading {}", path.display()))
}

fn parse(text: &str) -> Result<Vec<Speed>> {
    let rows = csv::read(text)?;
    let (header, rows) = rows.split_first().context("it is empty")?;
    let place = |name: &str| {
        header.iter().position(|column| column == name).with_context(|| format!("it lacks `{name}`"))
    };
    let [model, budget, limit] = [place("model")?, place("budget")?, place("budget_bytes")?];
    let [outcome, rate] = [place("outcome")?, place("tokens_per_second")?];
    let speed = |row: &Vec<String>| {
        let cell = |place: usize| row.get(place).map(String::as_str).unwrap_or_default();
        let (model, by) = named(cell(model))?;
        Some(Speed {
            model: model.to_owned(),
            by,
            budget: Some(cell(budget)).filter(|budget| *budget != "unlimited").map(str::to_owned),
            limit: cell(limit).parse().ok(),
            outcome: cell(outcome).to_owned(),
            tokens_per_second: cell(rate).parse().ok(),
        })
    };
    Ok(rows.iter().filter_map(speed).collect())
}

fn named(name: &str) -> Option<(&str, By)> {
    let Some((model, way)) = name.split_once(", ") else { return Some((name, By::Device)) };
    if way == suite::ON_THE_HOST {
        return Some((model, By::Host));
    }
    let peer = Way::value_variants().iter().find(|known| known.name() == way)?;
    Some((model, By::Peer(*peer)))
}

#[cfg(test)]
mod tests {
    use super::{
        super::cell::{self, tests::three},
        *,
    };

    #[test]
    fn a_sweeps_cells_read_back_with_budget_outcome_and_rate() {
        let speeds = parse(&cell::to_csv(&three())).unwrap();
        assert!(speeds.iter().all(|speed| speed.model == "toy" && speed.by == By::Device));
        let figures: Vec<_> = speeds
            .iter()
            .map(|speed| {
                (speed.budget.as_deref(), speed.limit, speed.outcome.as_str(), speed.tokens_per_second)
            })
            .collect();
        assert_eq!(
            figures,
            [
                (None, None, "fits", Some(3000.0)),
                (Some("50%"), Some(20_000_000), "fits", Some(2160.0)),
                (Some("25%"), Some(10_000_000), "does not fit", None),
            ]
        );
    }

    #[test]
    fn a_rows_name_says_who_trained() {
        let way = |way: Way| format!("gpt-124m, {}", way.name());
        assert_eq!(named("gpt-124m, optimizer on the host"), Some(("gpt-124m", By::Host)));
        for known in Way::value_variants() {
            assert_eq!(named(&way(*known)), Some(("gpt-124m", By::Peer(*known))));
        }
        assert_eq!(named("gpt-124m, 8 together"), None);
    }

    #[test]
    fn a_folder_without_a_table_and_a_table_that_is_cut_off_are_errors() {
        let folder = std::env::temp_dir().join(format!("speeds-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let error = || format!("{:#}", read(&folder).unwrap_err());
        let (empty, without) = (is_record(&folder), error());
        fs::write(folder.join(record::CELLS), "model,budget\ntoy").unwrap();
        let (there, cut) = (is_record(&folder), error());
        fs::write(folder.join(capped::ROWS), "model,budget\n").unwrap();
        let lacking = error();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!((empty, there), (false, true));
        assert!(without.ends_with("holds no record of models"), "{without}");
        assert!(cut.contains("cells.csv") && cut.ends_with("the last line is cut off"), "{cut}");
        assert!(lacking.contains("peer.csv") && lacking.ends_with("it lacks `budget_bytes`"), "{lacking}");
    }
}
