//! The optimizer on the host: the device's bits if both round alike, equal bits under each budget, resumes.

use std::fs;

use serde_json::Value;

use crate::program::{assert_code, json, last_words};
use crate::tiny::{TIGHT, Tiny, bits, number};

const HOST: &str = "memory.optimizer=host";
const AUTO: &str = "memory.optimizer=auto";
/// The host sums the norm otherwise: clipping would change last digits.
const UNCLIPPED: &str = "train.grad_clip=null";
const TWO: &str = "model.n_layer=2";
const NARROW: &str = "model.compute=bf16";

fn final_loss(tiny: &Tiny, out: &str) -> f64 {
    *tiny.losses(out).last().expect("a step was taken")
}

#[test]
fn in_f32_host_steps_have_the_devices_bits() {
    let cases: [&[&str]; 5] = [
        &[TWO, "train.recompute=1", "train.accumulate=2"],
        &["train.optimizer=muon", TWO],
        &["train.optimizer=sgd", "train.lr=0.1", "train.accumulate=2"],
        &["model.resid_pdrop=0.2", "train.accumulate=3"],
        &[],
    ];
    let tiny = Tiny::new();
    for (n, settings) in suite::first(2, &cases).iter().enumerate() {
        let settings = [*settings, &[UNCLIPPED, "train.steps=8"]].concat();
        let device = tiny.run(&format!("device-{n}"), &settings);
        let host = tiny.run(&format!("host-{n}"), &[&settings[..], &[HOST]].concat());
        assert_eq!(bits(&host), bits(&device), "{settings:?}");
        let tight = tiny.run(&format!("tight-{n}"), &[&settings[..], &[HOST, TIGHT]].concat());
        assert_eq!(bits(&tight), bits(&device), "{settings:?}");
    }
}

#[test]
fn a_tight_budget_changes_no_bit_of_any_format() {
    const BUDGET: &str = "memory.device_budget=600KiB";
    let cases: [&[&str]; 7] = [
        &[NARROW, "memory.optimizer_state=compact", TWO, "train.recompute=1", "train.accumulate=2"],
        &["train.optimizer=sgd", NARROW, "memory.optimizer_state=bf16", "train.accumulate=2"],
        &[],
        &[NARROW],
        &[NARROW, "memory.optimizer_state=bf16", "train.accumulate=2"],
        &[NARROW, "memory.optimizer_state=compact"],
        // Muon's step on the device needs more memory.
        &["train.optimizer=muon", NARROW, "memory.optimizer_state=bf16", "memory.device_budget=800KiB"],
    ];
    let tiny = Tiny::new();
    for (n, settings) in suite::first(3, &cases).iter().enumerate() {
        tiny.assert_spills_to_the_same_bits(&n.to_string(), BUDGET, &[&[HOST], *settings].concat());
    }
}

#[test]
fn narrow_formats_learn_nearly_as_well_as_the_exact_one() {
    let tiny = Tiny::new();
    let settings = [HOST, NARROW, "train.steps=60"];
    tiny.run("exact", &settings);
    for format in suite::first(1, &["compact", "bf16"]) {
        let state = format!("memory.optimizer_state={format}");
        tiny.run(format, &[&settings[..], &[&state]].concat());
        let (exact, narrow) = (final_loss(&tiny, "exact"), final_loss(&tiny, format));
        assert!(exact.to_bits() != narrow.to_bits(), "{format} rounds nothing");
        assert!((exact - narrow).abs() < 0.05 * exact, "{format}: {narrow} where {exact} is exact");
    }
}

#[test]
fn a_run_resumes_from_its_checkpoint_to_the_same_bits_in_every_format() {
    let tiny = Tiny::new();
    let cases = [["adamw", "compact"], ["sgd", "bf16"], ["adamw", "f32"], ["adamw", "bf16"]];
    for [optimizer, state] in suite::first(1, &cases) {
        let (rule, format) =
            (format!("train.optimizer={optimizer}"), format!("memory.optimizer_state={state}"));
        let name = format!("{optimizer}-{state}");
        tiny.assert_resumes_to_the_same_bits(&name, &[HOST, NARROW, TIGHT, &rule, &format]);
    }
}

