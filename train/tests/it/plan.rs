//! `train plan`.

use std::process::Output;

use crate::program::{CACHE, PROGRAM, assert_code, assert_success, json, last_words, stderr, stdout};
use crate::tiny::Tiny;

pub(crate) const SHAPES: [&[&str]; 3] = [
    // With fewer tokens than features, Burn's row selection reads past the tokens.
    &[
        "train.optimizer=adamw",
        "model.n_embd=256",
        "train.recompute=1",
        "train.micro_batch=8",
        "train.steps=2",
    ],
    &["train.optimizer=adamw", "model.n_embd=256", "model.vocab_size=2048", "train.micro_batch=1"],
    &["train.optimizer=muon", "model.n_embd=256", "train.accumulate=2", "train.steps=2"],
];

/// Within 15 % of the plan.
pub(crate) fn assert_as_planned(output: &Output, settings: &[&str]) {
    assert_success(output);
    let said = stderr(output);
    for what in ["device", "largest operation"] {
        let row =
            said.lines().skip_while(|line| !line.contains("predicted")).find(|line| line.starts_with(what));
        let ratio =
            row.and_then(|row| row.split_whitespace().last()).and_then(|ratio| ratio.parse::<f64>().ok());
        assert!(ratio.is_some_and(|ratio| (0.85..=1.15).contains(&ratio)), "{what}, {settings:?}:\n{said}");
    }
}

#[test]
fn a_reader_that_ends_early_is_no_error() {
    let tiny = Tiny::new();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut plan = std::process::Command::new(PROGRAM);
    plan.args(["plan", "--config", "tiny.json", "--json"]).current_dir(tiny.path()).envs([CACHE]);
    assert_success(&plan.stdout(writer).output().expect("the program starts"));
}

#[test]
fn a_run_on_the_cpu_uses_the_memory_of_its_plan() {
    let tiny = Tiny::new();
    for (n, settings) in SHAPES.iter().enumerate() {
        assert_as_planned(&tiny.attempt(&format!("run-{n}"), settings), settings);
    }
}

#[test]
fn tuning_a_published_model_is_planned_from_its_description_alone() {
    let tiny = Tiny::new();
    std::fs::create_dir(tiny.join("published")).expect("a folder");
    let config = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 256,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": false}"#;
    std::fs::write(tiny.join("published/config.json"), config).expect("writing");
    let output =
        tiny.train(&["plan", "--from", "published", "--on", "8GiB,32GiB,25GB/s,80TFLOP/s", "--json"]);
    assert_success(&output);
    let plan = json(&output);
    assert_eq!(plan["tokens_per_step"], 4 * 2048, "the defaults for tuning");
    assert_eq!(plan["parameters"], 2 * 256 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64);
}

#[test]
fn a_preset_is_described_on_any_machine() {
    let tiny = Tiny::new();
    for (preset, parameters, tokens_per_step) in
        [("gpt-1.5b", 1_557_686_400_u64, 32_768), ("toy", 917_504, 1024)]
    {
        // The refusal depends on the machine.
        let output = tiny.train(&["plan", "--config", preset, "--device", "cpu", "--json"]);
        assert!(matches!(output.status.code(), Some(0 | 2)));
        let plan = json(&output);
        assert_eq!(plan["parameters"], parameters);
        assert_eq!(plan["tokens_per_step"], tokens_per_step);
        let held = plan["held"].as_array().expect("a list");
        let weights = held.iter().find(|part| part["what"] == "weights").expect("there are weights");
        assert_eq!(weights["bytes"], parameters * 4);
    }
}

#[test]
fn a_smaller_budget_moves_more() {
    let tiny = Tiny::new();
    let moved = |budget: &str| {
        let set = format!("memory.device_budget={budget}");
        let output = tiny.train(&["plan", "--device", "cpu", "--json", "--set", &set]);
        assert_success(&output);
        json(&output)["bytes_in_per_step"].as_u64().expect("a number")
    };
    assert_eq!(moved("unlimited"), 0);
    assert!(moved("12MiB") > moved("24MiB"));
}

#[test]
fn a_replayed_plan_states_the_bytes_that_a_run_moves() {
    let tiny = Tiny::new();
    let (deep, wide) = ("model.n_layer=2", "model.n_embd=256");
    let (adamw, host) = ("train.optimizer=adamw", "memory.optimizer=host");
    let cases: [(&[&str], &[&str]); 4] = [
        (&[adamw, deep, "train.recompute=1", "train.accumulate=2"], &["2MiB", "6MiB", "unlimited"]),
        (&[adamw, wide, "train.micro_batch=8"], &["5MiB", "8MiB", "unlimited"]),
        (&["train.optimizer=muon", deep], &["2MiB", "4MiB", "unlimited"]),
        (&[adamw, wide, deep, host, "train.recompute=1"], &["2MiB", "4MiB"]),
    ];

    for (n, (shape, budgets)) in suite::first(1, &cases).iter().enumerate() {
        for budget in *budgets {
            let limit = format!("memory.device_budget={budget}");
            let settings = [*shape, &["train.steps=6", &limit][..]].concat();
            let set: Vec<&str> = settings.iter().flat_map(|setting| ["--set", *setting]).collect();
            let asked = ["plan", "--replay", "--config", "tiny.json", "--device", "cpu", "--json"];
            let output = tiny.train(&[&asked[..], &set].concat());
            assert_success(&output);
            let plan = json(&output);
            let planned = |figure: &str| plan["replayed"][figure].as_u64().expect("a number");
            let run = tiny.run(&format!("run-{n}-{budget}"), &settings);
            let ran = |figure: &str| run[figure].as_u64().expect("a number");
            let moved = [planned("bytes_in"), planned("bytes_out")];
            // Blocks left on the device make some steps move one block more.
            let run_moved = [ran("spilled_in_median"), ran("spilled_out_median")];
            let are_close =
                moved.iter().zip(run_moved).all(|(one, other)| one.abs_diff(other) * 100 <= other);
            assert!(are_close, "{settings:?}: {moved:?} planned, {run_moved:?} moved");
            assert_eq!(*budget == "unlimited", moved == [0, 0], "{settings:?}");
            // The program, not the pager, copies tensors below 64 KiB.
            let [out, all] =
                [plan["bytes_out_per_step"].as_u64().expect("a number"), ran("bytes_out_median")];
            assert!(out <= all && out * 100 >= all * 99, "{settings:?}: {out} planned, {all} moved");
        }
    }
    assert!(!tiny.join("runs").exists(), "a plan leaves nothing behind");
}

