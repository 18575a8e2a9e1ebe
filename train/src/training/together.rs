//! Micro-batches that pass each segment together have the bits of micro-batches that pass one after another.

use super::whole_and_by_rows::trained;

#[test]
fn the_size_of_a_group_changes_no_bit_of_weights_moments_or_losses() {
    let cases: [&[&str]; 6] = [
        &["train.accumulate=8"],
        &[
            "train.accumulate=7",
            "model.compute=bf16",
            "memory.optimizer_state=compact",
            "model.resid_pdrop=0.1",
        ],
        &["train.accumulate=8", "memory.stream=int8", "memory.gradients=int8", "memory.activations=int8"],
        &["train.accumulate=6", "train.optimizer=sgd", "memory.optimizer_state=bf16"],
        &["train.accumulate=4", "train.optimizer=muon", "model.embd_pdrop=0.2"],
        &["train.accumulate=8", "memory.device_blocks=1", "model.compute=bf16"],
    ];

    let groups = suite::size().pick(&["1", "8"][..], &["1", "2", "8"], &["1", "2", "8"]);
    for &settings in suite::first(1, &cases) {
        let mut runs = groups.iter().map(|together| {
            let together = format!("train.together={together}");
            let settings: Vec<&str> =
                settings.iter().copied().chain(["train.recompute=1", &together]).collect();
            trained(&settings, true)
        });
        let alone = runs.next().expect("the group of one");
        for other in runs {
            assert_eq!(other.steps, alone.steps, "{settings:?}");
            assert_eq!(other.evaluation, alone.evaluation, "{settings:?}");
            let numbers = [&alone, &other].map(|run| run.saved.each_ref().map(|files| files[..2].to_vec()));
            assert!(numbers[0] == numbers[1], "{settings:?}: other weights or moments");
        }
    }
}
