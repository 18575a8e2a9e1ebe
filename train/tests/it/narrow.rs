//! Gradients in bf16 between ranks: half of the bytes, equal weights, another checkpoint's worth of rounding.

use crate::program::{assert_success, json};
use crate::ranks::{SHARED, has_mpi};
use crate::tiny::{Tiny, bits};

const BF16: &str = "ranks.exchange=bf16";

#[test]
fn bf16_sends_half_of_the_gradients_and_learns_as_well() {
    if !has_mpi() {
        return;
    }

    let tiny = Tiny::new();
    let settings = [&SHARED[..], &[BF16]].concat();
    let output = tiny.attempt_on("2", "run", &settings);
    assert_success(&output);
    let gradients = 2 * json(&output)["parameters"].as_u64().expect("a number");
    assert_eq!(tiny.planned_on_two(&settings)["bytes_sent_per_step"], gradients);
    for step in tiny.records("run", "step") {
        let sent = step["ranks_sent"].as_u64().expect("a number");
        assert!((gradients..gradients + 1024).contains(&sent), "{sent} for {gradients}");
    }
    tiny.assert_learns_on_two_nearly_as_well_as_exact(&[BF16], 0.02);
}

#[test]
fn sharding_and_a_resume_change_no_bit_of_an_exchange_in_bf16_and_one_process_is_exact() {
    if !has_mpi() {
        return;
    }

    let tiny = Tiny::new();
    // Host and device add the squares of a norm in different orders.
    let shared = [&SHARED[..], &["train.grad_clip=null"]].concat();
    let settings = [&shared[..], &[BF16]].concat();
    let exact = bits(&tiny.run("exact", &shared));
    assert_eq!(bits(&tiny.run("alone", &settings)), exact);
    let narrow = tiny.run_on("2", "narrow", &settings);
    assert_ne!(narrow, exact, "nothing was rounded");
    let divided = [&settings[..], &["memory.shard=true", "memory.optimizer=host"]].concat();
    assert_eq!(tiny.run_on("2", "divided", &divided), narrow);
    tiny.run_on("2", "run", &[&settings[..], &["train.steps=2"]].concat());
    assert_eq!(tiny.resume_on("2", "run", &["train.steps=4"]), narrow);
}
