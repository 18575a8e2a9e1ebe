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
    assert!(kept(&plan) > 16 * kept(&alone), "the inputs of all are kept");
    assert!(plan.host_bytes < alone.host_bytes, "no sums of gradients wait for later micro-batches");
}

#[test]
fn a_smaller_host_gets_a_smaller_group_and_no_refusal() {
    let large = "train.micro_batch=8";
    let host =
        |gib: u64| Machine { host_free: Some(1000 * GIB), host_budget: Some(gib * GIB), ..card(20 * GIB) };
    let least = chosen(&[large, "train.together=1"], &host(900)).host_bytes.div_ceil(GIB);
    let groups = [0, 60, 200].map(|more| {
        let plan = chosen(&[large], &host(least + more));
        assert_eq!(plan.refusals(), [""; 0], "{plan}");
        plan.together
    });
    assert!(groups.is_sorted() && groups[0] < groups[2], "{groups:?}");
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
