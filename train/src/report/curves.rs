//! The curves of a run.

use super::chart::{Chart, Curve, Look, Marks};
use super::history::{History, Update};
use super::ranks::{self, Rank};
use super::thinning::{Point, smooth};

/// Larger values would hide all others.
const LARGEST: f64 = 1e100;

pub(super) const SMOOTHED: usize = 50;

/// Longer runs get a second chart of the loss.
const LONG: usize = 100;

pub(super) fn charts(history: &History, others: &[Rank]) -> Vec<Chart> {
    let steps = &history.steps;
    let withheld = || Marks {
        name: "withheld step",
        class: "withheld",
        steps: history.withheld.iter().map(|record| record.step).collect(),
    };
    let saved = history.checkpoints.iter().filter(|record| record.error.is_none());
    let checkpoints =
        Marks { name: "checkpoint", class: "checkpoint", steps: saved.map(|record| record.step).collect() };
    let validation = Curve {
        name: "validation".to_owned(),
        look: Look::SecondDotted,
        points: points(&history.evals, |eval| eval.step, |eval| eval.loss),
    };

    let mut loss = chart("Loss", "nats per token", smoothed("training", series(steps, |step| step.loss)));
    loss.curves.extend(Some(validation).filter(|curve| !curve.points.is_empty()));
    loss.marks = vec![checkpoints, withheld()];
    let mut norm =
        chart("Gradient norm", "before clipping", smoothed("norm", series(steps, |step| step.gnorm)));
    norm.marks = vec![withheld()];
    let rate = chart("Learning rate", "", vec![line("rate", Look::First, series(steps, |step| step.lr))]);
    let speed = smoothed("throughput", series(steps, |step| step.tokens_per_second));
    let speed = Chart { from_zero: true, ..chart("Throughput", "tokens per second", speed) };

    let mut charts = vec![loss.clone()];
    charts.extend((steps.len() >= LONG).then(|| second_half(loss)));
    charts.extend([rate, speed, memory(steps)]);
    let on_host = history.steps_on_host();
    let spills = steps.iter().any(|step| step.bytes_out.or(step.bytes_in).is_some_and(|bytes| bytes > 0));
    charts.extend((spills || on_host).then(|| moved(steps, on_host)));
    charts.extend(spills.then(|| stall(steps)));
    charts.extend(steps.iter().any(|step| step.host_step_ms.is_some()).then(|| updates(steps)));
    if steps.iter().any(|step| step.disk_written.or(step.disk_read).is_some_and(|bytes| bytes > 0)) {
        let curves = vec![
            ("to the disk", Look::First, bytes(steps, |step| step.disk_written)),
            ("from the disk", Look::Second, bytes(steps, |step| step.disk_read)),
        ];
        charts.push(sizes("Disk tier per step", curves));
    }
    if steps.iter().any(|step| step.ranks_sent.is_some()) {
        let planned = history.starts.last().and_then(|start| start.sent_per_step);
        charts.extend([exchanged(steps, planned), waiting(steps)]);
    }
    charts.extend(ranks::memory(history, others));
    charts.push(norm);
    charts.retain(|chart| !chart.is_empty());
    charts
}

/// Steep first steps would flatten later progress.
fn second_half(mut loss: Chart) -> Chart {
    let last =
        loss.curves.iter().filter_map(|curve| curve.points.last()).map(|point| point.0).fold(0.0, f64::max);
    loss.curves.iter_mut().for_each(|curve| curve.points.retain(|point| point.0 >= last / 2.0));
    let title = "Loss, second half";
    Chart { title, reading: reading(title), ..loss }
}

fn memory(steps: &[Update]) -> Chart {
    let mut curves = vec![
        ("device, the most of a step", Look::First, bytes(steps, |step| step.device_bytes)),
        ("device budget", Look::Limit, bytes(steps, |step| step.device_budget)),
    ];
    let host = bytes(steps, |step| step.host_bytes);
    if host.iter().any(|point| point.1 > 0.0) {
        curves.push(("host, the most of a step", Look::Second, host));
    }
    sizes("Memory", curves)
}

/// Includes weights and gradients of an optimizer `on_host`.
fn moved(steps: &[Update], on_host: bool) -> Chart {
    let curves = vec![
        ("to the device", Look::First, bytes(steps, |step| step.over_the_link(on_host)[0])),
        ("to the host", Look::Second, bytes(steps, |step| step.over_the_link(on_host)[1])),
    ];
    sizes("Moved per step", curves)
}

fn exchanged(steps: &[Update], planned: Option<u64>) -> Chart {
    let curves = vec![
        ("sent by rank 0", Look::First, bytes(steps, |step| step.ranks_sent)),
        ("received by it", Look::Second, bytes(steps, |step| step.ranks_heard)),
        ("sent by a rank in the plan", Look::Limit, bytes(steps, |_| planned)),
    ];
    sizes("Exchanged per step", curves)
}

/// Background calls may take longer than the step waits.
fn waiting(steps: &[Update]) -> Chart {
    let mut curves = smoothed("the step stood still", share(steps, |step| step.ranks_stall_ms));
    curves.push(line("in calls, beside it too", Look::Second, share(steps, |step| step.ranks_ms)));
    curves.retain(|curve| !curve.points.is_empty());
    Chart { from_zero: true, ..chart("Waiting for ranks", "percent of the step", curves) }
}