#[test]
fn a_resumed_run_can_move_its_optimizer_between_device_and_host() {
    let tiny = Tiny::new();
    for optimizer in suite::first(1, &["adamw", "sgd"]) {
        let rule = format!("train.optimizer={optimizer}");
        let [whole, run] = ["whole", "run"].map(|run| format!("{run}-{optimizer}"));
        let whole = tiny.run(&whole, &[UNCLIPPED, &rule, "train.steps=9"]);
        tiny.run(&run, &[UNCLIPPED, &rule, "train.steps=3"]);
        tiny.resume(&run, &["train.steps=6", HOST]);
        let resumed = tiny.resume(&run, &["train.steps=9", "memory.optimizer=device"]);
        assert_eq!(bits(&resumed), bits(&whole), "{optimizer}");
    }
}

#[test]
fn a_checkpoint_holds_f32_for_any_compute_type() {
    let tiny = Tiny::new();
    let exact = tiny.run("exact", &[HOST, UNCLIPPED, "train.steps=2"]);
    tiny.run("narrow", &[HOST, UNCLIPPED, NARROW, "memory.optimizer_state=compact", "train.steps=2"]);
    let size = |run: &str| {
        let folder = tiny.join(run).join("checkpoints/step-00000002");
        ["model.safetensors", "optimizer.safetensors"].map(|file| {
            fs::metadata(folder.join(file)).unwrap_or_else(|error| panic!("{file}: {error}")).len()
        })
    };
    let [weights, moments] = size("exact");
    assert_eq!(size("narrow")[0].abs_diff(weights) / 64, 0, "but for the model's description");
    assert_eq!(size("narrow")[1], moments);
    assert!(weights > 4 * exact["parameters"].as_u64().expect("a number"));
}

#[test]
fn a_checkpoint_reads_from_the_device_only_what_the_host_lacks() {
    let tiny = Tiny::new();
    for (format, reads) in [("f32", false), ("bf16", false), ("compact", true)] {
        let state = format!("memory.optimizer_state={format}");
        let settings = [HOST, NARROW, &state, "checkpoint.last=false"];
        let read = |run: &str, more: &[&str]| {
            let run = tiny.run(&format!("{run}-{format}"), &[&settings[..], more].concat());
            run["bytes_read"].as_u64().expect("a number")
        };
        let [never, often] = [read("never", &[]), read("often", &["checkpoint.every=1"])];
        assert_eq!(often > never, reads, "{format}: {often} bytes after {never}");
    }
}

#[test]
fn settings_that_exclude_each_other_are_refused() {
    let tiny = Tiny::new();
    let sgd = tiny.attempt("run", &[HOST, "train.optimizer=sgd", "memory.optimizer_state=compact"]);
    assert_code(&sgd, 2);
    assert!(last_words(&sgd, tiny.path()).contains("is for the two moments of adamw"));
    let blocks = tiny.attempt("run", &["memory.device_blocks=1"]);
    assert_code(&blocks, 2);
    assert!(last_words(&blocks, tiny.path()).contains("is for an optimizer on the host"));
    let blocks = tiny.attempt("run", &[HOST, "memory.device_blocks=2"]);
    assert_code(&blocks, 2);
    assert!(last_words(&blocks, tiny.path()).contains("more than the model's `n_layer` = 1"));
    let state = tiny.attempt("run", &["memory.optimizer_state=compact"]);
    assert_code(&state, 2);
    assert!(last_words(&state, tiny.path()).contains("set it to \"f32\", or `memory.optimizer` to \"host\""));
}

