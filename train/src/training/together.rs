//! Micro-batches that pass each segment together have the bits of micro-batches that pass one after another.

use super::whole_and_by_rows::{Trained, trained};

#[test]
fn the_size_of_a_group_changes_no_bit_of_weights_moments_or_losses() {
    let cases: [&[&str]; 7] = [
        &["train.accumulate=8"],
        &[
            "train.accumulate=7",
            "model.compute=bf16",
            "memory.optimizer_state=compact",
            "model.resid_pdrop=0.1",
            "train.z_loss=1e-3",
        ],
        &["train.accumulate=8", "memory.stream=int8", "memory.gradients=int8", "memory.activations=int8"],
        &["train.accumulate=6", "train.optimizer=sgd", "memory.optimizer_state=bf16"],
        &["train.accumulate=4", "train.optimizer=muon", "model.embd_pdrop=0.2"],
        &["train.accumulate=8", "memory.device_blocks=1", "model.compute=bf16"],
        &["train.accumulate=8", "memory.activations=bf16", "model.resid_pdrop=0.1"],
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

#[test]
fn inputs_kept_in_bf16_move_losses_a_little() {
    let [computed, bf16] = ["computed", "bf16"].map(|form| {
        let form = format!("memory.activations={form}");
        trained(&["train.accumulate=4", "train.recompute=1", "train.together=2", &form], true)
    });
    let losses = |run: &Trained| run.steps.iter().map(|[loss, _]| f32::from_bits(*loss)).collect::<Vec<_>>();
    let (exact, narrow) = (losses(&computed), losses(&bf16));
    assert_eq!(narrow[0].to_bits(), exact[0].to_bits(), "the forward pass rounds nothing");
    assert_ne!(narrow, exact, "nothing was rounded");
    for (step, (exact, narrow)) in exact.iter().zip(&narrow).enumerate() {
        assert!((exact - narrow).abs() < 0.02 * exact, "step {}: {narrow} for {exact}", step + 1);
    }
}
