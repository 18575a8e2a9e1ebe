//! Ranks that hold a stage each have the bits of one process.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use anyhow::{anyhow, bail};
use burn::module::AutodiffModule;
use burn_train::InferenceStep;
use models::{Overflow, Reader, Request, Sampling, Stretch, WholeReader, generate_by};

use super::frozen::GROUPS;
use super::pipeline::{Measuring, spoken_by_stages};
use super::sharded::{Training, trained};
use super::whole_and_by_rows::{config, micro_batch};
use crate::ranks::tests::{on_each, on_each_with_its_own};

const TWO: [&str; 3] = ["ranks.pipeline=2", "model.n_layer=4", "train.recompute=1"];
const FOUR: &str = "ranks.pipeline=4";
const TIED: &str = "model.tie_word_embeddings=true";

#[test]
fn stages_on_ranks_have_the_bits_of_one_process() {
    let cases: [&[&str]; 10] = [
        &["train.accumulate=4", "memory.optimizer=device", TIED],
        &["train.accumulate=5", "train.grad_clip=null", GROUPS],
        &["train.accumulate=4", "train.optimizer=muon", "memory.optimizer=device"],
        &["train.accumulate=3", "train.optimizer=sgd", TIED, "memory.optimizer_state=bf16"],
        &[
            "train.accumulate=4",
            "model.compute=bf16",
            "memory.optimizer_state=compact",
            "model.embd_pdrop=0.1",
        ],
        &["train.accumulate=6", "memory.stream=int8", "memory.gradients=int8", "memory.activations=int8"],
        &["train.accumulate=1", "memory.optimizer=device", "model.resid_pdrop=0.2", TIED],
        &["train.accumulate=4", "train.optimizer=muon", TIED],
        &["train.accumulate=7", "memory.activations=int8", "train.z_loss=1e-3", TIED, "model.compute=bf16"],
        &["train.accumulate=4", "memory.stream=fp8", "model.compute=bf16"],
    ];
    for &settings in &cases[..suite::size().pick(1, 5, 10)] {
        let staged = [&TWO[..], settings].concat();
        let one = trained(&staged, [1, 1], &[]);
        for (worlds, later) in [([1, 2], &[][..]), ([2, 1], &[]), ([2, 4], &[FOUR])] {
            trained(&staged, worlds, later).assert_has_bits_of(&one, worlds, settings);
        }
    }
}

#[test]
fn pipelines_beside_each_other_have_the_bits_of_one_process() {
    let cases: [&[&str]; 4] = [
        &["train.accumulate=4", "memory.optimizer=device", TIED],
        &["train.accumulate=6", "train.optimizer=sgd"],
        &["train.accumulate=3", "train.optimizer=muon", "model.compute=bf16", TIED],
        &["train.accumulate=8", "memory.gradients=int8", "memory.optimizer_state=bf16"],
    ];
    for &settings in &cases[..suite::size().pick(1, 2, 4)] {
        let staged = [&TWO[..], settings].concat();
        let one = trained(&staged, [1, 1], &[]);
        trained(&staged, [4, 6], &[]).assert_has_bits_of(&one, [4, 6], settings);
    }
}

