//! Known models on described machines.

use insta::assert_snapshot;
use models::Footprint;
use proptest::prelude::*;
use runs::config::{PlacementKind, StateKind};

use super::*;

mod freeze;
mod lora;
mod on_host;
mod pipeline;
mod ranks;
mod sharded;
mod together;

const GIB: u64 = 1 << 30;
const XL: u64 = 1_557_686_400;
const SMALL: u64 = 124_475_904;
/// Padded to a multiple of 64.
const WORDS: u64 = 50_304;

fn short_steps(name: &str) -> &'static [&'static str] {
    match name {
        "gpt-124m" | "gpt-350m" => &["train.accumulate=4", "train.steps=1000"],
        "gpt-1.5b" => &["train.accumulate=4", "train.steps=500"],
        "llama-18b" => &["train.accumulate=1", "train.steps=200"],
        "gpt-7b" => &["train.accumulate=4", "train.steps=200"],
        _ => &[],
    }
}

fn plan(name: &str, set: &[&str], machine: &Machine) -> Plan {
    let set: Vec<String> = [short_steps(name), set].concat().into_iter().map(str::to_owned).collect();
    let config = Config::load(name, &set).unwrap_or_else(|error| panic!("{error}"));
    Plan::new(&config, &Footprint::of(&config.model).expect("it was checked"), machine)
}

fn card(budget: u64) -> Machine {
    Machine {
        device: "a card".to_owned(),
        device_total: Some(24 * GIB),
        device_free: Some(23 * GIB),
        device_budget: Some(budget),
        link_bytes_per_second: Some(25e9),
        flops_per_second: Some(80e12),
        host_free: Some(120 * GIB),
        host_budget: Some(96 * GIB),
        disk_free: Some(500 * GIB),
        disk_budget: 0,
        disk_bytes_per_second: None,
        measurement: None,
        shares_host: false,
        other_ranks: 0,
        network_bytes_per_second: None,
    }
}

/// `gpt-7b` with a disk of 160 GiB by default.
fn seven_above_a_disk(machine: &str, settings: &[&str]) -> Plan {
    let settings = [&["memory.disk=/", "memory.disk_budget=160GiB"], settings].concat();
    let set: Vec<_> = settings.iter().map(|set| (*set).to_owned()).collect();
    let config = Config::load("gpt-7b", &set).expect("a preset");
    let machine = machine.parse::<DescribedMachine>().expect("a machine").machine(&config);
    plan("gpt-7b", &settings, &machine.expect("described"))
}

fn held<'p>(plan: &'p Plan, what: &str) -> &'p Held {
    plan.held.iter().find(|held| held.what == what).unwrap_or_else(|| panic!("{what} is held"))
}

#[test]
fn bytes_without_room_on_the_host_spill_to_the_disk() {
    let host = Machine { host_free: Some(24 * GIB), host_budget: Some(20 * GIB), ..card(8 * GIB) };
    let without = plan("gpt-1.5b", &[], &host);
    assert!(without.refusals()[0].contains("of host memory are needed"), "{without}");
    let with = plan("gpt-1.5b", &[], &Machine { disk_budget: 40 * GIB, ..host.clone() });
    assert_eq!((with.refusals(), with.spills - with.sinks), (&[][..], 20 * GIB), "{with}");
    assert!(with.disk_read_per_step >= with.disk_written_per_step && with.disk_written_per_step > 0);
    assert!(with.to_string().contains("sink to the disk"), "{with}");
    let too_small = plan("gpt-1.5b", &[], &Machine { disk_budget: GIB / 2, ..host });
    assert_eq!(too_small.refusals().len(), 1);
    let roomy = plan("gpt-1.5b", &[], &Machine { disk_budget: 40 * GIB, ..card(8 * GIB) });
    assert_eq!((roomy.sinks, roomy.disk_written_per_step), (0, 0));
}

