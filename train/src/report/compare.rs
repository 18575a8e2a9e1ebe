//! Several runs on one page: a table, and charts with a curve each.

use std::fmt::{self, Write};

use backend_offload::Bytes;

use super::chart::{Chart, Curve, Look};
use super::curves::{SMOOTHED, bytes, chart, line, points, series, share, sizes};
use super::history::{History, Update};
use super::markup::Escaped;
use super::page;
use super::thinning::{Point, smooth};
use crate::figures::{duration, grouped};

type Named = (String, History);

pub(super) fn render(runs: &[Named]) -> String {
    let mut page = String::new();
    write(&mut page, runs).expect("a string takes everything");
    page
}

fn write(page: &mut String, runs: &[Named]) -> fmt::Result {
    let names: Vec<&str> = runs.iter().map(|(name, _)| name.as_str()).collect();
    page::head(page, &names.join(", "))?;
    table(page, runs)?;
    page::draw(page, &charts(runs))?;
    page::foot(page)
}

fn table(page: &mut String, runs: &[Named]) -> fmt::Result {
    writeln!(
        page,
        "<div class=\"scroll\"><table>\n<tr><th>Run</th><th>Device</th><th>Device budget</th><th>Steps</th>"
    )?;
    writeln!(
        page,
        "<th>Last loss</th><th>Best validation loss</th><th>Time</th><th>Most device memory</th></tr>"
    )?;
    for (name, history) in runs {
        let (start, last) = (history.starts.last(), history.steps.last());
        let text = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
        let best = history.evals.iter().rfind(|eval| eval.best).and_then(|eval| eval.loss);
        let most = history.steps.iter().filter_map(|step| step.device_bytes).max();
        let budget = start.map(|start| {
            start.device_budget.map_or("unlimited".to_owned(), |budget| Bytes(budget).to_string())
        });
        let cells = [
            start.map(|start| start.device.clone()),
            budget,
            last.map(|last| format!("{} of {}", grouped(last.step), grouped(last.steps))),
            last.and_then(|last| last.loss).map(|loss| format!("{loss:.4}")),
            best.map(|loss| format!("{loss:.4}")),
            last.and_then(|last| last.seconds).map(duration),
            most.map(|most| Bytes(most).to_string()),
        ];
        write!(page, "<tr><td>{}</td>", Escaped(name))?;
        cells.into_iter().try_for_each(|cell| write!(page, "<td>{}</td>", Escaped(&text(cell))))?;
        writeln!(page, "</tr>")?;
    }
    writeln!(page, "</table></div>")
}

fn charts(runs: &[Named]) -> Vec<Chart> {
    let curves = |value: fn(&[Update]) -> Vec<Point>| each(runs, |history| averaged(value(&history.steps)));
    let sized = |title, value: fn(&Update) -> Option<u64>| {
        let curves = runs.iter().enumerate().map(|(n, (name, history))| {
            (name.as_str(), Look::Run(n), averaged(bytes(&history.steps, value)))
        });
        sizes(title, curves.collect())
    };
    let moved = runs.iter().enumerate().map(|(n, (name, history))| {
        let on_host = history.steps_on_host();
        (name.as_str(), Look::Run(n), averaged(bytes(&history.steps, |step| both_ways(step, on_host))))
    });
    let moved = moved.collect();
    let validation = each(runs, |history| points(&history.evals, |eval| eval.step, |eval| eval.loss));
    let from_zero = |chart: Chart| Chart { from_zero: true, ..chart };
    let mut charts = vec![
        chart("Loss", "nats per token", curves(|steps| series(steps, |step| step.loss))),
        chart("Validation loss", "nats per token", validation),
        from_zero(chart(
            "Throughput",
            "tokens per second",
            curves(|steps| series(steps, |step| step.tokens_per_second)),
        )),
        sized("Memory", |step| step.device_bytes),
        sizes("Moved per step", moved),
        from_zero(chart(
            "Waiting for copies",
            "percent of the step",
            curves(|steps| share(steps, |step| step.stall_ms)),
        )),
    ];
    charts.retain(|chart| !chart.is_empty());
    charts
}

fn both_ways(step: &Update, on_host: bool) -> Option<u64> {
    let [to, from] = step.over_the_link(on_host);
    Some(to? + from?)
}

fn each(runs: &[Named], points: impl Fn(&History) -> Vec<Point>) -> Vec<Curve> {
    let curves =
        runs.iter().enumerate().map(|(n, (name, history))| line(name, Look::Run(n), points(history)));
    curves.filter(|curve| !curve.points.is_empty()).collect()
}

fn averaged(points: Vec<Point>) -> Vec<Point> {
    let span = points.len() / SMOOTHED;
    if span < 2 { points } else { smooth(&points, span) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_optimizer_on_the_host_moves_gradients_and_weights_too() {
        let [bytes_in, bytes_out, bytes_read, bytes_written] = [Some(1), Some(2), Some(40), Some(800)];
        let step = Update { bytes_out, bytes_in, bytes_read, bytes_written, ..Update::default() };
        assert_eq!([true, false].map(|on_host| both_ways(&step, on_host)), [Some(843), Some(3)]);
    }
}
