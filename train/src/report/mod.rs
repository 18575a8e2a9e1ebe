//! `report.html`: a run on one page, made from `metrics.jsonl` alone.
//!
//! The page loads nothing; a short script shows numbers under the pointer. Generated text is escaped. Equal lines give
//! equal bytes.

mod chart;
mod curves;
mod history;
mod markup;
mod page;
mod scale;
mod tables;
#[cfg(test)]
mod tests;
mod thinning;
mod timeline;

use std::path::Path;

use anyhow::Context;

use history::History;

const FILE: &str = "report.html";

pub(crate) fn write(run: &Path) -> anyhow::Result<()> {
    let history = History::read(run)?;
    let name = run.canonicalize().ok().and_then(|run| Some(run.file_name()?.to_string_lossy().into_owned()));
    let page = page::render(name.as_deref().unwrap_or("a run"), &history);
    let path = run.join(FILE);
    durable::write(&path, page.as_bytes()).with_context(|| format!("writing {}", path.display()))
}
