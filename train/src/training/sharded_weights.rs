//! Ranks that hold a share of the weights have the bits of one process.

use anyhow::ensure;
use burn::module::AutodiffModule;
use burn_train::InferenceStep;
use models::{Reader, Stretch};

use super::generate_on_ranks;
use super::sharded::{Training, trained};
use super::whole_and_by_rows::{config, micro_batch};
use crate::optimizer::GatherSession;
use crate::ranks::tests::on_each;

const WEIGHTS: [&str; 3] = ["memory.shard=weights", "model.n_layer=3", "train.recompute=1"];

#[test]
fn ranks_that_gather_weights_have_the_bits_of_one_process() {
    let cases: [&[&str]; 10] = [
        &["train.grad_clip=null", "train.accumulate=4"],
        &["memory.optimizer=device", "model.compute=bf16", "train.accumulate=5", "train.together=2"],
        &["memory.stream=fp8", "memory.optimizer_state=bf16", "model.compute=bf16", "train.accumulate=3"],
        &["train.optimizer=muon", "memory.device_blocks=1", "train.accumulate=4", "train.together=4"],
        &["memory.optimizer_state=compact", "model.compute=bf16", "train.accumulate=6", "train.recompute=2"],
        &["train.optimizer=sgd", "model.tie_word_embeddings=true", "train.accumulate=4", "train.recompute=3"],
        &["memory.stream=int8", "memory.gradients=int8", "train.optimizer=sgd", "train.accumulate=8"],
        &["memory.optimizer_state=bf16", "memory.gradients=int8", "train.accumulate=7", "train.together=2"],
        &["memory.optimizer=device", "train.optimizer=muon", "train.accumulate=2", "model.resid_pdrop=0.1"],
        &["memory.device_blocks=1", "memory.activations=int8", "train.accumulate=9", "train.together=8"],
    ];

    for &settings in &cases[..suite::size().pick(1, 3, 10)] {
        let divided = [&WEIGHTS[..], settings].concat();
        let one = trained(&[&divided[..], &["memory.shard=false"]].concat(), [1, 1], &[]);
        for worlds in [[1, 2], [2, 4], [4, 1], [3, 3]] {
            trained(&divided, worlds, &[]).assert_has_bits_of(&one, worlds, settings);
        }
    }
}

