//! A run's verdict: five questions, in the order of the parts, each answered in plain words with its figures.

mod models;

use std::{fmt, path::Path};

use serde_json::Value;

use crate::vram::{self, Speed};

use super::{
    completeness,
    run::{Outcome, Run, Verdict},
    stand_in,
};

/// A step without a budget, of plain's. A launch may cost 1 µs, and two runs of a short step differ by a few percent.
const MOST_OF_PLAIN: f64 = 1.1;

/// The library's rate, of that of plain copies in both directions at the same time.
const LEAST_OF_THE_LINK: f64 = 0.8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Yes,
    No,
    InPart,
    /// On a simulated card, whose times say nothing about a real one.
    NotJudged,
    NotMeasured,
}

#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    question: &'static str,
    said: Said,
    figures: String,
}

/// Trained models, or why there are none.
pub(super) type Models = Result<Vec<Speed>, String>;

pub(super) fn answers(run: &Run, models: &Models) -> [Answer; 5] {
    [numbers(run), resident(run), hidden(run), link(run), models::beside_pytorch(models)]
}

/// One line each, with its number.
pub(super) fn text(answers: &[Answer]) -> String {
    let lines = (1..).zip(answers).map(|(number, answer): (usize, _)| format!("{number}. {answer}"));
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

/// `measured` is the folder in which `run` left its record of models.
pub(super) fn trained_models(run: &Run, measured: &Path) -> Models {
    if vram::is_record(measured) {
        return vram::read_speeds(measured).map_err(|error| format!("{error:#}"));
    }
    Err(if stand_in::ran_on_the_stand_in(run) {
        "no model is trained on a simulated card".to_owned()
    } else {
        "the run left no record of models".to_owned()
    })
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}.", self.question, self.said, self.figures)
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Yes => "Yes",
            Self::No => "No",
            Self::InPart => "In part",
            Self::NotJudged => "Not judged",
            Self::NotMeasured => "Not measured",
        })
    }
}

fn numbers(run: &Run) -> Answer {
    let question = "Is every number plain's at every budget?";
    let answer = |said, figures| Answer { question, said, figures };
    let rows: Vec<&Verdict> = run.of_programs().filter(|row| row.is_at_a_budget()).collect();
    let asked = completeness::budgets(&run.command);
    let asked: Vec<&str> = asked.into_iter().flat_map(|list| list.split(',')).collect();
    let expected = asked.len() * run.programs().len();
    if rows.is_empty() || expected == 0 {
        return answer(Said::NotMeasured, "no program ran under a budget".to_owned());
    }

    let equal = rows.iter().filter(|row| row.outcome == Outcome::Pass && row.has_plain_bits()).count();
    let figures = format!(
        "{equal} of {expected} cases at {} have plain's losses and weights, bit for bit",
        list(&asked).replace("floor", "the floor")
    );
    // Without a budget a run may fail for what it moved.
    let failed = run.of_programs().filter(|row| row.outcome == Outcome::Fail);
    let failed = failed.filter(|row| row.budget() != "unlimited" || !row.has_plain_bits());
    let failed: Vec<String> = failed.map(Verdict::name).collect();
    if !failed.is_empty() {
        return answer(Said::No, format!("{figures}; failed: {}", failed.join(", ")));
    }
    let lacking = lacking(&rows, expected);
    if !lacking.is_empty() {
        let said = if equal > 0 { Said::InPart } else { Said::NotMeasured };
        return answer(said, format!("{figures}; of the others {}", lacking.join(", ")));
    }
    let has_floor = asked.contains(&"floor");
    let without = if has_floor { "" } else { "; the floor was not asked for" };
    answer(whole(has_floor), format!("{figures}{without}"))
}

/// Kinds of rows without plain's bits that did not fail, with their numbers.
fn lacking(rows: &[&Verdict], expected: usize) -> Vec<String> {
    let count = |is_one: fn(&Verdict) -> bool| rows.iter().filter(|row| is_one(row)).count();
    let skipped = count(|row| row.outcome == Outcome::Skipped);
    let undecided = count(|row| row.outcome == Outcome::Pass && !row.has_plain_bits());
    let kinds = [
        (skipped, "were skipped"),
        (expected.saturating_sub(rows.len()), "are missing"),
        (undecided, "have no bits to equal, since plain's differ from run to run"),
    ];
    kinds.into_iter().filter(|(count, _)| *count > 0).map(|(count, kind)| format!("{count} {kind}")).collect()
}

/// A program without a budget.
struct Unlimited<'a> {
    program: &'a str,
    bytes: f64,
    /// Its step's time, of plain's.
    of_plain: Option<f64>,
    /// A launch's time above plain's.
    microseconds: Option<f64>,
}

fn unlimited(run: &Run) -> Vec<Unlimited<'_>> {
    let read = |program| {
        let row = run.find(program, "unlimited")?;
        let bytes = row.counted("bytes_out")? + row.counted("bytes_in")?;
        let seconds = row.number("seconds_per_step");
        let plain = run.find(program, "plain").and_then(|plain| plain.number("seconds_per_step"));
        let times = seconds.zip(plain).filter(|(_, plain)| *plain > 0.0);
        let launches = row.number("launches_per_step").filter(|launches| *launches > 0.0);
        let longer = times.zip(launches).map(|((seconds, plain), launches)| (seconds - plain) / launches);
        let of_plain = times.map(|(seconds, plain)| seconds / plain);
        Some(Unlimited { program, bytes, of_plain, microseconds: longer.map(|seconds| seconds * 1e6) })
    };
    run.programs().into_iter().filter_map(read).collect()
}