#[test]
fn a_disk_makes_room_for_seven_billion_parameters_with_planned_time_and_wear() {
    let described = |text: &str, more: &[&str]| {
        let on_device = ["memory.optimizer=device", "memory.optimizer_state=f32"];
        seven_above_a_disk(text, &[&on_device[..], more].concat())
    };
    let unknown = described("8GiB,24GiB,25GB/s,80TFLOP/s", &[]);
    assert_eq!((unknown.refusals(), unknown.disk_seconds), (&[][..], None), "{unknown}");
    assert!(unknown.to_string().contains("whose time is not among the times above"), "{unknown}");
    let known = described("8GiB,24GiB,25GB/s,80TFLOP/s,disk=3GB/s", &["memory.disk_endurance=600TB"]);
    let moved = known.disk_written_per_step + known.disk_read_per_step;
    let seconds = known.disk_seconds.expect("both speeds are known");
    assert!((seconds - moved as f64 / 3e9).abs() < 1e-6 && known.sinks > 60 * GIB, "{known}");
    let slower = |plan: &Plan| plan.step_seconds().expect("every speed is known").1;
    assert!((slower(&known) - slower(&unknown) - seconds).abs() < 1e-6 * seconds, "{known}");
    assert!(known.to_string().contains("at 3.00 GB/s and 3.00 GB/s, at most"), "{known}");
    assert!(known.to_string().contains("545.70 TiB of endurance last for"), "{known}");
    assert!("8GiB,24GiB,disk=fast".parse::<DescribedMachine>().is_err());
}

#[test]
fn each_rank_holds_its_share_and_sends_it_to_the_others() {
    let alone = plan("gpt-1.5b", &["train.accumulate=8"], &card(8 * GIB));
    let four = Machine { other_ranks: 3, ..card(8 * GIB) };
    let shared = plan("gpt-1.5b", &["train.accumulate=8"], &four);
    assert_eq!((alone.bytes_sent_per_step, shared.bytes_sent_per_step), (0, 6 * XL));
    assert_eq!(shared.compute_seconds.map(|own| own * 4.0), alone.compute_seconds);
    let state = |plan: &Plan| held(plan, "optimizer state").bytes;
    assert_eq!(state(&shared), state(&alone));
    let divided = plan("gpt-1.5b", &["train.accumulate=8", "memory.shard=true"], &four);
    assert_eq!(state(&divided), state(&alone).div_ceil(4));
    assert_eq!(divided.bytes_sent_per_step, (3 * XL + 3 * XL) * 5 / 4);
    // After one group only the owner's sums wait, after several all.
    let gradients = |plan: &Plan| held(plan, "gradients").bytes;
    assert_eq!((gradients(&shared), gradients(&divided)), (4 * XL, XL));
    let each = ["train.accumulate=8", "memory.shard=true", "train.together=1"];
    assert_eq!(gradients(&plan("gpt-1.5b", &each, &four)), 4 * XL);
    assert!(divided.to_string().contains("4, each with at most 2 of 8 micro-batches"), "{divided}");

    let linked = Machine { network_bytes_per_second: Some(1.25e9), ..four };
    let linked = plan("gpt-1.5b", &["train.accumulate=8"], &linked);
    assert_eq!(linked.send_seconds, Some(6.0 * XL as f64 / 1.25e9));
    let text = "sent by each per step, 7.5 s at 1.25 GB/s for the busiest card; ";
    assert!(linked.to_string().contains(text), "{linked}");
}

#[test]
fn sharding_divides_a_host_optimizers_memory_over_the_ranks() {
    let four = Machine { other_ranks: 3, host_free: Some(200 * GIB), ..card(8 * GIB) };
    let of = |more: &[&str]| {
        let set = ["train.accumulate=4", "memory.optimizer=host", "train.recompute=1", "model.compute=f32"];
        plan("gpt-1.5b", &[&set, more].concat(), &four)
    };
    let (whole, divided) = (of(&[]), of(&["memory.shard=true"]));

    // Master weights and two moments in f32, the sums, the largest gradient in flight.
    let leaving = 4 * 50_304 * 1600;
    assert_eq!(whole.optimizer_host_bytes, 12 * XL + 4 * XL + leaving);
    assert_eq!(divided.optimizer_host_bytes, (12 * XL + 4 * XL) / 4 + leaving);
    assert_eq!(divided.optimizer_step_bytes, whole.optimizer_step_bytes.div_ceil(4));
    assert_eq!((whole.bytes_sent_per_step, divided.bytes_sent_per_step), (6 * XL, (3 * XL + 3 * XL) * 5 / 4));

    // Two-byte weights, except tables and vectors.
    let narrow = of(&["memory.shard=true", "model.compute=bf16"]).bytes_sent_per_step;
    let wide = divided.bytes_sent_per_step;
    assert!(narrow < wide - XL * 5 / 4 && narrow > wide - 15 * XL / 8, "{narrow} {wide}");

    let tiles = of(&["memory.shard=true", "model.compute=bf16", "memory.stream=fp8"]).bytes_sent_per_step;
    assert!(tiles < narrow - XL * 5 / 8 && tiles > narrow - 15 * XL / 16, "{tiles} {narrow}");
}

