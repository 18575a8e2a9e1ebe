//! The page's tables: facts of a run, evaluations, samples and failures.

use std::fmt::{self, Write};

use backend_offload::Bytes;

use super::history::{Eval, History, Sample, Score, Start};
use super::markup::Escaped;
use crate::figures::{duration, grouped};

const ROWS: usize = 200;

const SAMPLED: usize = 300_000;

const TEXT: usize = 2000;

pub(super) fn facts(history: &History) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    let mut add = |name, value: Option<String>| facts.extend(value.map(|value| (name, value)));
    if let Some(start) = history.starts.last() {
        // To the minute.
        let date =
            start.date.as_deref().map(|date| date.chars().take(16).collect::<String>().replace('T', " "));
        add("Started", date.map(|date| format!("{date} UTC")));
        add("Command", start.command.clone());
        add("Preset or file", start.config.clone());
        add("Version", start.version.clone());
        add("Device", Some(start.device.clone()));
        add(
            "Device budget",
            Some(start.device_budget.map_or("unlimited".to_owned(), |budget| Bytes(budget).to_string())),
        );
        add("Optimizer", optimizer_place(start));
        add("Parameters", Some(grouped(start.parameters)));
        add("Tokens per step", Some(grouped(start.tokens_per_step)));
        let group = start.together.filter(|count| *count > 1);
        add("Micro-batches", group.map(|count| format!("{} pass each segment together", grouped(count))));
        add("Ranks", start.ranks.filter(|count| *count > 1).map(|count| count.to_string()));
    }

    if let Some(last) = history.steps.last() {
        add("Steps", Some(format!("{} of {}", grouped(last.step), grouped(last.steps))));
        add("Tokens", last.tokens.map(grouped));
        add("Time", last.seconds.map(duration));
        add("Last loss", last.loss.map(|loss| format!("{loss:.4}")));
        add("Share of the measured peak FLOP/s", last.mfu.map(|mfu| format!("{:.1} %", 100.0 * mfu)));
    }

    let device = history.steps.iter().filter_map(|step| step.device_bytes).max();
    add("Most device memory", device.map(|bytes| Bytes(bytes).to_string()));
    let host = history.steps.iter().filter_map(|step| step.host_bytes).max();
    add("Most host memory", host.filter(|bytes| *bytes > 0).map(|bytes| Bytes(bytes).to_string()));
    add("Update on the host", mean_update_time(history));
    let disk: u64 = history.steps.iter().filter_map(|step| step.disk_written).sum();
    add("Written to the disk tier", (disk > 0).then(|| Bytes(disk).to_string()));

    let best = history.evals.iter().rfind(|eval| eval.best);
    add(
        "Best validation loss",
        best.and_then(|best| Some(format!("{:.4} at step {}", best.loss?, grouped(best.step)))),
    );

    let saved = history.checkpoints.iter().rev().find_map(|record| record.bytes);
    add("Latest checkpoint", saved.map(|bytes| Bytes(bytes).to_string()));
    let waited: f64 = history.checkpoints.iter().filter_map(|record| record.waited_ms).sum();
    add("Waited for checkpoints", saved.map(|_| duration(waited / 1e3)));
    add("Resumed", (history.starts.len() > 1).then(|| times(history.starts.len() - 1)));
    facts
}

fn optimizer_place(start: &Start) -> Option<String> {
    if !start.steps_on_host() {
        return start.optimizer_on.as_ref().map(|place| format!("on the {place}"));
    }
    let state = start.optimizer_state.as_deref().unwrap_or("unknown");
    let stays = match start.device_blocks.unwrap_or_default() {
        0 => String::new(),
        1 => "; of the first block on the device".to_owned(),
        blocks => format!("; of the first {} blocks on the device", grouped(blocks)),
    };
    Some(format!("on the host, its state in {state}{stays}"))
}

fn mean_update_time(history: &History) -> Option<String> {
    let times = history.steps.iter().filter_map(|step| Some([step.host_step_ms?, step.host_step_wait_ms?]));
    let times: Vec<_> = times.filter(|[took, _]| *took > 0.0).collect();
    let mean = |which: usize| times.iter().map(|time| time[which]).sum::<f64>() / times.len() as f64;
    let [took, waited] = [mean(0), mean(1)];
    (!times.is_empty()).then(|| format!("{took:.1} ms on average, of which steps waited for {waited:.1} ms"))
}

pub(super) fn quiz(page: &mut String, history: &History) -> fmt::Result {
    let Some(quiz) = history.quizzes.last() else { return Ok(()) };
    let percent = |score: Score| 100.0 * score.right as f64 / score.asked.max(1) as f64;
    writeln!(page, "<h2>Quiz</h2>\n<p>At step {}, answered word for word:</p>", grouped(quiz.step))?;
    writeln!(page, "<table>\n<tr><th>Questions</th><th>Right</th><th>Asked</th><th>Share</th></tr>")?;
    let kinds = [("Held out, in known forms", quiz.held_out), ("In unseen phrasings", quiz.unseen_phrasings)];
    for (kind, score) in kinds.into_iter().filter(|(_, score)| score.asked > 0) {
        let Score { right, asked } = score;
        writeln!(
            page,
            "<tr><td>{kind}</td><td>{right}</td><td>{asked}</td><td>{:.0} %</td></tr>",
            percent(score)
        )?;
    }
    writeln!(page, "</table>")
}