#[test]
fn a_step_with_an_embedding_by_rows_is_replayed() {
    let tiny = Tiny::new();
    let asked = ["plan", "--replay", "--config", "tiny.json", "--on", "64MiB,1GiB", "--json"];
    let settings =
        ["model.n_embd=1024", "memory.optimizer=host", "train.optimizer=adamw", "memory.device_budget=auto"];
    let set: Vec<&str> = settings.iter().flat_map(|setting| ["--set", *setting]).collect();
    let output = tiny.train(&[&asked[..], &set].concat());
    assert_success(&output);
    assert!(json(&output)["replayed"]["bytes_in"].as_u64().is_some_and(|bytes| bytes > 0));
}

#[test]
fn a_plan_marks_its_replayed_numbers() {
    let tiny = Tiny::new();
    let printed = |more: &[&str]| {
        let asked = ["plan", "--config", "tiny.json", "--on", "2MiB,1GiB,25GB/s,80TFLOP/s"];
        let set = ["--set", "memory.device_budget=2MiB", "--set", "model.n_layer=2"];
        let output = tiny.train(&[&asked[..], &set, more].concat());
        assert_success(&output);
        stdout(&output)
    };
    let (estimated, replayed) = (printed(&[]), printed(&["--replay"]));
    assert!(estimated.contains("(estimated)") && !estimated.contains("(replayed)"), "{estimated}");
    assert!(replayed.contains("(replayed)") && !replayed.contains("(estimated)"), "{replayed}");
    let output = tiny.train(&["plan", "--config", "tiny.json", "--replay", "--ranks", "2"]);
    assert_code(&output, 2);
}

#[test]
fn a_printed_plan_writes_no_files() {
    let tiny = Tiny::new();
    let output = tiny.train(&["plan", "--config", "tiny.json", "--device", "cpu"]);
    assert_success(&output);
    let said = stdout(&output);
    for part in [
        "264,192 parameters",
        "optimizer state",
        "device budget   unlimited",
        "64 per step (2 sequences of 32)",
    ] {
        assert!(said.contains(part), "{part:?} is not in\n{said}");
    }
    assert!(!tiny.join("runs").exists());
}

#[test]
fn a_run_that_cannot_work_is_refused_before_it_begins() {
    let tiny = Tiny::new();
    let absurd = ["--config", "gpt-7b", "--set", "model.n_layer=4000", "--device", "cpu"];
    for verb in ["plan", "run"] {
        let output = tiny.train(&[&[verb][..], &absurd].concat());
        assert_code(&output, 2);
        let said = last_words(&output, tiny.path());
        for part in [
            "this run cannot work here",
            "11.29 TiB of host memory are needed",
            "`memory.optimizer_state`",
            "a checkpoint takes 8.84 TiB",
        ] {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
    }

    assert!(!tiny.join("runs").exists());
    let output = tiny.attempt("run", &["memory.device_budget=1MiB", "memory.host_budget=256KiB"]);
    assert_code(&output, 2);
    insta::assert_snapshot!(last_words(&output, tiny.path()));
    assert!(!tiny.join("run").exists());
}

#[test]
fn a_described_machine_is_planned_for_without_opening_a_device() {
    let tiny = Tiny::new();
    let asked = |machine: &'static str| {
        tiny.train(&["plan", "--config", "gpt-1.5b", "--on", machine, "--set", "memory.device_budget=auto"])
    };
    let output = asked("rtx-4090,128GiB");
    assert_success(&output);

    let said = stdout(&output);
    for part in
        ["on a card like rtx-4090 (data sheet, not measured)", "21.60 GiB, 24.00 GiB free", "25.0 GB/s"]
    {
        assert!(said.contains(part), "{part:?} is not in\n{said}");
    }

    let small = asked("6GiB,8GiB,12GB/s,10TFLOP/s");
    assert_code(&small, 2);
    assert!(last_words(&small, tiny.path()).contains("of host memory are needed"));

    let unknown = asked("rtx-1,8GiB");
    assert_code(&unknown, 2);
    assert!(last_words(&unknown, tiny.path()).contains("rtx-4090"));
}