#[test]
fn one_bit_ranks_send_under_a_thirtieth_and_keep_residuals() {
    let four = Machine { other_ranks: 3, ..card(8 * GIB) };
    let exact = plan("gpt-1.5b", &["train.accumulate=8"], &four);
    let set = ["train.accumulate=8", "ranks.exchange=one_bit", "ranks.warm_up=7"];
    let one_bit = plan("gpt-1.5b", &set, &four);
    assert!(one_bit.bytes_sent_per_step * 30 <= exact.bytes_sent_per_step, "{one_bit}");
    assert!(one_bit.bytes_sent_per_step * 32 > exact.bytes_sent_per_step, "{one_bit}");

    // The largest parameter, as a rank's sum and as the total.
    assert_eq!(exact.residual_bytes, 8 * 50_304 * 1600);
    assert_eq!(one_bit.residual_bytes, 8 * XL + 2 * XL + exact.residual_bytes);
    assert_eq!(one_bit.host_bytes - one_bit.residual_bytes, exact.host_bytes - exact.residual_bytes);
    assert!(
        one_bit
            .to_string()
            .contains("per step after 7 exact steps, whose time --link-between shows; residuals take"),
        "{one_bit}"
    );

    let alone = plan("gpt-1.5b", &set, &card(8 * GIB));
    assert_eq!((alone.bytes_sent_per_step, alone.residual_bytes), (0, 0));
    let little = Machine { host_free: Some(exact.host_bytes + GIB), ..four };
    assert_eq!(plan("gpt-1.5b", &set[..1], &little).refusals(), [""; 0]);
    assert!(plan("gpt-1.5b", &set, &little).refusals()[0].contains("of host memory are needed"));
}

#[test]
fn a_periodic_exchange_states_its_bytes_and_memory() {
    let four = Machine { other_ranks: 3, ..card(8 * GIB) };
    let of = |set: &[&str]| plan("gpt-1.5b", &[&["train.accumulate=8"], set].concat(), &four);
    let exact = of(&[]);
    let rarely = of(&["ranks.exchange=rarely", "ranks.round=20"]);
    assert_eq!(rarely.bytes_sent_per_step, exact.bytes_sent_per_step.div_ceil(20));
    assert_eq!(rarely.residual_bytes, 16 * XL);
    assert!(rarely.to_string().contains("sent by each after every round (\"20 steps\")"), "{rarely}");
    assert!(rarely.to_string().contains("; common and own weights, and momentum, take"), "{rarely}");
    let timed = of(&["ranks.exchange=rarely", "ranks.round=60 s"]);
    assert_eq!(timed.bytes_sent_per_step, exact.bytes_sent_per_step);
    assert!(timed.to_string().contains("sent by each after every round (\"60 s\")"), "{timed}");
    assert!(rarely.bytes_out_per_step < exact.bytes_out_per_step, "no gradient leaves");
    // Moments stay on the device under any budget.
    let auto = of(&["ranks.exchange=rarely", "memory.optimizer=auto"]);
    assert_eq!(auto.optimizer_host_bytes, 0);
    let alone = plan("gpt-1.5b", &["ranks.exchange=rarely", "memory.optimizer=auto"], &card(8 * GIB));
    assert_eq!(alone.optimizer_host_bytes, 0, "what a run chooses reads back");
    // Rank 0 saves weights and momentum, each other weights and two moments; two checkpoints at least.
    assert_eq!((exact.own_bytes, rarely.own_bytes, alone.own_bytes), (0, (8 + 3 * 12) * XL, 0));
    let checkpoints = rarely.checkpoints * rarely.checkpoint_bytes;
    assert_eq!(rarely.disk_bytes, checkpoints + rarely.own_files * rarely.own_bytes);
    let few = of(&["ranks.exchange=rarely", "checkpoint.every=0", "eval.every=0"]);
    assert_eq!(few.disk_bytes, few.checkpoint_bytes + few.own_bytes);
    let last =
        of(&["ranks.exchange=rarely", "checkpoint.every=10", "eval.every=0", "checkpoint.keep_last=1"]);
    assert_eq!((last.checkpoints, last.own_files), (2, 3));
    assert_eq!(of(&["ranks.exchange=one_bit"]).own_bytes, 5 * 4 * XL);
    let changes = of(&["ranks.exchange=rarely", "ranks.changes=one_bit"]);
    assert_eq!(changes.own_bytes, rarely.own_bytes + 5 * 4 * XL);
}

