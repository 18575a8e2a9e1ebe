//! `report.html`: one run, or several beside each other, from `metrics.jsonl` alone.
//!
//! The page loads nothing; a short script shows numbers under the pointer. Generated text is escaped. Equal lines give
//! equal bytes.

mod chart;
mod compare;
mod curves;
mod history;
mod markup;
mod page;
mod ranks;
mod scale;
mod tables;
#[cfg(test)]
mod tests;
mod thinning;
mod timeline;
mod verdict;

use std::path::{Path, PathBuf};

use anyhow::Context;

use history::History;

const FILE: &str = "report.html";

pub(crate) fn write(run: &Path) -> anyhow::Result<PathBuf> {
    let history = History::read(run)?;
    let page = page::render(&name(run), &history, &ranks::others(run, &history));
    let path = run.join(FILE);
    save(&path, &page)?;
    Ok(path)
}

pub(crate) fn compare(runs: &[PathBuf], to: &Path) -> anyhow::Result<()> {
    let read = |run: &PathBuf| Ok((name(run), History::read(run)?));
    let runs = runs.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
    save(to, &compare::render(&runs))
}

fn name(run: &Path) -> String {
    let folder =
        run.canonicalize().ok().and_then(|run| Some(run.file_name()?.to_string_lossy().into_owned()));
    folder.unwrap_or_else(|| "a run".to_owned())
}

fn save(path: &Path, page: &str) -> anyhow::Result<()> {
    durable::write(path, page.as_bytes()).with_context(|| format!("writing {}", path.display()))
}