#[test]
fn blocks_that_stay_on_the_device_are_stepped_there() {
    let tiny = Tiny::new();
    let mixed = [HOST, UNCLIPPED, TWO, "memory.device_blocks=1"];
    let device = tiny.run("device", &[UNCLIPPED, TWO]);
    assert_eq!(bits(&tiny.run("mixed", &mixed)), bits(&device));
    assert_eq!(bits(&tiny.run("tight", &[&mixed[..], &[TIGHT]].concat())), bits(&device));
    tiny.run("all", &[HOST, UNCLIPPED, TWO]);
    let written = |run: &str| tiny.records(run, "step")[1]["bytes_written"].as_u64().expect("a number");
    let block = 4 * 12 * 128 * 128;
    assert_eq!(written("all") - written("mixed"), block, "the first block stays where it is");

    let shown = |run: &str| {
        let start = tiny.records(run, "start").remove(0);
        let updates = tiny.records(run, "step").iter().map(|step| step["host_step_ms"].as_f64()).collect();
        (start["optimizer_on"].clone(), start["device_blocks"].as_u64(), updates)
    };
    let (place, blocks, updates): (_, _, Vec<_>) = shown("mixed");
    assert_eq!((place, blocks), ("host".into(), Some(1)));
    assert!(updates.iter().skip(1).all(|took| *took > Some(0.0)), "{updates:?}");
    assert_eq!(shown("device"), ("device".into(), None, vec![None; 4]));

    let narrow = [HOST, NARROW, TWO, "memory.device_blocks=1", "memory.optimizer_state=compact"];
    let whole = tiny.run("whole", &[&narrow[..], &["train.steps=7"]].concat());
    tiny.run("run", &[&narrow[..], &[TIGHT]].concat());
    assert_eq!(bits(&tiny.resume("run", &["train.steps=7"])), bits(&whole));
}

#[test]
fn auto_is_decided_once_and_saved() {
    let tiny = Tiny::new();
    let chosen = |run: &str| {
        let text = fs::read_to_string(tiny.join(run).join("config.json")).expect("a run");
        let config: Value = serde_json::from_str(&text).expect("JSON");
        config["memory"]["optimizer"].as_str().expect("a word").to_owned()
    };
    tiny.run("roomy", &[AUTO]);
    assert_eq!(chosen("roomy"), "device");
    tiny.run("tight", &[AUTO, TIGHT]);
    assert_eq!(chosen("tight"), "host");
    // With room for everything, a new run would choose the device.
    tiny.resume("tight", &[AUTO, "train.steps=6", "memory.device_budget=unlimited"]);
    assert_eq!(chosen("tight"), "host");
}

#[test]
fn a_diverging_step_is_skipped_on_the_host_too() {
    let tiny = Tiny::new();
    let settings = [HOST, "train.lr=1e30", "train.bad_steps=2", "train.steps=9", "checkpoint.every=1"];
    let output = tiny.attempt("run", &settings);
    assert_code(&output, 4);
    assert_eq!(tiny.records("run", "withheld").len(), 2);
    tiny.whole_checkpoints("run");
}

/// Large matrices are moved, activations are not.
const WIDE: [&str; 8] = [
    HOST,
    NARROW,
    "model.n_layer=4",
    "model.n_embd=256",
    "train.recompute=1",
    "train.micro_batch=1",
    "train.sequence=15",
    "eval.questions=[]",
];
const EMBEDDING: u64 = 264 * 256;
/// Most bytes in a step of fifteen tokens.
const ROWS: u64 = 4 * 15 * 256;
const NARROWEST: &str = "memory.device_budget=1800KiB";

