//! Tokens per second under a cap, beside PyTorch's.

use crate::{
    records::bytes::Bytes,
    vram::{By, Speed, Way},
};

use super::{Answer, Models, Said};

pub(super) fn beside_pytorch(models: &Models) -> Answer {
    let question = "Does it train as fast as PyTorch under the same cap?";
    let answer = |said, figures| Answer { question, said, figures };
    let speeds = match models {
        Ok(speeds) if !speeds.is_empty() => speeds,
        Ok(_) => return answer(Said::NotMeasured, "the record of models has no row".to_owned()),
        Err(reason) => return answer(Said::NotMeasured, reason.clone()),
    };

    let mut names: Vec<&str> = Vec::new();
    for speed in speeds {
        if !names.contains(&speed.model.as_str()) {
            names.push(&speed.model);
        }
    }
    let (decisions, texts): (Vec<Option<bool>>, Vec<String>) =
        names.iter().map(|name| compared(name, speeds)).unzip();
    let is = |decision| decisions.contains(&decision);
    let said = match [is(Some(false)), is(Some(true)), is(None)] {
        [true, ..] => Said::No,
        [_, false, _] => Said::NotMeasured,
        [_, _, true] => Said::InPart,
        _ => Said::Yes,
    };
    let alone = !speeds.iter().any(|speed| matches!(speed.by, By::Peer(_)));
    let alone = if alone { "no PyTorch took part; " } else { "" };
    answer(said, format!("{alone}tokens/s of {}", texts.join("; of ")))
}

/// Whether the trainer, with its optimizer in the better place, is as fast as the fastest way of PyTorch that fits.
fn compared(name: &str, speeds: &[Speed]) -> (Option<bool>, String) {
    let of_model: Vec<&Speed> = speeds.iter().filter(|speed| speed.model == name).collect();
    let Some(cap) = of_model.iter().find_map(|speed| speed.budget.as_ref()) else {
        return (None, format!("{name} without a cap: {}", shown(&of_model)));
    };
    let (capped, free): (Vec<&Speed>, Vec<&Speed>) = of_model
        .into_iter()
        .filter(|speed| speed.budget.is_none() || speed.budget.as_ref() == Some(cap))
        .partition(|speed| speed.budget.is_some());

    let (theirs, ours): (Vec<&Speed>, Vec<&Speed>) =
        capped.iter().copied().partition(|speed| matches!(speed.by, By::Peer(_)));
    let faster = match (fastest(&ours), fastest(&theirs)) {
        (Some(ours), Some(theirs)) => Some(ours >= theirs),
        (Some(_), None) if !theirs.is_empty() => {
            theirs.iter().all(|speed| speed.outcome == "does not fit").then_some(true)
        }
        _ => None,
    };
    let limit = capped.iter().find_map(|speed| speed.limit);
    let limit = limit.map(|bytes| format!(" ({})", Bytes(bytes))).unwrap_or_default();
    let free = if free.is_empty() { String::new() } else { format!(", without a cap {}", shown(&free)) };
    (faster, format!("{name} at {cap}{limit}: {}{free}", shown(&capped)))
}

fn fastest(speeds: &[&Speed]) -> Option<f64> {
    speeds.iter().filter_map(|speed| speed.tokens_per_second).reduce(f64::max)
}

/// Each way once, with its fastest run.
fn shown(speeds: &[&Speed]) -> String {
    let mut ways: Vec<By> = Vec::new();
    for speed in speeds {
        if !ways.contains(&speed.by) {
            ways.push(speed.by);
        }
    }
    let each = ways.into_iter().map(|by| {
        let runs: Vec<&Speed> = speeds.iter().copied().filter(|speed| speed.by == by).collect();
        let rate = fastest(&runs).map(|rate| format!("{rate:.0}"));
        format!("{} {}", way(by), rate.unwrap_or_else(|| runs[0].outcome.clone()))
    });
    each.collect::<Vec<_>>().join(", ")
}