#[test]
fn a_checkpoint_of_stages_resumes_in_every_mode_and_from_each() {
    let settings = [&TWO[..], &["train.accumulate=4", TIED]].concat();
    let expected = trained(&settings, [2, 2], &[]);
    let whole = "ranks.pipeline=1";
    let modes: [&[&str]; 3] = [&[whole], &[whole, "memory.shard=states"], &[whole, "memory.shard=weights"]];
    for mode in modes {
        let there = trained(&settings, [2, 4], mode);
        assert!(there.saved == expected.saved, "{mode:?}");
        let from = [&settings[..], mode].concat();
        let back = trained(&from, [3, 2], &["ranks.pipeline=2", "memory.shard=false"]);
        assert!(back.saved == expected.saved, "{mode:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn stages_may_have_states_on_disks() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = format!("memory.disk={}", folder.path().display());
    for form in ["memory.optimizer_state=f32", "memory.optimizer_state=compact"] {
        let in_memory = [&TWO[..], &["train.accumulate=4", "model.compute=bf16", TIED, form]].concat();
        let on_disk = [&in_memory[..], &[&disk]].concat();
        let one = trained(&in_memory, [1, 1], &[]);
        for (worlds, later) in [([1, 2], &[][..]), ([2, 4], &[FOUR])] {
            trained(&on_disk, worlds, later).assert_has_bits_of(&one, worlds, &on_disk);
        }
        let held = |settings: &[&str]| {
            on_each(2, |ranks| Training::new(&config(settings), ranks).optimizer.host_bytes())
        };
        let [below, all] = [held(&on_disk), held(&in_memory)];
        assert!(below.iter().zip(&all).all(|(below, all)| below * 10 < *all), "{form}: {below:?} {all:?}");
    }
}

#[test]
fn a_rank_holds_the_weights_and_states_of_its_stage_alone() {
    let block = 4 * 24 * 24 + 3 * 24 * 40 + 2 * 24;
    let table = 264 * 24;
    // A row that comes on demand has its step beside it.
    let steps = 264 * 4;
    for (tied, expected, rows) in [
        (TIED, [2 * block, 2 * block + 24 + table], [0, 0]),
        ("model.tie_word_embeddings=false", [2 * block + table, 2 * block + 24 + table], [steps, 0]),
    ] {
        let config = config(&[&TWO[..], &["train.accumulate=4", tied]].concat());
        let each = on_each(2, |ranks| {
            let (training, _) = Training::new(&config, ranks).steps(1..3);
            let owners = &training.optimizer.owners;
            let learning = training.learner.gpt.learning();
            let own = learning.iter().filter(|(_, parameter)| owners.has(&parameter.name));
            let elements: u64 = own.map(|(_, parameter)| parameter.elements()).sum();
            (elements, training.optimizer.host_bytes())
        });
        for (((elements, host), expected), rows) in each.into_iter().zip(expected).zip(rows) {
            // Masters and two moments in f32.
            assert_eq!([elements, host], [expected, 12 * expected + rows], "{tied}");
        }
    }
}

#[test]
fn stages_measure_the_loss_of_one_process() {
    for tied in [TIED, "model.tie_word_embeddings=false"] {
        let config = config(&[&TWO[..], &["train.accumulate=4", tied]].concat());
        let measured = |world| {
            on_each(world, |ranks| {
                let (training, _) = Training::new(&config, ranks).steps(1..2);
                let model = training.learner.valid();
                let batches = (0..3).map(|n| micro_batch(1000, n));
                if world == 1 {
                    return batches.map(|batch| model.step(batch).sum.to_bits()).collect::<Vec<_>>();
                }
                let mut stage = Measuring::begin(&model, training.ranks).expect("an engine");
                let sums = batches.map(|batch| stage.step(&batch).sum.to_bits()).collect();
                stage.end(Ok(sums), training.ranks).expect("no failure")
            })
        };
        let (one, two) = (measured(1), measured(2));
        assert_eq!(two, [one[0].clone(), one[0].clone()]);
    }
}

#[test]
fn stages_speak_the_words_of_one_process() {
    let prompts = [vec![7, 8, 9, 10], vec![11], (1..40).collect()];
    let spoken = |world: usize, settings: &[&str]| {
        let config = config(&[&TWO[..], &["train.accumulate=4"], settings].concat());
        on_each(world, |ranks| {
            let (training, _) = Training::new(&config, ranks).steps(1..2);
            let model = training.learner.valid();
            let sampling = Sampling { seed: 3, ..Sampling::default() };
            // Beyond the 16 positions of the model.
            let request = Request { sampling, overflow: Overflow::Slide, ..Request::new(&prompts, 20) };
            let speak = |reader: &mut dyn Reader| {
                Ok(generate_by(reader, model.gpt.config(), &request, |_| ControlFlow::Continue(()))?)
            };
            if world == 1 {
                return speak(&mut WholeReader::new(&model.gpt)).ok();
            }
            spoken_by_stages(&model, training.ranks, speak).expect("no failure")
        })
    };

    let cases: [&[&str]; 4] = [
        &[TIED],
        &["model.compute=bf16", "memory.optimizer=device"],
        &[TIED, "memory.stream=int8", "model.compute=bf16"],
        &["memory.stream=fp8"],
    ];
    for settings in &cases[..suite::size().pick(2, 4, 4)] {
        let one = spoken(1, settings).remove(0);
        assert!(one.is_some());
        for (world, more) in [(2, "ranks.pipeline=2"), (4, FOUR), (4, "ranks.pipeline=2")] {
            let several = spoken(world, &[settings, &[more][..]].concat());
            assert_eq!(several[0], one, "{settings:?} on {world} with {more}");
            assert!(several[1..].iter().all(Option::is_none), "only rank 0 speaks");
        }
    }
}

#[test]
fn a_failure_while_stages_speak_is_one_of_all_ranks_and_ends_no_later_work() {
    let config = config(&[&TWO[..], &["train.accumulate=4"]].concat());
    let said = on_each(4, |ranks| {
        let (training, _) = Training::new(&config, ranks).steps(1..2);
        let model = training.learner.valid();
        let failed = spoken_by_stages::<_, ()>(&model, training.ranks, |_| bail!("no words"));
        let spoken = spoken_by_stages(&model, training.ranks, |reader| {
            Ok(reader.read(&[Stretch::from(&[1, 2][..])], 2)?.len())
        });
        (failed.expect_err("on all").to_string(), spoken.expect("it works again"))
    });
    assert_eq!(said[0], ("no words".to_owned(), Some(264)));
    for (why, spoken) in &said[1..] {
        assert!(why.contains("another rank failed") && spoken.is_none(), "{why}");
    }
}

#[test]
fn ranks_that_form_no_whole_pipelines_are_refused() {
    for outcome in on_each(3, |ranks| ranks.divide(2)) {
        let said = outcome.expect_err("three are no multiple of two").to_string();
        assert!(said.contains("3 ranks") && said.contains("multiple of 2 with --ranks"), "{said}");
    }
}

#[test]
fn a_stage_that_cannot_pass_ends_the_step_of_all() {
    let config = config(&[&TWO[..], &["train.accumulate=4"]].concat());
    let told = on_each(2, |ranks| {
        let mut training = Training::new(&config, ranks);
        if training.ranks.rank() == 1 {
            training.spoil_head();
        }
        training.gradients(&training.data(1)).expect_err("no rank can go on").to_string()
    });
    assert!(told[0].contains("another rank could not compute"), "{told:?}");
    assert!(told[1].contains("the gradient has 3 elements"), "{told:?}");
}

#[test]
fn a_fast_first_stage_waits_for_the_last_one() {
    let config = config(&[&TWO[..], &["model.tie_word_embeddings=false"]].concat());
    let passed = AtomicUsize::new(0);
    let seen = on_each(2, |ranks| {
        let (training, _) = Training::new(&config, ranks).steps(1..2);
        let model = training.learner.valid();
        let is_first = training.ranks.rank() == 0;
        let mut stage = Measuring::begin(&model, training.ranks).expect("an engine");
        thread::sleep(Duration::from_millis(if is_first { 0 } else { 500 }));
        let before = passed.load(SeqCst);
        let sums = (0..8).map(|n| {
            let sum = stage.step(&micro_batch(1000, n)).sum.to_bits();
            passed.fetch_add(usize::from(is_first), SeqCst);
            sum
        });
        let sums = sums.collect();
        (before, stage.end(Ok(sums), training.ranks).expect("no failure").len())
    });
    assert!(seen[1].0 <= 2, "{seen:?}");
    assert_eq!([seen[0].1, seen[1].1], [8, 8]);
}

#[test]
fn a_stage_whose_batches_end_early_says_why_and_waits_for_no_vote() {
    let config = config(&[&TWO[..], &["train.accumulate=4"]].concat());
    let told = on_each_with_its_own(
        2,
        |engine| engine,
        |mut ranks| {
            let (training, _) = Training::new(&config, &mut ranks).steps(1..2);
            let model = training.learner.valid();
            if training.ranks.rank() == 0 {
                return String::new();
            }
            let stage = Measuring::begin(&model, training.ranks).expect("an engine");
            let unread = stage.end::<u8>(Err(anyhow!("a torn shard")), training.ranks);
            unread.expect_err("it has measured nothing").to_string()
        },
    );
    assert_eq!(told[1], "a torn shard");
}