#[test]
fn a_checkpoint_of_gathered_weights_resumes_in_every_mode_and_from_each() {
    let settings = [&WEIGHTS[..], &["train.accumulate=4", "train.grad_clip=null"]].concat();
    let expected = trained(&settings, [4, 2], &[]);
    for other in ["memory.shard=false", "memory.shard=states", "memory.optimizer=device"] {
        let there = trained(&settings, [2, 4], &[other]);
        assert!(there.saved == expected.saved, "{other}");
        let back = trained(
            &[&settings[..], &[other]].concat(),
            [4, 2],
            &["memory.shard=weights", "memory.optimizer=host"],
        );
        assert!(back.saved == expected.saved, "{other}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn ranks_that_gather_weights_may_have_states_on_disks() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = format!("memory.disk={}", folder.path().display());
    for form in ["memory.optimizer_state=f32", "memory.optimizer_state=compact"] {
        let in_memory = [&WEIGHTS[..], &["train.accumulate=4", "model.compute=bf16", form]].concat();
        let expected = trained(&in_memory, [2, 2], &[]);
        let found = trained(&[&in_memory[..], &[&disk]].concat(), [2, 4], &[]);
        assert!(found.saved == expected.saved, "{form}");
    }
}

#[test]
fn a_rank_holds_a_share_of_the_weights_and_gathers_two_segments_at_most() {
    let block = 4 * (4 * 24 * 24 + 3 * 24 * 40);
    for (every, segment) in [(1, block), (2, 2 * block)] {
        let every = format!("train.recompute={every}");
        let settings =
            [&WEIGHTS[..], &["train.accumulate=4", "model.n_layer=16", "train.together=1", &every]].concat();
        let config = config(&settings);
        let each = on_each(4, |ranks| {
            let (training, _) = Training::new(&config, ranks).steps(1..3);
            let learning = training.learner.gpt.learning();
            let parameters: u64 = learning.iter().map(|(_, parameter)| parameter.elements()).sum();
            let states = training.optimizer.host_bytes();
            let window = training.optimizer.window.expect("weights are divided");
            (window.own_bytes(), window.counts(), states, 4 * parameters)
        });
        let all: u64 = each.iter().map(|(own, ..)| own).sum();
        assert_eq!(all, 16 * block, "each matrix has one owner");
        let of_all: u64 = each.iter().map(|(.., states, _)| states).sum();
        for (own, counts, states, parameters) in each {
            assert_eq!([counts.largest, counts.peak], [segment, 2 * segment]);
            assert!(own <= parameters / 4 + 4 * 24 * 40, "{own} of {all}");
            // Masters and two moments in f32. The embedding is the largest tensor.
            assert_eq!(of_all, 3 * parameters, "each state has one owner");
            assert!(states <= 3 * (parameters / 4 + 4 * 264 * 24), "{states} of {of_all}");
        }
    }
}

#[test]
fn weights_are_gathered_twice_per_group_but_for_segments_at_a_turn() {
    let gathered = |settings: &[&str]| {
        let config = config(&[&WEIGHTS[..], settings].concat());
        on_each(2, |ranks| {
            let (training, _) = Training::new(&config, ranks).steps(1..2);
            training.optimizer.window.expect("weights are divided").counts().received
        })
    };
    // Three segments there and two back; the first one stays for the next group.
    assert_eq!(gathered(&["train.accumulate=4", "train.together=2"]), [5, 5]);
    assert_eq!(gathered(&["train.accumulate=4", "train.together=1"]), [9, 9]);
    // The second rank has three micro-batches, the first two.
    assert_eq!(gathered(&["train.accumulate=5", "train.together=1"]), [13, 13]);
    assert_eq!(gathered(&["train.accumulate=1"]), [5, 5]);
}

#[test]
fn ranks_with_fewer_passes_gather_for_the_others() {
    let config = config(&WEIGHTS);
    let sums = on_each(3, |ranks| {
        let (training, _) = Training::new(&config, ranks).steps(1..2);
        let window = training.optimizer.window.expect("weights are divided");
        let session = GatherSession::begin(Some(&window), training.ranks).expect("no rank fails");
        let passes = training.ranks.rank();
        let model = training.learner.valid();
        let sums: Vec<u64> = (0..passes).map(|_| model.step(micro_batch(1000, 0)).sum.to_bits()).collect();
        window.idle_until(2);
        session.end(Ok(()), training.ranks).expect("no rank fails");
        sums
    });
    assert_eq!(sums.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(sums.iter().flatten().all(|sum| *sum == sums[1][0]), "{sums:?}");
}

fn read_two(reader: &mut dyn Reader) -> anyhow::Result<usize> {
    Ok(reader.read(&[Stretch::from(&[1, 2][..])], 2)?.len())
}

#[test]
fn a_failure_of_one_rank_that_gathers_to_speak_is_one_of_all_and_ends_no_later_work() {
    let config = config(&WEIGHTS);
    let said = on_each(3, |ranks| {
        let (training, _) = Training::new(&config, ranks).steps(1..2);
        let (model, rank) = (training.learner.valid(), training.ranks.rank());
        let window = training.optimizer.window.as_ref();
        let failed = generate_on_ranks(&model, (window, 1), training.ranks, |reader| {
            ensure!(rank != 1, "no words");
            read_two(reader)
        });
        let spoken = generate_on_ranks(&model, (window, 1), training.ranks, read_two);
        (failed.expect_err("on all").to_string(), spoken.expect("it works again"))
    });
    assert_eq!(said[1], ("no words".to_owned(), None));
    for (rank, length) in [(0, Some(264)), (2, None)] {
        let (why, spoken) = &said[rank];
        assert!(why.contains("another rank failed") && *spoken == length, "{why}");
    }
}
