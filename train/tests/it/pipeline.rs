//! Processes that hold a stage of the network each, from a user's point of view.

use serde_json::Value;

use crate::program::{assert_success, json, stderr};
use crate::ranks::{SHARED, has_mpi};
use crate::tiny::{TIGHT, Tiny, bits, number};

const STAGES: [&str; 3] = ["ranks.pipeline=2", "train.recompute=1", "model.n_layer=4"];

#[test]
fn stages_evaluate_save_and_resume_as_one_process() {
    if !has_mpi() {
        return;
    }

    let tiny = Tiny::new();
    let tied = "model.tie_word_embeddings=true";
    let cases: [&[&str]; 4] = [
        &["memory.optimizer=device", TIGHT, "train.optimizer=adamw", tied],
        &["memory.optimizer=host", "memory.optimizer_state=bf16", "model.compute=bf16"],
        &["train.optimizer=muon", "model.resid_pdrop=0.1", TIGHT],
        &["memory.optimizer=host", "train.optimizer=sgd", "model.longest_match=true", tied],
    ];
    let looks = ["eval.every=2", "eval.sequences=3", "eval.sample_every=2", "eval.temperature=1"];
    let keys = ["step", "loss", "bits_per_byte", "sequences", "prompt", "text"];
    let seen = |run: &str| -> Vec<String> {
        let numbers = |record: &Value| keys.map(|key| record[key].to_string()).join(" ");
        ["eval", "sample"]
            .iter()
            .flat_map(|kind| tiny.records(run, kind))
            .map(|record| numbers(&record))
            .collect()
    };

    for (n, more) in cases[..suite::size().pick(1, 2, 4)].iter().enumerate() {
        let settings = [&SHARED[..], &STAGES, &looks, more].concat();
        let (whole, run) = (format!("whole-{n}"), format!("run-{n}"));
        let one = tiny.run(&whole, &[&settings[..], &["train.steps=6"]].concat());
        tiny.run_on("2", &run, &[&settings[..], &["train.steps=2", "checkpoint.every=1"]].concat());
        tiny.resume_on("4", &run, &["train.steps=3"]);
        tiny.resume_on("2", &run, &["train.steps=4", "ranks.pipeline=1", "memory.shard=weights"]);
        tiny.resume_on("4", &run, &["train.steps=5", "ranks.pipeline=4", "memory.shard=false"]);
        let again = tiny.resume(&run, &["train.steps=6"]);
        assert_eq!(bits(&again), bits(&one), "{more:?}");
        let (expected, found) = (seen(&whole), seen(&run));
        assert!(expected.iter().all(|line| found.contains(line)), "{more:?}: {found:?} for {expected:?}");
        assert_eq!(expected.len(), 6, "three evaluations and three samples: {expected:?}");
    }
}

#[test]
fn stages_answer_the_quiz_as_one_process() {
    if !has_mpi() {
        return;
    }

    let tiny = Tiny::new();
    let settings =
        [&SHARED[..], &STAGES, &["train.steps=1", "eval.quiz=3", "eval.max_new_tokens=6"]].concat();
    let one = tiny.run("one", &settings);
    let output = tiny.attempt_on("4", "four", &settings);
    assert_success(&output);
    let four = json(&output);
    assert_eq!(one["quiz"]["held_out"]["asked"], 3, "{one}");
    assert_eq!(four["quiz"], one["quiz"]);
    assert_eq!(tiny.records("four", "quiz"), tiny.records("one", "quiz"));
}

#[test]
fn stages_take_a_part_of_the_memory_and_send_what_the_plan_says() {
    if !has_mpi() {
        return;
    }

    let tiny = Tiny::new();
    let settings = [&SHARED[..], &STAGES, &["model.n_layer=8", "memory.optimizer=device"]].concat();
    let one = tiny.run("one", &settings);
    let output = tiny.attempt_on("2", "two", &settings);
    assert_success(&output);
    let two = json(&output);
    assert_eq!(bits(&two), bits(&one));
    let [whole, stage] = [&one, &two].map(|summary| number(summary, "peak_device_bytes"));
    assert!(5 * stage < 4 * whole, "{stage} of {whole}");

    let plan = tiny.planned_on_two(&settings);
    assert_eq!(number(&plan, "bytes_sent_per_step"), 4 * 32 * 128 * 4);
    assert!((plan["bubble"].as_f64().expect("a share") - 0.2).abs() < 1e-9, "{plan}");
    let planned = 2 * number(&plan, "bytes_sent_per_step");
    let steps = ["two", "two/ranks/1"].map(|run| tiny.records(run, "step"));
    let peak = |steps: &[Value]| steps.iter().map(|step| number(step, "device_bytes")).max();
    assert!(steps.iter().all(|steps| peak(steps) <= Some(stage)), "the summary has the largest stage");
    let crossed = steps[0].len() as u64 * 4 * 32 * 128 * 4;
    assert!(number(&two, "step_bytes_in").min(number(&two, "step_bytes_out")) >= crossed, "{two}");
    for (one, other) in steps[0].iter().zip(&steps[1]) {
        let sent: u64 = [one, other].map(|step| number(step, "ranks_sent")).iter().sum();
        assert!((planned..planned + 2048).contains(&sent), "{sent} for {planned}");
    }
}

#[test]
fn what_stages_cannot_do_is_refused_by_name() {
    let refused = |settings: &[&str]| {
        let output = Tiny::new().attempt("run", &[&STAGES[..], settings].concat());
        assert!(!output.status.success(), "{settings:?}");
        stderr(&output)
    };
    for (setting, way_out) in [
        (
            "train.recompute=null",
            "`train.recompute` = null makes none; set `train.recompute` to 1, or `ranks.pipeline` to 1",
        ),
        ("model.n_layer=1", "the model has 1; set it to at most 1"),
        ("train.recompute=4", "`train.recompute` makes 1; set it to 1"),
        ("memory.device_blocks=1", "set `memory.device_blocks` to 0"),
        ("ranks.exchange=bf16", "set `ranks.exchange` to \"exact\""),
        ("memory.shard=states", "set `memory.shard` to false"),
        ("train.together=2", "set `train.together` to \"auto\""),
        (r#"train.freeze=["embedding"]"#, "set `train.freeze` to []"),
        ("train.lora.rank=4", "leave out `train.lora`"),
    ] {
        let said = refused(&[setting]);
        assert!(said.contains("`ranks.pipeline` = 2") && said.contains(way_out), "{setting}: {said}");
    }
}