/// Two bytes per number. Of the embedding, only named rows cross.
#[test]
fn a_step_moves_each_gradient_out_once_and_each_weight_in_twice() {
    let tiny = Tiny::new();
    let settings = [&WIDE[..], &["memory.optimizer_state=compact"]].concat();
    let tight = tiny.run("tight", &[&settings[..], &[NARROWEST]].concat());
    let parameters = tight["parameters"].as_u64().expect("a number");
    let streamed = 2 * (parameters - EMBEDDING);
    let out_at_most = streamed + ROWS + 4096;

    for step in &tiny.records("tight", "step")[1..] {
        let bytes = |key: &str| step[key].as_u64().expect("a number");
        let (out, back) =
            (bytes("bytes_out") + bytes("bytes_read"), bytes("bytes_in") + bytes("bytes_written"));
        assert!((streamed..out_at_most).contains(&out), "{out} bytes out, not {streamed}: {step}");
        assert!(back <= 2 * out_at_most, "{back} bytes in, not {} at most: {step}", 2 * out_at_most);
        assert!((out + back) as f64 <= 6.2 * (parameters - EMBEDDING) as f64, "{} bytes in all", out + back);
    }
    let roomy = tiny.run("roomy", &settings);
    assert_eq!(bits(&roomy), bits(&tight));

    // The first step's weights come from no update.
    for step in &tiny.records("roomy", "step")[1..] {
        let bytes = |key: &str| step[key].as_u64().expect("a number");
        assert_eq!((bytes("bytes_out"), bytes("bytes_in")), (0, 0), "everything fits");
        assert!((streamed..out_at_most).contains(&bytes("bytes_written")), "{step}");
    }
}

/// Four bytes a number each way.
#[test]
fn only_the_embedding_rows_that_a_batch_names_cross_the_link() {
    let tiny = Tiny::new();
    let moved = |run: &str, letters: &str, more: &[&str]| {
        let text = letters.repeat(6000 / letters.len());
        fs::write(tiny.join("in.txt"), text).expect("written");
        let text = ["data.source=text", "data.path=in.txt", "eval.sequences=1"];
        tiny.run(run, &[&WIDE[..], &text, more].concat());
        let steps = tiny.records(run, "step");
        let bytes = |key: &str| steps[2][key].as_u64().expect("a number");
        [bytes("bytes_written"), bytes("bytes_read")]
    };
    let row = 4 * 256;

    for (n, (more, in_a_step)) in [(&[][..], 1), (&["train.accumulate=3"], 3)].into_iter().enumerate() {
        let [two, five] =
            ["ab", "abcde"].map(|letters| moved(&format!("{n}-{}", letters.len()), letters, more));
        for (two, five) in two.into_iter().zip(five) {
            assert_eq!(five - two, in_a_step * (5 - 2) * row, "{more:?}");
        }
    }
}

/// Rows are blocks of their own.
#[test]
fn a_step_is_predicted_although_its_batch_names_other_rows() {
    let tiny = Tiny::new();
    let settings = [
        HOST,
        "model.preset=llama-160m",
        "model.n_layer=3",
        "model.n_embd=512",
        "model.n_inner=512",
        "train.micro_batch=3",
        "train.sequence=60",
        "train.recompute=1",
        "eval.questions=[]",
        // This seed's batch has far fewer rows.
        "train.seed=7",
        "memory.device_budget=7MiB",
    ];
    let [few, many] = [4, 10].map(|steps| {
        let run = tiny.run(&steps.to_string(), &[&settings[..], &[&format!("train.steps={steps}")]].concat());
        let number = |key: &str| run[key].as_u64().expect("a number");
        assert!(number("restores") > 10 * steps, "it did not spill: {run:#}");
        [number("diverged"), number("foretold")]
    });
    println!("{few:?} {many:?}");

    // An update's end may move one of about forty operations.
    assert!(many[0].abs_diff(few[0]) <= 3, "six more steps are six times what the ones before were");
    assert!(many[1] > few[1], "operations are foretold");

    let rows = |steps: &str| -> Vec<u64> {
        tiny.records(steps, "step")
            .iter()
            .map(|step| step["bytes_read"].as_u64().expect("a number"))
            .collect()
    };
    assert!(rows("10").windows(2).any(|pair| pair[0] != pair[1]), "as many rows in each: {:?}", rows("10"));
}