#[test]
fn the_planned_disk_bytes_include_an_index_of_the_training_text() {
    const LOOKS_UP: &str = "model.longest_match=true";
    let of =
        |set: &[&str], free: u64| plan("gpt-1.5b", set, &Machine { disk_free: Some(free), ..card(8 * GIB) });
    let data = Some(Epoch { sequences: 1, counted_targets: 1, seen_targets: 1, tokens: GIB });
    let unknown = of(&[LOOKS_UP], 500 * GIB).over(None);
    assert!(
        unknown.to_string().contains("an index of at most 8 bytes per token of the training text"),
        "{unknown}"
    );
    let known = of(&[LOOKS_UP], 500 * GIB).over(data);
    assert_eq!((known.index_bytes, known.disk_bytes), (Some(8 * GIB), unknown.disk_bytes + 8 * GIB));
    assert!(known.to_string().contains("and an index of at most 8.00 GiB"), "{known}");
    let without = of(&[], 500 * GIB).over(data);
    assert!(without.index_bytes.is_none() && !without.to_string().contains("index"), "{without}");
    let scarce = of(&[LOOKS_UP], known.checkpoint_bytes + GIB).over(data);
    assert!(scarce.refusals()[0].contains("the index of the training text takes up to 8.00 GiB"), "{scarce}");
}

#[test]
fn a_plan_needs_no_machine() {
    let plan = plan("gpt-1.5b", &[], &Machine::default());
    assert_eq!(plan.parameters, XL);
    assert_eq!((plan.tokens_per_step, plan.tokens), (32_768, 16_384_000));
    assert_eq!(held(&plan, "weights").bytes, 4 * XL);
    assert_eq!(held(&plan, "gradients").bytes, 4 * XL);
    assert_eq!(held(&plan, "optimizer state").bytes, 8 * XL);

    // One residual stream per block and token.
    assert_eq!(held(&plan, "activations").bytes, 48 * 1600 * 4 * 8 * 1024);
    // Two MLP-wide tensors, one block's tape and bf16 weights.
    let block_tape = 2 * 4 * 1601 + (5 * 2 + 4) * 1600 + 25 * 4 + (4 + 2) * 6400 + 2 * 1600;
    let passing = (2 * 4 * 6400 + block_tape) * 8 * 1024 + 2 * (12 * 1600 * 1600 + 13 * 1600);
    assert_eq!(held(&plan, "working memory").bytes, passing);

    assert_eq!(held(&plan, "partial sums of gradients").bytes, 4 * XL);
    assert_eq!(plan.working_set, passing + 20 * XL + held(&plan, "activations").bytes);

    // The embedding, its gradient, two moments, three blocks of rows.
    assert_eq!(plan.floor, 4 * WORDS * 1600 * 4 + 3 * (4 << 20));
    assert_eq!(plan.checkpoint_bytes, 12 * XL);
    assert_eq!((plan.checkpoints, plan.disk_bytes), (3, 36 * XL));

    // Per parameter, 6 for blocks and head and 8 for recomputed blocks; the whole square of attention.
    let blocks = XL - (WORDS + 1024 + 2) * 1600;
    let attention = 2 * 2 * 48 * 1600 * 1024;
    let flops = 8 * blocks + 6 * WORDS * 1600 + 4 * attention;
    assert_eq!(plan.flops_per_step as u64, flops * 32_768);
    assert_eq!((plan.spills, plan.bytes_in_per_step, plan.bytes_out_per_step), (0, 0, 0));
    assert_eq!(plan.refusals(), [""; 0]);
    assert_eq!((plan.slowdown_hidden, plan.step_seconds()), (None, None));
}

