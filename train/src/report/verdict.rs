//! A run's outcome in words.

use backend_offload::Bytes;

use super::history::{History, Update};
use crate::figures::grouped;

const LEARNS: f64 = 0.02;

pub(super) fn of(history: &History) -> String {
    let sentences =
        [state(history), learning(&history.steps), overfitting(history), spilling(history), skipped(history)];
    sentences.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn state(history: &History) -> Option<String> {
    let last = history.steps.last()?;
    let (step, steps) = (grouped(last.step), grouped(last.steps));
    Some(match history.stops.last() {
        Some(stop) if stop.step >= last.step => {
            format!("The run stopped after step {step} of {steps}: {}.", stop.reason)
        }
        _ if last.step >= last.steps => format!("All {steps} steps are done."),
        _ => format!(
            "Step {step} of {steps} is the last one recorded; `train --resume` continues a run that has ended."
        ),
    })
}

fn learning(steps: &[Update]) -> Option<String> {
    let losses: Vec<f64> =
        steps.iter().filter_map(|step| step.loss).filter(|loss| loss.is_finite()).collect();
    let part = losses.len().div_ceil(20);
    if losses.len() < 2 {
        return None;
    }
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let (first, last) = (mean(&losses[..part]), mean(&losses[losses.len() - part..]));
    Some(if last < first * (1.0 - LEARNS) {
        format!("The model learns: its loss fell from {first:.3} to {last:.3}.")
    } else {
        format!(
            "The model does not learn: its loss was {first:.3} at first and is {last:.3}. Try a lower `train.lr`, and \
             `--overfit-one-batch`."
        )
    })
}

fn overfitting(history: &History) -> Option<String> {
    let loss = |eval: &super::history::Eval| eval.loss.filter(|loss| loss.is_finite());
    let last = history.evals.iter().filter_map(loss).next_back()?;
    let best = history.evals.iter().rfind(|eval| eval.best)?;
    let least = loss(best)?;
    (last > least * (1.0 + LEARNS)).then(|| {
        format!(
            "Validation was best at step {} ({least:.3}) and is {last:.3}: the model learns its text by heart, and `--best` \
             takes the better weights.",
            grouped(best.step)
        )
    })
}

fn spilling(history: &History) -> Option<String> {
    let start = history.starts.last()?;
    let budget = start.device_budget?;
    let sum = |value: fn(&Update) -> Option<f64>| history.steps.iter().filter_map(value).sum::<f64>();
    let moved = sum(|step| Some((step.bytes_in? + step.bytes_out?) as f64));
    let (waited, whole) = (sum(|step| step.stall_ms), sum(|step| step.ms));
    if history.steps.is_empty() {
        return None;
    }
    if moved <= 0.0 || whole <= 0.0 {
        return Some("Nothing spilled: all had room on the device.".to_owned());
    }
    let short = start.working_set.and_then(|wanted| wanted.checked_sub(budget)).filter(|short| *short > 0);
    let short = short.map_or("Memory was short on the device".to_owned(), |bytes| {
        format!("By the plan, memory was short by {} on the device", Bytes(bytes))
    });
    let most = history.steps.iter().filter_map(|step| step.host_bytes).max().filter(|bytes| *bytes > 0);
    let held = most.map_or(String::new(), |bytes| format!("; up to {} were held on the host", Bytes(bytes)));
    Some(format!("{short}{held}; {:.0} % of the time was spent waiting for copies.", 100.0 * waited / whole))
}

fn skipped(history: &History) -> Option<String> {
    let count = history.withheld.len();
    (count > 0).then(|| {
        let steps = if count == 1 { "One step was".to_owned() } else { format!("{count} steps were") };
        format!("{steps} skipped, since a loss or a gradient was not a finite number.")
    })
}