/// Device bytes besides host-stepped weights: a block's waiting gradients, activations, embedding rows. The narrowest
/// budget proves the bound.
const WORKING: u64 = 1800 << 10;

#[test]
fn each_format_holds_its_stated_bytes_per_parameter() {
    let tiny = Tiny::new();
    for (format, narrow, wide, stated) in
        [("f32", 16, 12, 16.1), ("bf16", 12, 8, 12.1), ("compact", 8, 8, 8.2)]
    {
        let state = format!("memory.optimizer_state={format}");
        // Compact weights are on the device in the pass, on the host in the step.
        let unlimited = (format != "compact").then_some("memory.device_budget=unlimited");
        for budget in [NARROWEST].into_iter().chain(unlimited) {
            let out = format!("{format}-{budget}");
            let run = tiny.run(&out, &[&WIDE[..], &[&state, budget]].concat());
            let parameters = run["parameters"].as_u64().expect("a number");
            // The embedding has its state and named rows only. Bases take four bytes per 256 numbers.
            let bases = if format == "compact" { (parameters - EMBEDDING) / 64 } else { 0 };
            let held = narrow * (parameters - EMBEDDING) + wide * EMBEDDING + bases;
            let peaks =
                ["peak_device_bytes", "peak_host_bytes"].map(|key| run[key].as_u64().expect("a number"));
            // Device weights keep host copies.
            assert!(peaks[1] <= held + (64 << 10), "{format}: {} bytes on the host, not {held}", peaks[1]);
            assert!(peaks[0] + peaks[1] >= held, "{format}, {budget}: {peaks:?} bytes are less than {held}");
            // Before the first step: the whole model in f32.
            let bytes = |step: &Value, key: &str| step[key].as_u64().expect("a number");
            let in_steps = tiny.records(&out, "step").into_iter();
            let both = in_steps.map(|step| bytes(&step, "device_bytes") + bytes(&step, "host_bytes")).max();
            let at_most = (stated * parameters as f64) as u64 + WORKING;
            println!("{format}, {budget}: {both:?} of {at_most} bytes");
            assert!(both <= Some(at_most), "{format}, {budget}: {both:?} bytes are more than {at_most}");
        }
    }
}

/// Host memory outside plans, such as a batch's numbers.
const SMALL_THINGS: u64 = 8 << 10;

fn planned(tiny: &Tiny, settings: &[&str]) -> Value {
    let asked = ["plan", "--config", "tiny.json", "--device", "cpu", "--json"].into_iter();
    let asked = asked.chain(settings.iter().flat_map(|setting| ["--set", setting]));
    json(&tiny.train(&asked.collect::<Vec<_>>()))
}

#[test]
fn a_run_fits_in_the_host_memory_that_its_plan_counts() {
    let tiny = Tiny::new();
    let few: &[&str] = &[NARROWEST];
    let roomy: &[&str] = &["memory.device_budget=12MiB", "train.steps=2"];
    let many: &[&str] = &[
        "model.n_embd=128",
        "model.n_layer=8",
        "train.micro_batch=16",
        "train.sequence=60",
        "memory.device_budget=12MiB",
        "train.steps=2",
    ];
    let tied: &[&str] = &["model.tie_word_embeddings=true", "memory.device_budget=12MiB", "train.steps=2"];
    let cases = [
        ("compact", few),
        ("bf16", roomy),
        ("compact", tied),
        ("compact", many),
        ("f32", few),
        ("f32", roomy),
        ("compact", roomy),
        ("f32", many),
    ];

    for &(format, tokens) in &cases[..suite::size().pick(1, 4, 8)] {
        let state = format!("memory.optimizer_state={format}");
        let settings = [&WIDE[..], &[&state], tokens].concat();
        let plan = planned(&tiny, &settings);
        let bytes = |key: &str| plan[key].as_u64().expect("a number");
        let (all, least) = (bytes("spills") + bytes("optimizer_host_bytes"), bytes("host_least"));
        assert_eq!(least < all - all / 20, tokens == many, "{format}: {least} of {all} bytes");
        let host = format!("memory.host_budget={}B", least + SMALL_THINGS);
        let name = format!("{format}-{}-{}", tokens.len(), plan["machine"]["device_budget"]);
        let within = tiny.run(&name, &[&settings[..], &[&host]].concat());
        println!("{name}: {} of {least} bytes, {all} in all", within["peak_host_bytes"]);
        assert_eq!(bits(&within), bits(&tiny.run(&format!("{name}-roomy"), &settings)), "{settings:?}");
    }
}

