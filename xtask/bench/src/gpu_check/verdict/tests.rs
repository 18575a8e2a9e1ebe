//! Verdicts from the lines of a run.

use serde_json::json;

use super::*;

const BUDGETS: [&str; 4] = ["100%", "50%", "25%", "floor"];

/// Rows of two programs, before `change`.
fn rows() -> Vec<Value> {
    let row = |program: &str, budget: &str, seconds: f64, stats: Value| {
        json!({
            "program": program, "budget": budget, "verdict": "pass", "losses_equal": true, "weights_equal": true,
            "seconds_per_step": seconds, "launches_per_step": 100.0, "stats": stats
        })
    };
    let mut rows = Vec::new();
    for program in ["mlp", "conv"] {
        rows.push(row(program, "plain", 0.010, Value::Null));
        rows.push(row(program, "unlimited", 0.0101, json!({ "bytes_out": 0, "bytes_in": 0 })));
        rows.extend(BUDGETS.map(|budget| row(program, budget, 0.02, json!({ "stall_seconds": 0.25 }))));
    }
    rows.push(row("mlp", "floor in line", 0.03, json!({ "stall_seconds": 1.0 })));
    rows.push(row("conv", "floor in line", 0.03, json!({ "stall_seconds": 1.0 })));
    rows.push(json!({ "bandwidth": { "bytes": 9e9, "seconds": 0.5 } }));
    rows.push(json!({ "link": { "to_device": 12e9, "to_host": 11e9, "both": 20e9 } }));
    rows
}

fn run_of(gpu: &str, budgets: &str, rows: &[Value]) -> Run {
    let command = format!("gpu_check --budgets {budgets} --json");
    let header = json!({ "date": "d", "commit": "c", "command": command, "machine": { "gpu": gpu } });
    let lines: Vec<String> = std::iter::once(&header).chain(rows).map(Value::to_string).collect();
    Run::parse(&lines.join("\n")).unwrap()
}

fn on(gpu: &str, rows: &[Value]) -> [Answer; 5] {
    let run = run_of(gpu, &BUDGETS.join(","), rows);
    answers(&run, &trained_models(&run, Path::new("no-such-folder")))
}

fn find<'a>(rows: &'a mut [Value], program: &str, budget: &str) -> &'a mut Value {
    rows.iter_mut().find(|row| row["program"] == program && row["budget"] == budget).unwrap()
}

const CARD: &str = "NVIDIA H200";

