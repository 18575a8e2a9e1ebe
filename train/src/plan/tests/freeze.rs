//! Plans of runs with frozen groups.

use super::*;

const SETTINGS: [&str; 5] = [
    "memory.optimizer=device",
    "memory.optimizer_state=f32",
    "train.micro_batch=1",
    "train.recompute=1",
    "train.together=1",
];

fn frozen(groups: &str, set: &[&str]) -> Plan {
    let freeze = format!("train.freeze={groups}");
    plan("gpt-1.5b", &[&SETTINGS[..], &[&freeze], set].concat(), &card(4 * GIB))
}

#[test]
fn frozen_groups_have_no_gradient_and_no_state_and_leave_for_free() {
    let config = Config::load("gpt-1.5b", &[]).expect("a preset");
    let per_block = Footprint::of(&config.model).expect("valid").per_block;
    let whole = frozen("[]", &[]);
    let plan = frozen(r#"["blocks.40-47"]"#, &[]);
    let learning = XL - 8 * per_block;
    assert_eq!((plan.learning, plan.parameters), (learning, XL));
    for (what, bytes) in [("weights", 4), ("gradients", 4), ("optimizer state", 8)] {
        assert_eq!(held(&plan, what).bytes, bytes * learning, "{what}");
    }
    assert_eq!(held(&plan, "weights, frozen").bytes, 32 * per_block);
    assert_eq!(plan.checkpoint_bytes, 4 * XL + 8 * learning);
    assert!(plan.flops_per_step < whole.flops_per_step && plan.bytes_out_per_step < whole.bytes_out_per_step);
    let learns = format!("of which {} learn, on a card", crate::figures::grouped(learning));
    assert!(plan.to_string().contains(&learns), "{plan}");
}

#[test]
fn below_all_that_learns_weights_come_in_once_and_nothing_is_kept() {
    let groups = r#"["embedding", "blocks.0-23"]"#;
    let [plan, whole] = [frozen(groups, &[]), frozen("[]", &[])];
    let below = held(&plan, "weights, frozen below");
    // A tied head reads the table again.
    assert!(below.bytes > 2 * GIB, "{plan}");
    assert_eq!(held(&plan, "weights, frozen").bytes, 4 * 1600 * WORDS);
    let kept = |plan: &Plan| held(plan, "activations").bytes;
    assert_eq!(kept(&plan), kept(&whole) / 2);
    assert!(plan.flops_per_step < 0.66 * whole.flops_per_step, "{plan}");
}

#[test]
fn frozen_groups_take_nothing_of_a_host_optimizer() {
    let host = ["memory.optimizer=host", "model.compute=bf16", "memory.optimizer_state=bf16"];
    let [plan, whole] = [r#"["blocks.24-47"]"#, "[]"].map(|groups| frozen(groups, &host));
    let ratio = plan.optimizer_host_bytes as f64 / whole.optimizer_host_bytes as f64;
    assert!((0.45..0.56).contains(&ratio), "{plan}");
    let disk = Machine { disk_budget: 100 * GIB, host_budget: Some(6 * GIB), ..card(4 * GIB) };
    let sunk = self::plan(
        "gpt-1.5b",
        &[&SETTINGS[..], &host, &[r#"train.freeze=["blocks.24-47"]"#]].concat(),
        &disk,
    );
    let states = sunk.states_on_disk;
    assert!(states.contains(Some(23), 2) && sunk.optimizer_disk_bytes > 0, "{sunk}");
    assert_eq!(sunk.refusals(), [""; 0]);
}
