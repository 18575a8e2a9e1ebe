//! Plans of a pipeline's largest stage.

use super::*;

const SETTINGS: [&str; 6] = [
    "train.recompute=1",
    "train.accumulate=8",
    "train.together=1",
    "train.steps=100",
    "eval.questions=[]",
    "eval.quiz=0",
];

#[test]
fn a_pipeline_plans_its_largest_stage_its_messages_and_its_idle_turns() {
    let eight = Machine { other_ranks: 7, network_bytes_per_second: Some(1.25e9), ..card(8 * GIB) };
    let [whole, staged] = ["1", "4"].map(|stages| {
        let stages = format!("ranks.pipeline={stages}");
        plan("gpt-1.5b", &[&SETTINGS[..], &[&stages]].concat(), &eight)
    });

    assert_eq!((whole.bubble, staged.bubble), (None, Some(3.0 / 7.0)));
    let weights = |plan: &Plan| {
        let held = plan.held.iter().filter(|held| held.what.starts_with("weights"));
        held.map(|held| held.bytes).sum::<u64>()
    };
    let [all, own] = [&whole, &staged].map(weights);
    assert!(own > all / 4 && own < all / 3, "a quarter of the blocks, and a table: {own} of {all}");
    assert_eq!(staged.checkpoint_bytes, whole.checkpoint_bytes);
    // Each card sends as much as it receives.
    for plan in [&whole, &staged] {
        assert_eq!(plan.send_seconds, Some(plan.bytes_sent_per_step as f64 / 1.25e9));
    }
    assert_eq!(staged.flops_per_step.to_bits(), whole.flops_per_step.to_bits());

    // A quarter of the blocks and the head pass four micro-batches in seven turns.
    let [alone, stage] = [&whole, &staged].map(|plan| plan.compute_seconds.expect("a speed"));
    let slower = stage / alone / (7.0 / 4.0);
    assert!((1.1..1.25).contains(&slower), "the head is a twentieth of the network: {slower}");
    let text = staged.to_string();
    assert!(
        text.contains("8 in 2 × 4 stages, each with at most 4 of 8 micro-batches, idle 43 % of a step"),
        "{text}"
    );

    let two = Machine { other_ranks: 1, ..eight };
    let sent = |set: &[&str]| {
        let set = [&SETTINGS[..], &["ranks.pipeline=2"], set].concat();
        plan("gpt-124m", &set, &two).bytes_sent_per_step
    };
    let config = Config::load("gpt-124m", &[]).expect("a preset");
    let stream = 4 * (config.train.micro_batch * config.sequence() * config.model.n_embd) as u64;
    let two_stages = [&SETTINGS[..], &["ranks.pipeline=2"]].concat();
    let [staged, alone] = [&two, &card(8 * GIB)].map(|machine| plan("gpt-124m", &two_stages, machine));
    assert_eq!([staged.residual_bytes, alone.residual_bytes], [5 * stream, 0]);
    assert_eq!(sent(&["model.tie_word_embeddings=false"]), 8 * stream);
    assert_eq!(sent(&["model.tie_word_embeddings=true"]), 2 * 8 * stream);
}

#[test]
fn one_process_plans_no_stages() {
    let staged = plan("gpt-124m", &[&SETTINGS[..], &["ranks.pipeline=4"]].concat(), &card(8 * GIB));
    let mut whole = plan("gpt-124m", &SETTINGS, &card(8 * GIB));
    whole.ranks.pipeline = 4;
    assert_eq!(staged, whole);
}