fn stall(steps: &[Update]) -> Chart {
    let waited = share(steps, |step| step.stall_ms);
    Chart { from_zero: true, ..chart("Waiting for copies", "percent of the step", smoothed("stall", waited)) }
}

fn updates(steps: &[Update]) -> Chart {
    let curves = vec![
        line("its time", Look::First, series(steps, |step| step.host_step_ms)),
        line("waited for", Look::Second, series(steps, |step| step.host_step_wait_ms)),
    ];
    Chart { from_zero: true, ..chart("Update on the host", "milliseconds", curves) }
}

pub(super) fn share(steps: &[Update], ms: fn(&Update) -> Option<f64>) -> Vec<Point> {
    series(steps, |step| Some(100.0 * ms(step)? / step.ms.filter(|ms| *ms > 0.0)?))
}

pub(super) fn chart(title: &'static str, unit: &'static str, curves: Vec<Curve>) -> Chart {
    Chart { title, unit, reading: reading(title), from_zero: false, curves, marks: Vec::new() }
}

fn reading(title: &str) -> &'static str {
    match title {
        "Loss" => {
            "How wrong the model is on the text of a step. It has to fall. A flat end means that more steps help little."
        }
        "Loss, second half" => {
            "The same without the steep beginning. If validation rises while training falls, the model learns its text by heart."
        }
        "Validation loss" => "How wrong the model is on text that it does not learn from. Lower is better.",
        "Learning rate" => "The size of updates: up during the warm-up, then down to the floor.",
        "Throughput" => "Higher is faster. A dip is a wait for copies, data or another program.",
        "Memory" => "The device stays below its budget. The host holds what has spilled.",
        "Moved per step" => "Copies over the link. A larger budget lowers both curves and changes no loss.",
        "Waiting for copies" => "The price of spilling: at 10, a tenth of the step was spent waiting.",
        "Update on the host" => "The processor's time for a step. Only the part that is waited for is lost.",
        "Disk tier per step" => "Bytes to and from the disk. Writes wear the drive.",
        "Exchanged per step" => {
            "Bytes between processes, for gradients or weights. The dashed line is the plan's figure, an average where ranks \
             exchange rarely."
        }
        "Waiting for ranks" => "At 10, a tenth of the step was spent waiting for other processes.",
        "Memory of ranks" => {
            "The most of a step on each rank's device. The highest one decides which budget works; the table of ranks has all."
        }
        "Gradient norm" => {
            "A jump is an unusual batch. Steady growth announces that the run diverges: lower the learning rate."
        }
        _ => "",
    }
}

pub(super) fn line(name: &str, look: Look, points: Vec<Point>) -> Curve {
    Curve { name: name.to_owned(), look, points }
}

pub(super) fn sizes(title: &'static str, curves: Vec<(&str, Look, Vec<Point>)>) -> Chart {
    let largest = curves.iter().flat_map(|curve| &curve.2).map(|point| point.1).fold(0.0, f64::max);
    let (unit, size) = unit(largest);
    let shrunk = |points: Vec<Point>| points.into_iter().map(|(step, bytes)| (step, bytes / size)).collect();
    let curves = curves.into_iter().filter(|curve| !curve.2.is_empty());
    let curves = curves.map(|(name, look, points)| line(name, look, shrunk(points))).collect();
    Chart { from_zero: true, ..chart(title, unit, curves) }
}

pub(super) fn unit(largest: f64) -> (&'static str, f64) {
    const UNITS: [(&str, f64); 4] = [("TiB", 40.0), ("GiB", 30.0), ("MiB", 20.0), ("KiB", 10.0)];
    let fits = UNITS.into_iter().map(|(name, power)| (name, power.exp2())).find(|unit| largest >= unit.1);
    fits.unwrap_or(("bytes", 1.0))
}

/// A few points get no moving average.
fn smoothed(name: &str, points: Vec<Point>) -> Vec<Curve> {
    let span = points.len() / SMOOTHED;
    if span < 2 {
        return vec![line(name, Look::First, points)];
    }
    let average = smooth(&points, span);
    let averaged = format!("{name}, smoothed over {span} steps");
    vec![line(name, Look::FirstRaw, points), line(&averaged, Look::First, average)]
}

pub(super) fn series(steps: &[Update], value: impl Fn(&Update) -> Option<f64>) -> Vec<Point> {
    points(steps, |step| step.step, value)
}

pub(super) fn bytes(steps: &[Update], value: impl Fn(&Update) -> Option<u64>) -> Vec<Point> {
    series(steps, |step| value(step).map(|bytes| bytes as f64))
}

pub(super) fn points<T>(
    records: &[T],
    step: impl Fn(&T) -> u64,
    value: impl Fn(&T) -> Option<f64>,
) -> Vec<Point> {
    let drawn =
        |record: &T| Some((step(record) as f64, value(record).filter(|value| value.abs() < LARGEST)?));
    records.iter().filter_map(drawn).collect()
}
