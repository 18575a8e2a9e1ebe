//! `--max-params`: the deepest model that takes two steps within a budget, with and without spilling.

use std::{
    fmt,
    io::{self, Write as _},
};

use anyhow::{Result, bail};

use crate::records::bytes::Bytes;

use super::{
    bisection::{Deepest, Probe, deepest},
    budget::Budget,
    cell::Outcome,
    limits::Limits,
    suite::Model,
    summary::Summary,
    table,
    trainer::Trainer,
};

/// Beyond any budget that suits the width.
const MOST_LAYERS: u64 = 4096;

#[derive(Clone, Copy)]
enum Spilling {
    /// As on a backend without spilling.
    Without,
    With,
}

pub(super) fn run(trainer: &Trainer, model: &Model, budget: u64, limits: &Limits) -> Result<()> {
    let search = |spilling, start| {
        deepest(start, MOST_LAYERS, |layers| probe(trainer, model, budget, layers, spilling, limits))
    };
    let without = search(Spilling::Without, 1)?;
    // What fits without spilling fits with it.
    let start = without.works.as_ref().map_or(1, |(layers, _)| *layers);
    let with = search(Spilling::With, start)?;
    println!("\n{}", report(model, Budget::Bytes(budget), &without, &with));
    Ok(())
}

fn probe(
    trainer: &Trainer,
    model: &Model,
    budget: u64,
    layers: u64,
    spilling: Spilling,
    limits: &Limits,
) -> Result<Probe<Summary>> {
    let time = match limits.next() {
        Ok(time) => time,
        Err(reason) => return Ok(Err(reason)),
    };

    print!("{layers} layers {spilling} … ");
    io::stdout().flush()?;
    let mut further = vec!["train.steps=2".to_owned(), format!("model.n_layer={layers}")];
    if matches!(spilling, Spilling::Without) {
        further.push("memory.host_budget=0B".to_owned());
    }

    let outcome = trainer.train(model, Some(budget), &further, time)?;
    match outcome {
        Outcome::Fits(summary) => {
            println!("fits, {}", size(&summary));
            Ok(Ok(*summary))
        }
        Outcome::Failed(reason) => bail!("{} with {layers} layers failed: {reason}", model.name),
        other => {
            let reason = format!("{}: {}", other.name(), other.reason().unwrap_or_default());
            println!("{reason}");
            Ok(Err(reason))
        }
    }
}

fn report(model: &Model, budget: Budget, without: &Deepest<Summary>, with: &Deepest<Summary>) -> String {
    let line = |spilling: Spilling, found: &Deepest<Summary>| {
        let works = match &found.works {
            Some((layers, summary)) => format!("{layers} layers, {}", size(summary)),
            None => "not even one layer".to_owned(),
        };
        let refused = found.refused.as_ref().map(|(layers, reason)| format!(" ({layers} layers: {reason})"));
        format!("{spilling}: {works}{}\n", refused.unwrap_or_default())
    };
    let ratio = match (&without.works, &with.works) {
        (Some((_, without)), Some((_, with))) => {
            let ratio = with.parameters as f64 / without.parameters as f64;
            format!("spilling trains {ratio:.1} times the parameters\n")
        }
        _ => String::new(),
    };
    format!(
        "the deepest {} that trains in {budget} of device memory\n{}{}{ratio}",
        model.name,
        line(Spilling::Without, without),
        line(Spilling::With, with)
    )
}

fn size(summary: &Summary) -> String {
    format!(
        "{} parameters, peak {} on the device and {} on the host",
        table::parameters(summary.parameters),
        Bytes(summary.peak_device_bytes),
        Bytes(summary.peak_host_bytes)
    )
}

impl fmt::Display for Spilling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Without => "without spilling",
            Self::With => "with spilling",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::summary::tests::summary, *};

    #[test]
    fn a_report_compares_both_searches_and_says_what_ended_them() {
        let model =
            Model { name: "toy".into(), shape: "toy".into(), config: "toy".into(), settings: Vec::new() };
        let refused = |layers| Some((layers, "does not fit: no room".to_owned()));
        let deep = Summary { parameters: 3_000_000, peak_host_bytes: 1 << 20, ..summary() };
        let without = Deepest { works: Some((4, summary())), refused: refused(5) };
        let with = Deepest { works: Some((10, deep)), refused: refused(11) };
        assert_eq!(
            report(&model, Budget::Bytes(40 << 20), &without, &with),
            "the deepest toy that trains in 40MiB of device memory\n\
             without spilling: 4 layers, 1.2M parameters, peak 38.1 MiB on the device and 0 B on the host \
             (5 layers: does not fit: no room)\n\
             with spilling: 10 layers, 3.0M parameters, peak 38.1 MiB on the device and 1.00 MiB on the host \
             (11 layers: does not fit: no room)\n\
             spilling trains 2.5 times the parameters\n"
        );
        let none = Deepest { works: None, refused: refused(1) };
        assert!(
            report(&model, Budget::Bytes(1), &none, &with).contains("without spilling: not even one layer")
        );
    }
}