#[test]
fn spilling_everything_costs_24_bytes_in_and_16_out_per_parameter() {
    let plan = plan("gpt-1.5b", &["train.accumulate=1"], &card(0));
    let passing = held(&plan, "working memory").bytes + held(&plan, "activations").bytes;
    assert_eq!(plan.bytes_in_per_step, 24 * XL + passing);
    assert_eq!(plan.bytes_out_per_step, 16 * XL + passing);
    assert_eq!(plan.stays, 0);
    let json = serde_json::to_value(&plan).expect("plain numbers");
    assert_eq!(json["bytes_in_per_step"], plan.bytes_in_per_step);
    assert_eq!(json["held"][1]["what"], "weights");
    assert_eq!(json["refusals"].as_array().map(Vec::len), Some(plan.refusals().len()));
}

#[test]
fn the_most_often_used_bytes_spill_last() {
    let set = ["train.accumulate=1", "train.micro_batch=16"];
    let one_round = |budget| plan("gpt-1.5b", &set, &card(budget));
    let room = |plan: &Plan| held(plan, "working memory").bytes;
    let working = room(&one_round(0));
    // Room for half of weights, gradients and two moments: only moments spill.
    let half = one_round(working + 8 * XL);
    assert_eq!((half.bytes_in_per_step, half.bytes_out_per_step), (8 * XL, 8 * XL));
    // A quarter fits: gradients and activations spill, too.
    let quarter = one_round(working + 4 * XL);
    let moved = 12 * XL + held(&quarter, "activations").bytes;
    assert_eq!((quarter.bytes_in_per_step, quarter.bytes_out_per_step), (moved, moved));
}

#[test]
fn every_round_of_accumulation_streams_the_weights_again() {
    let rounds = |count: u64| plan("gpt-1.5b", &[&format!("train.accumulate={count}")], &card(0));
    let (four, five) = (rounds(4), rounds(5));
    let passing = held(&four, "working memory").bytes + held(&four, "activations").bytes;
    assert_eq!(five.bytes_in_per_step - four.bytes_in_per_step, (8 + 4) * XL + passing);
    assert_eq!(five.bytes_out_per_step - four.bytes_out_per_step, 4 * XL + passing);
}

#[test]
fn without_recomputation_a_micro_batch_has_gradients_of_its_own() {
    let whole = plan("gpt-124m", &["train.recompute=null", "train.accumulate=2"], &card(GIB));
    assert_eq!(held(&whole, "a micro-batch's gradients").bytes, 4 * SMALL);
    assert!(held(&whole, "narrow copies of weights").bytes > 0, "the tape holds them");
    let again = plan("gpt-124m", &["train.accumulate=2", "train.together=1"], &card(GIB));
    assert!(again.held.iter().all(|held| held.what != "a micro-batch's gradients"));
    assert!(again.working_set < whole.working_set / 2);
}

#[test]
fn each_optimizer_keeps_its_stated_bytes_of_state() {
    let state = |optimizer: &str| {
        let plan = plan("gpt-124m", &[&format!("train.optimizer={optimizer}")], &card(GIB));
        held(&plan, "optimizer state").bytes
    };
    let matrices = 12 * 12 * 768 * 768;
    assert_eq!(state("adamw"), 8 * SMALL);
    assert_eq!(state("sgd"), 4 * SMALL);
    assert_eq!(state("muon"), 8 * (SMALL - matrices) + 4 * matrices);
}

#[test]
fn checkpoints_are_counted_as_they_are_kept() {
    let count = |set: &[&str]| plan("gpt-124m", set, &card(GIB)).checkpoints;
    let every = "checkpoint.every=10";
    assert_eq!(count(&[every]), 2 + 2, "the last two, the best, and one being written");
    assert_eq!(count(&[every, "checkpoint.keep_every=250"]), 2 + 3 + 1, "the best is kept for good");
    assert_eq!(count(&[every, "checkpoint.keep_every=15"]), 4 + 960 / 30, "only multiples of both exist");
    assert_eq!(count(&["checkpoint.every=0"]), 2 + 1, "evaluations save the best");
    assert_eq!(count(&["checkpoint.every=0", "eval.every=0"]), 1);
    assert_eq!(count(&["checkpoint.every=600", "eval.every=0"]), 2, "no more than are made");
}