fn way(by: By) -> &'static str {
    match by {
        By::Device => "optimizer on the device",
        By::Host => "optimizer on the host",
        By::Peer(Way::Memory) => "PyTorch in memory",
        By::Peer(Way::Activations) => "PyTorch with activations on the host",
        By::Peer(Way::Fsdp) => "FSDP2 with CPU offload",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed(model: &str, by: By, budget: Option<&str>, outcome: &str, rate: Option<f64>) -> Speed {
        Speed {
            model: model.to_owned(),
            by,
            budget: budget.map(str::to_owned),
            limit: budget.map(|_| 3 << 30),
            outcome: outcome.to_owned(),
            tokens_per_second: rate,
        }
    }

    fn capped(model: &str, rates: [Option<f64>; 4]) -> Vec<Speed> {
        let ways = [By::Device, By::Host, By::Peer(Way::Memory), By::Peer(Way::Fsdp)];
        let speed = |(by, rate): (By, Option<f64>)| {
            speed(model, by, Some("50%"), if rate.is_some() { "fits" } else { "does not fit" }, rate)
        };
        ways.into_iter().zip(rates).map(speed).collect()
    }

    #[test]
    fn the_better_place_of_the_optimizer_is_compared_with_the_fastest_way_of_pytorch_that_fits() {
        let mut speeds = vec![
            speed("gpt-124m", By::Device, None, "fits", Some(150.0)),
            speed("gpt-124m", By::Peer(Way::Memory), None, "fits", Some(160.4)),
        ];
        speeds.extend(capped("gpt-124m", [Some(90.0), Some(110.0), None, Some(100.0)]));
        assert_eq!(
            beside_pytorch(&Ok(speeds.clone())).to_string(),
            "Does it train as fast as PyTorch under the same cap? Yes: tokens/s of gpt-124m at 50% (3.00 GiB): optimizer on the \
             device 90, optimizer on the host 110, PyTorch in memory does not fit, FSDP2 with CPU offload 100, without a cap \
             optimizer on the device 150, PyTorch in memory 160."
        );
        speeds.extend(capped("llama-1.1b", [Some(9.0), None, None, Some(10.0)]));
        let both = beside_pytorch(&Ok(speeds));
        assert_eq!(both.said, Said::No);
        assert!(both.figures.contains("; of llama-1.1b at 50%"), "{}", both.figures);
    }

    #[test]
    fn a_model_that_pytorch_cannot_train_under_the_cap_counts_for_the_trainer() {
        let none = capped("gpt-124m", [None, Some(1.0), None, None]);
        assert_eq!(beside_pytorch(&Ok(none)).said, Said::Yes);
    }

    #[test]
    fn runs_for_which_no_time_was_left_are_said_and_decide_nothing() {
        let mut speeds = capped("gpt-124m", [Some(9.0), Some(8.0), None, Some(7.0)]);
        speeds.push(speed("llama-1.1b", By::Device, None, "fits", Some(2.0)));
        speeds.push(speed("llama-1.1b", By::Host, Some("50%"), "skipped", None));
        speeds.push(speed("llama-1.1b", By::Peer(Way::Fsdp), Some("50%"), "skipped", None));
        let answer = beside_pytorch(&Ok(speeds));
        assert_eq!(answer.said, Said::InPart);
        let end = "optimizer on the host skipped, FSDP2 with CPU offload skipped, without a cap optimizer on the device 2";
        assert!(answer.figures.ends_with(end), "{}", answer.figures);
    }

    #[test]
    fn without_pytorch_the_trainers_figures_are_given_and_nothing_is_compared() {
        let ours = capped("gpt-124m", [Some(9.0), Some(8.0), None, None])[..2].to_vec();
        let answer = beside_pytorch(&Ok(ours));
        assert_eq!(answer.said, Said::NotMeasured);
        assert!(answer.figures.starts_with("no PyTorch took part; tokens/s of gpt-124m at 50%"), "{answer}");
        let answer = beside_pytorch(&Err("the run left no record of models".to_owned()));
        assert!(answer.to_string().ends_with("Not measured: the run left no record of models."), "{answer}");
        assert_eq!(beside_pytorch(&Ok(Vec::new())).said, Said::NotMeasured);
    }
}
