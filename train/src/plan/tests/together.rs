//! Micro-batches that pass each segment together.

use super::on_host::large;
use super::*;

const SIXTEEN: [&str; 3] = ["memory.optimizer=host", "train.accumulate=16", "train.micro_batch=2"];

fn chosen(set: &[&str], machine: &Machine) -> Plan {
    plan("gpt-7b", &[&SIXTEEN[..], set].concat(), machine)
}

#[test]
fn all_micro_batches_pass_together_if_the_host_has_room_for_their_inputs() {
    let roomy = Machine { host_free: Some(400 * GIB), host_budget: Some(360 * GIB), ..card(8 * GIB) };
    let plan = chosen(&[], &roomy);
    assert_eq!(plan.together, 16);
    assert!(plan.to_string().contains("16 micro-batches together"), "{plan}");
    let alone = chosen(&["train.together=1"], &roomy);
    let moved = |plan: &Plan| plan.bytes_in_per_step + plan.bytes_out_per_step;
    assert!(moved(&plan) < moved(&alone) / 3, "{} for {}", moved(&plan), moved(&alone));
    let kept = |plan: &Plan| held(plan, "activations").bytes;
    assert_eq!(kept(&plan), 16 * kept(&alone), "the inputs of all are kept");
    assert!(plan.host_bytes < alone.host_bytes, "no sums of gradients wait for later micro-batches");
}

#[test]
fn the_plan_states_the_bytes_of_kept_inputs() {
    let plan = |set: &[&str]| chosen(set, &card(8 * GIB));
    let [alone, group] = ["train.together=1", "train.together=4"].map(|set| plan(&[set]));
    // The first of 32 segments has tokens.
    assert_eq!(alone.kept_inputs, 31 * 4 * 4096 * 2 * 2048);
    assert_eq!(group.kept_inputs, 4 * alone.kept_inputs);
    assert_eq!(serde_json::to_value(&group).expect("plain numbers")["kept_inputs"], group.kept_inputs);
    assert!(group.to_string().contains("\nkept inputs     7.75 GiB of the activations, "), "{group}");

    let eight = plan(&["train.together=4", "memory.activations=int8"]);
    assert_eq!(eight.kept_inputs, group.kept_inputs / 4 * 33 / 32);
    let exact = plan(&["train.together=1", "train.recompute=null", "train.micro_batch=1"]);
    assert!(exact.kept_inputs == 0 && !exact.to_string().contains("kept inputs"), "{exact}");
}

#[test]
fn the_inputs_of_a_group_have_gone_when_its_gradients_are_on_the_host() {
    let roomy = Machine { host_free: Some(400 * GIB), host_budget: Some(360 * GIB), ..card(8 * GIB) };
    let plan = chosen(&["train.together=16"], &roomy);
    let (states, gradients) = (8 * plan.parameters, 4 * plan.parameters);
    assert!(plan.kept_inputs > gradients, "{plan}");
    assert!(plan.host_least > states + plan.kept_inputs, "{} of {plan}", plan.host_least);
    assert!(plan.host_least < states + plan.kept_inputs + gradients, "{} of {plan}", plan.host_least);
    // The host adds up gradients in eight bits, a segment's at a time.
    let eight = chosen(&["train.together=16", "memory.gradients=int8"], &roomy);
    assert!(eight.optimizer_host_bytes < states + 5 * plan.parameters, "{eight}");
}

#[test]
fn a_smaller_host_gets_a_smaller_group_and_no_refusal() {
    let large = "train.micro_batch=8";
    let host =
        |gib: u64| Machine { host_free: Some(1000 * GIB), host_budget: Some(gib * GIB), ..card(20 * GIB) };
    let least = chosen(&[large, "train.together=1"], &host(900)).host_bytes.div_ceil(GIB);
    let plans = [0, 60, 200].map(|more| {
        let plan = chosen(&[large], &host(least + more));
        assert_eq!(plan.refusals(), [""; 0], "{plan}");
        plan
    });
    let groups = plans.each_ref().map(|plan| plan.together);
    assert!(groups.is_sorted() && groups[0] < groups[2], "{groups:?}");

    let [small, _, roomy] = plans.map(|plan| plan.to_string());
    let note = format!("note: {} of 16 micro-batches pass together: for {}, ", groups[0], 2 * groups[0]);
    let limit = format!(" of host memory are needed, `memory.host_budget` allows {least}.00 GiB");
    assert!(small.contains(&note) && small.contains(&limit), "{small}");
    assert!(!roomy.contains("pass together: for"), "{roomy}");
}

#[test]
fn a_refusal_names_the_memory_of_the_group_that_needs_least() {
    let small = Machine { host_free: Some(64 * GIB), host_budget: Some(50 * GIB), ..card(8 * GIB) };
    let [alone, group] = ["train.together=1", "train.together=16"].map(|set| chosen(&[set], &small));
    assert!(group.host_least < alone.host_least, "sums of gradients wait on the host");
    let plan = chosen(&[], &small);
    assert!(plan.host_least <= group.host_least && !plan.refusals().is_empty(), "{plan}");
}

#[test]
fn a_group_that_would_write_more_to_the_disk_is_named() {
    let host = Machine { host_free: Some(1000 * GIB), host_budget: Some(20 * GIB), ..card(8 * GIB) };
    let above_a_disk = Machine { disk_budget: 100 * GIB, ..host };
    let plan = plan("gpt-1.5b", &["train.micro_batch=32"], &above_a_disk);
    assert_eq!(plan.together, 2, "{plan}");
    let note = "note: 2 of 4 micro-batches pass together: for 4, the disk would take ";
    assert!(plan.to_string().contains(note), "{plan}");
}

#[test]
fn a_fusing_device_adds_the_sums_of_a_group_in_one_operation() {
    let floor = |together: &str| {
        let short = ["train.micro_batch=1", "train.sequence=16", "model.vocab_size=512"];
        let settings = [&short[..], &["model.compute=f32", "tokenizer.kind=bytes", together]].concat();
        chosen(&settings, &large(8 * GIB, 400 * GIB)).floor
    };
    let [alone, four, all] = ["train.together=1", "train.together=4", "train.together=16"].map(floor);
    assert_eq!([4 * alone, 6 * alone], [3 * four, 3 * all]);
}

#[test]
fn micro_batches_pass_alone_if_nothing_spills_or_all_activations_are_kept() {
    let unlimited = Machine { device_budget: None, ..card(0) };
    let toy = |set: &[&str]| plan("toy", &[&["train.accumulate=8"], set].concat(), &unlimited).together;
    assert_eq!(toy(&["train.recompute=1"]), 1);
    assert_eq!(plan("toy", &["train.accumulate=8", "train.recompute=null"], &card(16 << 20)).together, 1);
}

#[test]
fn a_group_is_chosen_where_single_micro_batches_do_not_fit_host_memory() {
    let machine = Machine { host_budget: Some(102 * GIB), ..large(8 * GIB, 128 * GIB) };
    let settings = ["train.micro_batch=2", "train.accumulate=8"];
    let alone = plan("gpt-7b", &[&settings[..], &["train.together=1"]].concat(), &machine);
    assert_ne!(alone.refusals(), [""; 0], "sums of eight micro-batches wait on the host: {alone}");
    let chosen = plan("gpt-7b", &settings, &machine);
    assert_eq!((chosen.refusals(), chosen.together), (&[][..], 8), "{chosen}");
}