pub(super) fn evals(page: &mut String, evals: &[Eval]) -> fmt::Result {
    if evals.is_empty() {
        return Ok(());
    }

    let best = evals.iter().rposition(|eval| eval.best);
    let stride = evals.len().div_ceil(ROWS);
    writeln!(page, "<h2>Evaluations</h2>")?;
    thinned(page, stride)?;
    writeln!(
        page,
        "<div class=\"scroll\"><table>\n<tr><th>Step</th><th>Validation loss</th><th>Perplexity</th>"
    )?;
    writeln!(page, "<th>Bits per byte</th><th>Sequences</th></tr>")?;
    for (at, eval) in
        evals.iter().enumerate().filter(|(at, _)| is_shown(*at, evals.len(), stride) || Some(*at) == best)
    {
        let class = if Some(at) == best { " class=\"best\" title=\"the best\"" } else { "" };
        let (loss, perplexity) = (decimals(eval.loss, 4), decimals(eval.perplexity, 2));
        let (bits, sequences) = (decimals(eval.bits_per_byte, 4), grouped(eval.sequences));
        write!(page, "<tr{class}><td>{}</td><td>{loss}</td><td>{perplexity}</td>", grouped(eval.step))?;
        writeln!(page, "<td>{bits}</td><td>{sequences}</td></tr>")?;
    }
    writeln!(page, "</table></div>")
}

pub(super) fn samples(page: &mut String, samples: &[Sample]) -> fmt::Result {
    if samples.is_empty() {
        return Ok(());
    }

    let steps: Vec<&[Sample]> = samples.chunk_by(|one, other| one.step == other.step).collect();
    let shown = |text: &str| text.len().min(4 * TEXT);
    let size: usize = samples.iter().map(|sample| 100 + shown(&sample.prompt) + shown(&sample.text)).sum();
    let stride = size.div_ceil(SAMPLED);
    writeln!(page, "<h2>Samples</h2>")?;
    thinned(page, stride)?;

    for (at, group) in steps.iter().enumerate().filter(|(at, _)| is_shown(*at, steps.len(), stride)) {
        let open = if at + 1 == steps.len() { " open=\"open\"" } else { "" };
        writeln!(page, "<details{open}><summary>Step {}</summary>", grouped(group[0].step))?;
        for sample in *group {
            writeln!(page, "<div class=\"sample\"><pre class=\"prompt\">{}</pre>", Clipped(&sample.prompt))?;
            writeln!(page, "<pre>{}</pre></div>", Clipped(&sample.text))?;
        }
        writeln!(page, "</details>")?;
    }
    Ok(())
}

pub(super) fn mishaps(page: &mut String, history: &History) -> fmt::Result {
    let withheld =
        history.withheld.iter().map(|record| (record.step, format!("withheld: {}", record.reason)));
    let failed = history.checkpoints.iter().filter_map(|record| Some((record.step, record.error.as_ref()?)));
    let failed = failed.map(|(step, error)| (step, format!("no checkpoint was saved: {error}")));
    let stopped = history.stops.iter().map(|record| (record.step, format!("stopped: {}", record.reason)));
    let mut mishaps: Vec<_> = withheld.chain(failed).chain(stopped).collect();
    mishaps.sort_by_key(|(step, _)| *step);
    if mishaps.is_empty() && history.unreadable == 0 {
        return Ok(());
    }

    writeln!(page, "<h2>Failures and stops</h2>")?;
    if history.unreadable > 0 {
        let lines = if history.unreadable == 1 { "line is" } else { "lines are" };
        writeln!(page, "<p>{} {lines} unreadable in metrics.jsonl.</p>", grouped(history.unreadable as u64))?;
    }

    let stride = mishaps.len().div_ceil(ROWS);
    thinned(page, stride)?;
    writeln!(page, "<ul class=\"scroll\">")?;
    for (_, (step, mishap)) in
        mishaps.iter().enumerate().filter(|(at, _)| is_shown(*at, mishaps.len(), stride))
    {
        writeln!(page, "<li>Step {}: {}</li>", grouped(*step), Clipped(mishap))?;
    }
    writeln!(page, "</ul>")
}

fn is_shown(at: usize, all: usize, stride: usize) -> bool {
    (all - 1 - at).is_multiple_of(stride)
}

fn thinned(page: &mut String, stride: usize) -> fmt::Result {
    if stride > 1 {
        writeln!(page, "<p>One in {stride} is shown; metrics.jsonl has them all.</p>")?;
    }
    Ok(())
}

fn decimals(number: Option<f64>, digits: usize) -> String {
    number.map_or("–".to_owned(), |number| format!("{number:.digits$}"))
}

fn times(count: usize) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

struct Clipped<'t>(&'t str);

impl fmt::Display for Clipped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(TEXT) {
            Some((end, _)) => write!(f, "{} … (cut here)", Escaped(&self.0[..end])),
            None => Escaped(self.0).fmt(f),
        }
    }
}
