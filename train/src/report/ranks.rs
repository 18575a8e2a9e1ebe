//! Memory of each rank, from the journals that ranks keep in the run's directory.

use std::cmp::Reverse;
use std::fmt::{self, Write};
use std::iter::once;
use std::path::Path;

use backend_offload::Bytes;

use super::chart::{Chart, Look, RUNS};
use super::curves::{bytes, sizes};
use super::history::History;
use crate::figures::grouped;

/// A rank other than 0.
#[derive(Debug)]
pub(super) struct Rank {
    number: usize,
    history: History,
}

/// Ranks of the last start whose journals are in `run`: other hosts may keep theirs.
pub(super) fn others(run: &Path, history: &History) -> Vec<Rank> {
    let read = |number: usize| {
        let history = History::read(&run.join("ranks").join(number.to_string())).ok()?;
        Some(Rank { number, history })
    };
    (1..world(history)).filter_map(read).collect()
}

fn world(history: &History) -> usize {
    history.starts.last().and_then(|start| start.ranks).unwrap_or(1)
}

fn all<'a>(history: &'a History, others: &'a [Rank]) -> impl Iterator<Item = (usize, &'a History)> {
    once((0, history)).chain(others.iter().map(|rank| (rank.number, &rank.history)))
}

fn most_device(history: &History) -> Option<u64> {
    history.steps.iter().filter_map(|step| step.device_bytes).max()
}

/// Draws the ranks with the highest peaks, as many as there are colours.
pub(super) fn memory(history: &History, others: &[Rank]) -> Option<Chart> {
    if others.is_empty() {
        return None;
    }
    let mut ranks: Vec<_> = all(history, others).collect();
    ranks.sort_by_key(|(_, history)| Reverse(most_device(history)));
    ranks.truncate(RUNS.len());
    ranks.sort_by_key(|(number, _)| *number);
    let names: Vec<String> = ranks.iter().map(|(number, _)| format!("rank {number}")).collect();
    let curves = ranks.iter().zip(&names).enumerate().map(|(n, ((_, history), name))| {
        (name.as_str(), Look::Run(n), bytes(&history.steps, |step| step.device_bytes))
    });
    Some(sizes("Memory of ranks", curves.collect()))
}

pub(super) fn table(page: &mut String, history: &History, others: &[Rank]) -> fmt::Result {
    let world = world(history);
    if world < 2 {
        return Ok(());
    }
    writeln!(page, "<h2>Ranks</h2>")?;
    let absent = world - 1 - others.len();
    if absent > 0 {
        writeln!(page, "<p>The journals of {absent} of {world} ranks are not here, but on their hosts.</p>")?;
    }
    writeln!(page, "<p>Each rank's peaks. Gathered are other ranks' weights, for a segment's use.</p>")?;
    writeln!(page, "<div class=\"scroll\"><table>\n<tr><th>Rank</th><th>Steps</th><th>Device memory</th>")?;
    writeln!(page, "<th>Host memory</th><th>Optimizer</th><th>Gathered at once</th></tr>")?;
    for (number, history) in all(history, others) {
        let steps = history.steps.last().map_or(0, |step| step.step);
        let host = history.steps.iter().filter_map(|step| step.host_bytes).max();
        let moments = history.moments;
        let sizes = [
            most_device(history),
            host,
            moments.map(|moments| moments.bytes),
            moments.and_then(|moments| moments.gathered_bytes),
        ];
        write!(page, "<tr><td>{number}</td><td>{}</td>", grouped(steps))?;
        for size in sizes {
            write!(page, "<td>{}</td>", size.map_or("–".to_owned(), |size| Bytes(size).to_string()))?;
        }
        writeln!(page, "</tr>")?;
    }
    writeln!(page, "</table></div>")
}