fn resident(run: &Run) -> Answer {
    let question = "Does nothing move, and does no launch cost more, when all fits?";
    let answer = |said, figures| Answer { question, said, figures };
    let programs = unlimited(run);
    if programs.is_empty() {
        return answer(Said::NotMeasured, "no program ran without a budget".to_owned());
    }
    let moved: Vec<String> = programs
        .iter()
        .filter(|program| program.bytes > 0.0)
        .map(|program| format!("{} bytes in {}", program.bytes, program.program))
        .collect();
    if !moved.is_empty() {
        return answer(Said::No, format!("{} moved", moved.join(", ")));
    }

    let (measured, all) = (programs.len(), run.programs().len());
    let bytes = format!("no byte moved in {measured} of {all} programs");
    let mut timed: Vec<(f64, &Unlimited)> =
        programs.iter().filter_map(|program| Some((program.of_plain?, program))).collect();
    timed.sort_by(|one, other| one.0.total_cmp(&other.0));
    let [Some((least, _)), Some((most, slowest))] = [timed.first(), timed.last()] else {
        return answer(Said::InPart, format!("{bytes}; times are missing"));
    };
    let times = format!("a step takes {least:.2} to {most:.2} of plain's");
    if stand_in::ran_on_the_stand_in(run) {
        return answer(Said::InPart, format!("{bytes}; {times}, which is not judged on a simulated card"));
    }
    let launch = slowest.microseconds.map(|more| format!(" ({more:+.1} µs a launch)")).unwrap_or_default();
    let figures = format!(
        "{bytes}; {times}, where {MOST_OF_PLAIN:.2} is allowed; the most in {}{launch}",
        slowest.program
    );
    let said = if *most > MOST_OF_PLAIN { Said::No } else { whole(timed.len() == all) };
    answer(said, figures)
}

/// Programs whose launches cost too much on a real card.
pub(super) fn slow(run: &Run) -> Option<String> {
    if stand_in::ran_on_the_stand_in(run) {
        return None;
    }
    let programs = unlimited(run);
    let slow = programs.iter().filter(|program| program.of_plain.is_some_and(|times| times > MOST_OF_PLAIN));
    let slow: Vec<&str> = slow.map(|program| program.program).collect();
    let longer = format!("a step without a budget takes more than {MOST_OF_PLAIN:.2} of plain's");
    (!slow.is_empty()).then(|| format!("{longer}: {}", slow.join(", ")))
}

fn hidden(run: &Run) -> Answer {
    let question = "Is copying hidden behind the work?";
    let answer = |said, figures| Answer { question, said, figures };
    let pairs = run.of_programs().filter(|row| row.is_at_a_budget()).filter_map(|row| {
        let in_line = run.find(row.program(), &row.in_line())?;
        Some((row.counted("stall_seconds")?, in_line.counted("stall_seconds")?))
    });
    let pairs: Vec<(f64, f64)> = pairs.collect();
    let (overlapped, in_line) =
        pairs.iter().fold((0.0, 0.0), |sums, pair| (sums.0 + pair.0, sums.1 + pair.1));
    if in_line <= 0.0 {
        return answer(Said::NotMeasured, "no program waited for copies in line".to_owned());
    }
    let share = (in_line - overlapped) / in_line;
    let figures = format!(
        "{:.0} % of the waiting: {in_line:.3} s in line became {overlapped:.3} s in {} runs",
        100.0 * share,
        pairs.len()
    );
    answer(judged(run, share > 0.0), figures)
}

fn link(run: &Run) -> Answer {
    let question = "Does the library reach the link's speed?";
    let answer = |said, figures| Answer { question, said, figures };
    let number = |part: Option<&Value>, name: &str| part.and_then(|part| part[name].as_f64());
    let [ours, plain] = [&run.bandwidth, &run.link].map(Option::as_ref);
    let reached = number(ours, "bytes").zip(number(ours, "seconds"));
    let Some((bytes, seconds)) = reached.filter(|(_, seconds)| *seconds > 0.0) else {
        return answer(Said::NotMeasured, "the library's copies have no time".to_owned());
    };
    let reached = bytes / seconds;
    let speeds = ["to_device", "to_host", "both"].map(|way| number(plain, way));
    let [Some(to_device), Some(to_host), Some(both)] = speeds else {
        return answer(
            Said::NotMeasured,
            format!("{:.2} GB/s, and no plain copies to compare with", reached / 1e9),
        );
    };

    let share = reached / both;
    let figures = format!(
        "{:.0} %, where {:.0} is enough: {:.2} GB/s in both directions together, and plain page-locked copies {:.2} ({:.2} to the \
         device and {:.2} to the host alone)",
        100.0 * share,
        100.0 * LEAST_OF_THE_LINK,
        reached / 1e9,
        both / 1e9,
        to_device / 1e9,
        to_host / 1e9
    );
    answer(judged(run, share >= LEAST_OF_THE_LINK), figures)
}

/// An answer about times.
fn judged(run: &Run, is_good: bool) -> Said {
    match (stand_in::ran_on_the_stand_in(run), is_good) {
        (true, _) => Said::NotJudged,
        (false, true) => Said::Yes,
        (false, false) => Said::No,
    }
}

fn whole(is_whole: bool) -> Said {
    if is_whole { Said::Yes } else { Said::InPart }
}

fn list(words: &[&str]) -> String {
    match words {
        [front @ .., last] if !front.is_empty() => format!("{} and {last}", front.join(", ")),
        _ => words.concat(),
    }
}

#[cfg(test)]
mod tests;