#[test]
fn the_table_lists_memory_traffic_and_time() {
    assert_snapshot!(plan("gpt-1.5b", &[], &card(8 * GIB)), @r"
    1,557,686,400 parameters on a card
                                      bytes       stays      moves
    working memory                 1.03 GiB    1.03 GiB        0 B
    a group's sums of gradients  234.53 MiB  234.53 MiB        0 B
    weights                        5.80 GiB    5.80 GiB        0 B
    gradients                      5.80 GiB  955.89 MiB   4.87 GiB
    activations                   10.27 GiB  955.89 MiB   9.34 GiB
    optimizer state               11.61 GiB         0 B  11.61 GiB
    at the worst moment           28.95 GiB    8.00 GiB  20.95 GiB

    tokens          32,768 per step (4 × 8 sequences of 1,024, 4 micro-batches together), 16,384,000 in 500 steps
    arithmetic      444 TFLOP per step, 222 PFLOP in all, at 80.0 TFLOP/s
    kept inputs     9.18 GiB of the activations, until their blocks run again
    optimizer       on the device
    device budget   8.00 GiB, 23.00 GiB free, 24.00 GiB in all
    its floor       about 1.21 GiB, the largest operation; a smaller budget may not work
    link            25.82 GiB in and 25.82 GiB out per step, at 25.0 GB/s (estimated)
    slowdown        1.0× (copies behind arithmetic) to 1.4× (copies waited for)
    time            at best 5.5 s to 7.8 s per step, 47 min to 65 min in all (estimated)
    host memory     20.95 GiB, 120.00 GiB free
    disk            52.23 GiB for 3 checkpoints of 17.41 GiB, 500.00 GiB free
    ");
    let unmeasured = Machine { device: "the CPU".to_owned(), ..Machine::default() };
    assert_snapshot!(plan("toy", &["memory.device_budget=auto"], &unmeasured), @r"
    917,504 parameters on the CPU
                             bytes      stays  moves
    working memory        8.00 MiB   8.00 MiB    0 B
    rotary tables        32.00 KiB  32.00 KiB    0 B
    weights               3.50 MiB   3.50 MiB    0 B
    gradients             3.50 MiB   3.50 MiB    0 B
    activations          35.73 MiB  35.73 MiB    0 B
    optimizer state       4.00 MiB   4.00 MiB    0 B
    at the worst moment  51.26 MiB  51.26 MiB    0 B

    tokens          1,024 per step (16 sequences of 64), 716,800 in 700 steps
    arithmetic      5.64 GFLOP per step, 3.95 TFLOP in all
    optimizer       on the device
    device budget   unlimited
    its floor       about 6.00 MiB, the largest operation; a smaller budget may not work
    link            nothing has to move
    host memory     0 B
    disk            30.00 MiB for 4 checkpoints of 7.50 MiB
    ");
}

#[test]
fn a_plan_says_whether_its_speeds_were_measured_just_now_or_kept() {
    let table = |measurement| plan("gpt-1.5b", &[], &Machine { measurement, ..card(8 * GIB) }).to_string();
    let at = 1_700_000_000;
    assert!(table(Some(Measurement { at, kept: false })).contains("\nspeeds          measured just now\n"));
    let kept = "\nspeeds          measured on 2023-11-14 and kept; `train plan --measure` measures again\n";
    assert!(table(Some(Measurement { at, kept: true })).contains(kept));
    assert!(!table(None).contains("\nspeeds "));
}

#[test]
fn measured_speeds_change_times_but_no_placement() {
    let set = ["memory.optimizer=auto", "train.recompute=1", "memory.disk=/", "memory.disk_budget=160GiB"];
    let set = set.map(str::to_owned);
    for preset in ["toy", "gpt-124m", "gpt-1.5b", "gpt-7b"] {
        let config = Config::load(preset, &set).expect("a preset");
        let footprint = Footprint::of(&config.model).expect("it was checked");
        for gib in [1, 8, 20] {
            let decided = |speed: Option<f64>| {
                let machine = Machine {
                    link_bytes_per_second: speed,
                    flops_per_second: speed,
                    disk_bytes_per_second: speed.map(|speed| [speed; 2]),
                    disk_budget: 160 * GIB,
                    ..card(gib * GIB)
                };
                let config = placed(&config, &footprint, &machine);
                let plan = Plan::new(&config, &footprint, &machine);
                (config.to_json(), plan.states_on_disk, plan.refusals)
            };
            let unknown = decided(None);
            for speed in [1e3, 1e9, 1e15] {
                assert_eq!(decided(Some(speed)), unknown, "{preset} in {gib} GiB at {speed}");
            }
        }
    }
}

#[test]
fn predictions_are_compared_with_measurements() {
    let measured = Measured {
        peak_device_bytes: 8 * GIB - 4096,
        peak_host_bytes: 21 * GIB,
        bytes_in_per_step: 40 * GIB,
        bytes_out_per_step: 44 * GIB,
        step_seconds: 8.0,
        largest_operation: 2 * GIB,
        checkpoint_bytes: Some(12 * XL),
    };

    assert_snapshot!(plan("gpt-1.5b", &[], &card(8 * GIB)).compare(&measured), @r"
                             predicted   measured  ratio
    device                    8.00 GiB   8.00 GiB   1.00
    host                     20.95 GiB  21.00 GiB   1.00
    in per step              25.82 GiB  40.00 GiB   1.55
    out per step             25.82 GiB  44.00 GiB   1.70
    largest operation         1.21 GiB   2.00 GiB   1.65
    checkpoint               17.41 GiB  17.41 GiB   1.00
    step, copies hidden          5.5 s      8.0 s   1.44
    step, copies waited for      7.8 s      8.0 s   1.03
    ");
}

#[test]
fn a_plan_that_cannot_work_is_refused_with_a_remedy() {
    let refused =
        |name: &str, set: &[&str], machine: Machine| plan(name, set, &machine).refusals().join("\n");
    assert_snapshot!(refused("gpt-124m", &[], card(64 << 20)), @"the device budget of 64.00 MiB is below what one operation needs, at least 294.75 MiB; raise `memory.device_budget` above 601.50 MiB, lower `train.micro_batch` or `train.sequence`, or take a smaller model or vocabulary");
    let unlimited = Machine { device_budget: None, ..card(0) };
    assert_snapshot!(refused("gpt-1.5b", &[], unlimited), @r#"32.39 GiB of device memory would be used, since there is no limit, and 23.00 GiB are free on a card; set `memory.device_budget` to "auto" or less than is free, so that the rest spills"#);
    let small_host = Machine { host_free: Some(16 * GIB), host_budget: Some(12 * GIB), ..card(8 * GIB) };
    let wide = ["train.recompute=null", "model.compute=f32"];
    assert_snapshot!(refused("gpt-1.5b", &wide, small_host), @r#"61.78 GiB of host memory are needed, `memory.host_budget` allows 12.00 GiB, 16.00 GiB are free; set `train.micro_batch` = 4 with `train.accumulate` = 8 (the working set shrinks from 69.78 GiB to 55.20 GiB), or set `train.recompute` = 1 (the working set shrinks from 69.78 GiB to 32.58 GiB), or set `model.compute` = "bf16" (the working set shrinks from 69.78 GiB to 60.81 GiB), or raise `memory.device_budget`, or take a smaller model"#);
    let laptop = Machine {
        device: "the CPU".to_owned(),
        shares_host: true,
        host_free: Some(16 * GIB),
        ..Machine::default()
    };
    assert_snapshot!(refused("gpt-1.5b", &["train.micro_batch=1"], laptop), @"29.69 GiB of host memory are needed, 16.00 GiB are free; take a smaller model");
    let full_disk = Machine { disk_free: Some(8 * GIB), ..card(16 * GIB) };
    assert_snapshot!(refused("gpt-1.5b", &[], full_disk), @"a checkpoint takes 17.41 GiB and 8.00 GiB are free on the disk; make room, or choose another with --out");
}

#[test]
fn a_machine_that_has_enough_is_not_refused() {
    for name in ["toy", "gpt-124m", "gpt-350m", "gpt-1.5b", "gpt-7b"] {
        for budget in [8, 16, 22] {
            let machine = Machine { host_free: Some(160 * GIB), host_budget: None, ..card(budget * GIB) };
            assert_eq!(plan(name, &[], &machine).refusals(), [""; 0], "{name} in {budget} GiB");
        }
    }
}

#[test]
fn sizes_beyond_any_machine_are_refused_instead_of_overflowing() {
    let plan = plan("gpt-124m", &["train.micro_batch=4000000000000", "train.steps=101"], &card(8 * GIB));
    assert!(plan.refusals().len() >= 2, "{plan}");
}

#[test]
fn huge_counts_do_not_crash_the_plan() {
    for count in [100_000_000_000_u64, u64::MAX] {
        for key in [
            "checkpoint.keep_last",
            "checkpoint.keep_every",
            "checkpoint.every",
            "eval.every",
            "eval.sequences",
            "eval.sample_every",
            "train.recompute",
            "train.bad_steps",
        ] {
            let set = ["checkpoint.keep_every=1", &format!("{key}={count}")];
            let plan = plan("toy", &set, &card(8 * GIB));
            assert_eq!(plan.refusals(), [""; 0], "{key} = {count}");
        }
    }
}

#[test]
fn rotary_tables_are_held_and_refuse_a_context_that_no_machine_has() {
    // A cosine and a sine per position and feature of heads of 32.
    let toy = plan("toy", &[], &card(8 * GIB));
    let tables = |positions: u64| 2 * positions * 32 * 4;
    let config = Config::load("toy", &[]).expect("a preset");
    assert_eq!(held(&toy, "rotary tables").bytes, tables(config.model.n_positions as u64));
    let long = ["model.n_positions=100000000000", "train.sequence=64"];
    let absurd = plan("toy", &long, &card(8 * GIB));
    assert_eq!(held(&absurd, "rotary tables").bytes, tables(100_000_000_000));
    assert!(absurd.refusals().join("\n").contains("of host memory are needed"), "{absurd}");
}

#[test]
fn the_plan_states_the_share_of_targets_that_training_sees() {
    let mut plan = plan("toy", &[], &card(8 * GIB));
    assert!(!plan.to_string().contains("counted targets"), "nothing is cut yet");
    plan.data = Some(Epoch { sequences: 1200, counted_targets: 4000, seen_targets: 3999, tokens: 5000 });
    let line = "data            1,200 sequences per epoch, which see 100.0 % of 4,000 counted targets";
    assert!(plan.to_string().contains(line), "{plan}");
    assert_eq!(serde_json::to_value(&plan).expect("plain numbers")["data"]["seen_targets"], 3999);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(suite::cases(256)))]

    #[test]
    fn more_budget_never_spills_more(
        budgets in (0..64 * GIB, 0..64 * GIB),
        (micro_batch, accumulate) in (1..33_usize, 1..9_usize),
        recompute in prop::option::of(1..13_usize),
        optimizer in prop::sample::select(vec!["adamw", "muon", "sgd"]),
        preset in prop::sample::select(vec!["toy", "gpt-124m", "gpt-1.5b"]),
        together in prop::sample::select(vec![1, 2, 8]),
    ) {
        let together = if recompute.is_some() { together } else { 1 };
        let recompute = recompute.map_or("null".to_owned(), |every| every.to_string());
        let set = [
            format!("train.micro_batch={micro_batch}"),
            format!("train.accumulate={accumulate}"),
            format!("train.recompute={recompute}"),
            format!("train.optimizer={optimizer}"),
            format!("train.together={together}"),
        ];
        let set = set.each_ref().map(String::as_str);
        let (less, more) = (budgets.0.min(budgets.1), budgets.0.max(budgets.1));
        let (tight, wide) = (plan(preset, &set, &card(less)), plan(preset, &set, &card(more)));
        prop_assert!(wide.spills <= tight.spills);
        prop_assert!(wide.bytes_in_per_step <= tight.bytes_in_per_step);
        prop_assert!(wide.bytes_out_per_step <= tight.bytes_out_per_step);
        prop_assert!(wide.slowdown_waiting <= tight.slowdown_waiting);
        prop_assert_eq!(tight.stays + tight.spills, tight.working_set);
        prop_assert!(tight.stays <= less);
        for (wide, tight) in wide.held.iter().zip(&tight.held) {
            prop_assert!(wide.spills <= tight.spills, "{}", wide.what);
        }
    }
}