/// In f32, the inputs of eight micro-batches take more than all gradients.
const GROUPED: [&str; 9] = [
    HOST,
    "model.n_layer=8",
    "model.tie_word_embeddings=true",
    "train.recompute=1",
    "train.accumulate=8",
    "train.micro_batch=8",
    "train.steps=2",
    "eval.questions=[]",
    "memory.device_budget=8MiB",
];

#[test]
fn a_run_of_groups_takes_the_host_memory_that_its_plan_counts() {
    let tiny = Tiny::new();
    let cases: [&[&str]; 4] = [
        &["train.together=8"],
        &["train.together=8", "train.micro_batch=16", "memory.activations=int8"],
        &["train.together=1"],
        &["train.together=4"],
    ];
    for (n, of_group) in suite::first(1, &cases).iter().enumerate() {
        let settings = [&GROUPED[..], of_group].concat();
        let plan = planned(&tiny, &settings);
        let (least, inputs) = (number(&plan, "host_least"), number(&plan, "kept_inputs"));
        // The plan's operations are estimates.
        let within = least - least / 20..=least + least / 20;
        let host = format!("memory.host_budget={}B", within.end());
        let run = tiny.run(&n.to_string(), &[&settings[..], &[&host]].concat());
        let peak = number(&run, "peak_host_bytes");
        println!("{of_group:?}: {peak} of {least} bytes, {inputs} of them kept inputs");
        assert!(within.contains(&peak), "{of_group:?}: {peak} bytes, not {least}");
        assert_eq!(number(&tiny.records(&n.to_string(), "step")[1], "kept_inputs"), inputs, "{of_group:?}");
    }
}

mod gate {
    use super::*;

    #[test]
    #[ignore = "gate: compares learning over 200 steps"]
    fn over_200_steps_host_losses_stay_near_the_devices_by_format() {
        let tiny = Tiny::new();
        let clipped = [
            "train.steps=200",
            "train.grad_clip=0.1",
            "train.lr=0.001",
            "train.micro_batch=1",
            "eval.questions=[]",
        ];

        let wide: [(&[&str], f64); 2] = [(&[], 1e-4), (&["memory.device_blocks=1"], 1e-4)];
        let narrow: [(&[&str], f64); 2] =
            [(&["memory.optimizer_state=compact"], 5e-2), (&["memory.optimizer_state=bf16"], 2e-2)];
        for (computed, cases) in [("model.compute=f32", wide), (NARROW, narrow)] {
            let both = [&clipped[..], &[computed]].concat();
            tiny.run(computed, &both);
            let device = tiny.losses(computed);
            assert!(device[199] < 0.8 * device[0], "{} after {}", device[199], device[0]);
            for (n, (of_host, near)) in cases[..suite::size().pick(1, 1, 2)].iter().enumerate() {
                let on_host = format!("{computed}-{n}");
                tiny.run(&on_host, &[&both[..], &[HOST], *of_host].concat());
                let losses = tiny.losses(&on_host);
                let apart = device.iter().zip(&losses).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                println!("{computed} {of_host:?}: {apart}");
                assert!(apart < *near, "{computed} {of_host:?}: losses are {apart} apart");
            }
        }
    }
}