#[test]
fn a_good_run_is_answered_in_five_sentences_with_figures() {
    let text = text(&on(CARD, &rows()));
    let expected = [
        "1. Is every number plain's at every budget? Yes: 8 of 8 cases at 100%, 50%, 25% and the floor have plain's losses and \
         weights, bit for bit.",
        "2. Does nothing move, and does no launch cost more, when all fits? Yes: no byte moved in 2 of 2 programs; a step takes \
         1.01 to 1.01 of plain's, where 1.10 is allowed; the most in conv (+1.0 µs a launch).",
        "3. Is copying hidden behind the work? Yes: 75 % of the waiting: 2.000 s in line became 0.500 s in 2 runs.",
        "4. Does the library reach the link's speed? Yes: 90 %, where 80 is enough: 18.00 GB/s in both directions together, and \
         plain page-locked copies 20.00 (12.00 to the device and 11.00 to the host alone).",
        "5. Does it train as fast as PyTorch under the same cap? Not measured: the run left no record of models.",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn times_of_a_simulated_card_are_said_and_not_judged() {
    let mut slow = rows();
    for program in ["mlp", "conv"] {
        find(&mut slow, program, "unlimited")["seconds_per_step"] = json!(0.03);
    }
    let simulated = on("CUDA stand-in", &slow);
    let said = simulated.each_ref().map(|answer| answer.said);
    assert_eq!(said, [Said::Yes, Said::InPart, Said::NotJudged, Said::NotJudged, Said::NotMeasured]);
    assert!(simulated[1].figures.ends_with("3.00 of plain's, which is not judged on a simulated card"));
    assert_eq!(simulated[4].figures, "no model is trained on a simulated card");
    let said = |gpu: &str| super::slow(&run_of(gpu, "floor", &slow));
    assert_eq!(said("CUDA stand-in"), None);
    assert!(said(CARD).unwrap().ends_with("more than 1.10 of plain's: mlp, conv"));
}

#[test]
fn one_run_with_other_bits_answers_no_and_is_named() {
    let mut rows = rows();
    let row = find(&mut rows, "conv", "floor in line");
    (row["verdict"], row["weights_equal"]) = (json!("fail"), json!(false));
    let [numbers, ..] = on(CARD, &rows);
    assert_eq!(numbers.said, Said::No);
    assert!(numbers.figures.ends_with("; failed: conv at floor in line"), "{numbers}");
}

#[test]
fn runs_without_plains_bits_that_did_not_fail_are_counted_by_kind() {
    let mut rows = rows();
    find(&mut rows, "mlp", "50%")["verdict"] = json!("skipped");
    for budget in BUDGETS {
        find(&mut rows, "conv", budget)["losses_equal"] = json!(false);
    }
    let at = rows.iter().position(|row| row["budget"] == "25%").unwrap();
    rows.remove(at);
    let [numbers, ..] = on(CARD, &rows);
    assert_eq!(numbers.said, Said::InPart);
    let end = "of the others 1 were skipped, 1 are missing, 4 have no bits to equal, since plain's differ from run to run";
    assert!(numbers.figures.starts_with("2 of 8 cases") && numbers.figures.ends_with(end), "{numbers}");
}

#[test]
fn a_run_that_was_not_asked_for_the_floor_answers_in_part() {
    let mut rows = rows();
    rows.retain(|row| !row["budget"].as_str().is_some_and(|budget| budget.starts_with("floor")));
    let run = run_of(CARD, "100%,50%,25%", &rows);
    let [numbers, _, hidden, ..] = answers(&run, &Err(String::new()));
    assert_eq!((numbers.said, hidden.said), (Said::InPart, Said::NotMeasured));
    let end =
        "at 100%, 50% and 25% have plain's losses and weights, bit for bit; the floor was not asked for";
    assert!(numbers.figures.ends_with(end), "{numbers}");
}

#[test]
fn bytes_that_moved_or_a_slow_step_without_a_budget_answer_no() {
    let mut moving = rows();
    find(&mut moving, "conv", "unlimited")["stats"]["bytes_in"] = json!(7);
    let [numbers, resident, ..] = on(CARD, &moving);
    assert_eq!((numbers.said, resident.said), (Said::Yes, Said::No));
    assert_eq!(resident.figures, "7 bytes in conv moved");

    let mut slow = rows();
    find(&mut slow, "mlp", "unlimited")["seconds_per_step"] = json!(0.0115);
    let [_, resident, ..] = on(CARD, &slow);
    assert_eq!(resident.said, Said::No);
    assert!(resident.figures.ends_with("the most in mlp (+15.0 µs a launch)"), "{resident}");
}

#[test]
fn copies_that_wait_longer_with_overlap_and_a_slow_link_answer_no() {
    let mut rows = rows();
    for program in ["mlp", "conv"] {
        find(&mut rows, program, "floor")["stats"]["stall_seconds"] = json!(1.5);
    }
    let at = rows.iter().position(|row| !row["bandwidth"].is_null()).unwrap();
    rows[at]["bandwidth"]["seconds"] = json!(1.0);
    let [_, _, hidden, link, _] = on(CARD, &rows);
    assert_eq!((hidden.said, link.said), (Said::No, Said::No));
    assert!(hidden.figures.starts_with("-50 %") && link.figures.starts_with("45 %"), "{hidden} {link}");
}

#[test]
fn an_older_record_lacks_what_it_did_not_measure() {
    let record = xtask::workspace::root().join("benchmarks/runs/2026-11-22-cuda-stand-in/raw.jsonl");
    let run = Run::parse(&std::fs::read_to_string(record).unwrap()).unwrap();
    assert_eq!(run.shortcoming(), None);
    let answers = answers(&run, &trained_models(&run, Path::new("no-such-folder")));
    let said = answers.each_ref().map(|answer| answer.said);
    let (part, none) = (Said::InPart, Said::NotMeasured);
    assert_eq!(said, [part, part, none, none, none], "{}", text(&answers));
    assert!(answers[0].figures.starts_with("18 of 18 cases"), "{}", answers[0]);
}

#[test]
fn a_run_that_left_only_its_machine_is_answered_too() {
    let nothing = on(CARD, &[]);
    assert!(nothing.iter().all(|answer| answer.said == Said::NotMeasured), "{nothing:?}");
}
