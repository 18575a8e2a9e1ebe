//! A step's gradients, alone and over ranks.

use burn::backend::{Autodiff, Flex, flex::FlexDevice};
use burn::optim::GradientsParams;
use burn_train::{TrainOutput, TrainStep};
use exchange::threads::{Fault, Threads};
use exchange::{Engine, Share};
use models::{Gpt, InputForm, LoraConfig};
use runs::config::{Config, ExchangeKind, RanksSection};

use super::*;
use crate::data::StepData;
use crate::optimizer::tests::{norm_of, values_of};
use crate::optimizer::{Owners, Passes};
use crate::progress::Report;
use crate::ranks::Ranks;
use crate::ranks::tests::{on_each, on_each_of};
use crate::training::Exchange;
use crate::training::exchange::Pass;

fn data(micro_batches: i32) -> StepData {
    let micro_batch = |first: i32| MicroBatch {
        rows: 1,
        inputs: vec![first, 1, 2, 3],
        targets: vec![1, 2, 3, first],
        followers: Some(vec![2, 264, first, 264]),
        mask: (first % 2 == 0).then(|| vec![1.0, 0.0, 1.0, 0.0]),
    };
    StepData { step: 1, micro_batches: (5..5 + micro_batches).map(micro_batch).collect() }
}

fn learner(recompute: &str) -> Learner<Autodiff<Flex>> {
    learner_with_dropout(recompute, 0.0)
}

fn learner_with_dropout(recompute: &str, rate: f64) -> Learner<Autodiff<Flex>> {
    let text = format!(
        r#"{{"model": {{"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 4, "vocab_size": 264,
                       "longest_match": true, "resid_pdrop": {rate}}},
            "tokenizer": {{"kind": "bytes"}}, "train": {{"recompute": {recompute}}}}}"#
    );
    let config = Config::from_text(&text, "a tiny run", &[]).expect("valid");
    let gpt = Gpt::<Autodiff<Flex>>::new(&config.model, 3, &FlexDevice).expect("valid");
    Learner::new(gpt, &config)
}

fn divided_states(gpt: &Gpt<Autodiff<Flex>>, ranks: &Ranks) -> Owners {
    let config = Config::load("toy", &["memory.shard=states".to_owned()]).expect("valid");
    Owners::new(&config, gpt, ranks)
}

fn exact(ranks: &Ranks) -> Exchange {
    Exchange::choose(&RanksSection::default(), false, ranks)
}

fn gradients(
    learner: &Learner<Autodiff<Flex>>,
    data: &StepData,
    owners: &Owners,
    exchange: &mut Exchange,
    ranks: &mut Ranks,
) -> anyhow::Result<(GradientsParams, Report)> {
    exchange.sum(Pass { learner, data, host: None, owners, passes: Passes::none(), window: None }, ranks)
}

#[test]
fn a_steps_norm_is_that_of_the_gradients_it_returns() {
    for recompute in ["null", "1"] {
        let learner = learner(recompute);
        let TrainOutput { grads, item } = TrainStep::step(&learner, data(3));
        let all_at_once = norm_of(&learner.gpt, &grads);
        assert_eq!(item.gnorm.to_bits(), all_at_once.to_bits(), "recompute {recompute}");
        assert!(item.gnorm > 0.0);
    }
}

#[test]
fn ranks_have_the_bits_of_one_process_however_many_they_are() {
    for (count, recompute, dropout) in [(1, "null", 0.0), (4, "1", 0.25), (7, "null", 0.25), (8, "1", 0.0)] {
        let learner = || learner_with_dropout(recompute, dropout);
        let one = learner();
        let TrainOutput { grads, item } = TrainStep::step(&one, data(count));
        let expected = (item.loss.to_bits(), item.gnorm.to_bits(), values_of(&one.gpt, &grads));
        for world in [2, 3, 4] {
            let each = on_each(world, |ranks| {
                let learner = learner();
                let sum = gradients(&learner, &data(count), &Owners::default(), &mut exact(ranks), ranks);
                let (grads, report) = sum.expect("no failure");
                (report.loss.to_bits(), report.gnorm.to_bits(), values_of(&learner.gpt, &grads))
            });
            assert!(each.iter().all(|rank| *rank == expected), "{count} over {world}: {each:?}");
        }
    }
}

#[test]
fn gradients_of_adapters_have_the_bits_of_one_process_on_all_ranks() {
    let adapted = || {
        let lora = LoraConfig { dropout: 0.25, ..LoraConfig::default() };
        let plain = learner("1");
        Learner { gpt: plain.gpt.with_adapters(&lora, 3).expect("possible"), pass: plain.pass }
    };
    let TrainOutput { grads, item } = TrainStep::step(&adapted(), data(5));
    let bits = |learner: &Learner<Autodiff<Flex>>, grads: &GradientsParams| {
        let all = values_of(&learner.gpt, grads);
        assert!(all.iter().any(|bits| *bits != 0));
        all
    };
    for world in [2, 3, 4] {
        let each = on_each(world, |ranks| {
            let learner = adapted();
            let sum = gradients(&learner, &data(5), &Owners::default(), &mut exact(ranks), ranks);
            let (grads, report) = sum.expect("no failure");
            (report.loss.to_bits(), report.gnorm.to_bits(), bits(&learner, &grads))
        });
        let one = adapted();
        let again = TrainStep::step(&one, data(5));
        let expected = (item.loss.to_bits(), item.gnorm.to_bits(), bits(&one, &again.grads));
        assert!(each.iter().all(|rank| *rank == expected), "{world} ranks");
    }
    assert_eq!(grads.len(), adapted().gpt.learning().len());
}

#[test]
fn micro_batches_that_pass_segments_together_have_the_bits_of_one_after_another() {
    let of_group = |together: usize, count: i32, exchange, world: usize| {
        let settings = RanksSection { exchange, ..RanksSection::default() };
        on_each(world, |ranks| {
            let mut learner = learner_with_dropout("1", 0.25);
            learner.pass.together = together;
            let mut by = Exchange::choose(&settings, false, ranks);
            let sum = gradients(&learner, &data(count), &Owners::default(), &mut by, ranks);
            let (grads, report) = sum.expect("no failure");
            (report.loss.to_bits(), report.gnorm.to_bits(), values_of(&learner.gpt, &grads))
        })
    };
    for count in [5, 8] {
        for (exchange, worlds) in [
            (ExchangeKind::Exact, vec![1, 2, 3, 4]),
            (ExchangeKind::OneBit, vec![2]),
            (ExchangeKind::Rarely, vec![2]),
        ] {
            for world in worlds {
                let alone = of_group(1, count, exchange, world);
                for together in [2, 4, 8] {
                    let same = of_group(together, count, exchange, world) == alone;
                    assert!(same, "{count} over {world}, {exchange:?}, {together} together");
                }
            }
        }
    }
}

#[test]
fn inputs_kept_in_bf16_change_no_loss_and_gradients_alike_in_groups_of_any_size() {
    let of_group = |kept_inputs: InputForm, together: usize| {
        let mut learner = learner_with_dropout("1", 0.25);
        (learner.pass.kept_inputs, learner.pass.together) = (kept_inputs, together);
        let TrainOutput { grads, item } = TrainStep::step(&learner, data(8));
        // The input of the second of two blocks, 4 tokens of 8 numbers.
        let each = if kept_inputs == InputForm::Bf16 { 2 } else { 4 };
        assert_eq!(item.kept_inputs, 4 * 8 * each * together as u64);
        (item.loss.to_bits(), item.gnorm, values_of(&learner.gpt, &grads))
    };
    let (exact, alone) = (of_group(InputForm::Computed, 1), of_group(InputForm::Bf16, 1));
    assert_eq!(alone.0, exact.0, "the loss");
    assert!(alone.2 != exact.2, "nothing was rounded");
    let moved = (alone.1 - exact.1).abs() / exact.1;
    assert!(moved < 0.01, "norms of {} and {}, {moved} apart", alone.1, exact.1);
    for together in [2, 8] {
        let group = of_group(InputForm::Bf16, together);
        assert_eq!((group.0, group.1.to_bits()), (alone.0, alone.1.to_bits()), "{together} together");
        assert!(group.2 == alone.2, "{together} together: other gradients");
    }
}

#[test]
fn many_small_parameters_take_few_rounds() {
    let kinds = [(ExchangeKind::Exact, false), (ExchangeKind::Bf16, true), (ExchangeKind::OneBit, false)];
    for (exchange, divided) in kinds {
        let settings = RanksSection { exchange, warm_up: 0, ..RanksSection::default() };
        let calls = on_each(2, |ranks| {
            let (learner, mut by) = (learner("1"), Exchange::choose(&settings, divided, ranks));
            let owners = if divided { divided_states(&learner.gpt, ranks) } else { Owners::default() };
            let before = ranks.spent().expect("two ranks").costs.calls;
            gradients(&learner, &data(4), &owners, &mut by, ranks).expect("no failure");
            ranks.spent().expect("two ranks").costs.calls - before
        });
        let parameters = learner("1").gpt.learning().len() as u64;
        assert!(calls[0] < parameters, "{exchange:?}, divided: {divided}: {} of {parameters}", calls[0]);
    }
}

#[test]
fn ranks_that_step_apart_have_the_gradients_of_their_own_micro_batches() {
    let whole = data(5);
    let settings = RanksSection { exchange: ExchangeKind::Rarely, ..RanksSection::default() };
    let each = on_each(2, |ranks| {
        let mut exchange = Exchange::choose(&settings, false, ranks);
        let learner = learner("1");
        let sum = gradients(&learner, &data(5), &Owners::default(), &mut exchange, ranks);
        let (grads, report) = sum.expect("no failure");
        (report.failure, report.loss, report.gnorm.to_bits(), values_of(&learner.gpt, &grads))
    });

    for (rank, (failure, loss, norm, values)) in each.iter().enumerate() {
        let range = Share { count: 5, world: 2, rank }.range();
        let micro_batches = whole.micro_batches[range.start as usize..range.end as usize].to_vec();
        let one = learner("1");
        let TrainOutput { grads, item } = TrainStep::step(&one, StepData { step: 1, micro_batches });
        assert_eq!((failure, *norm), (&None, item.gnorm.to_bits()), "rank {rank}");
        assert_eq!(*values, values_of(&one.gpt, &grads), "rank {rank}");
        assert_eq!(loss.to_bits(), item.loss.to_bits(), "rank {rank}");
    }
}

/// Large target weights make squares, or also the loss, infinite.
#[test]
fn nan_or_infinity_on_one_rank_skips_the_step_on_all_and_leaves_no_trace() {
    let kinds = [
        (ExchangeKind::Exact, false),
        (ExchangeKind::Exact, true),
        (ExchangeKind::Bf16, false),
        (ExchangeKind::OneBit, false),
    ];

    for ((exchange, divided), too_large) in kinds.into_iter().flat_map(|kind| [(kind, 1e30), (kind, 3e38)]) {
        let settings = RanksSection { exchange, warm_up: 0, ..RanksSection::default() };
        let of_steps = |first_is_bad: bool| {
            on_each(2, |ranks| {
                let mut exchange = Exchange::choose(&settings, divided, ranks);
                let learner = learner("1");
                let owners = if divided { divided_states(&learner.gpt, ranks) } else { Owners::default() };
                [1, 2, 3].map(|step| {
                    let mut data = StepData { step, ..data(4) };
                    if first_is_bad && step == 1 {
                        data.micro_batches[3].mask = Some(vec![too_large, -too_large, 1.0, 1.0]);
                    }
                    let (_, report) =
                        gradients(&learner, &data, &owners, &mut exchange, ranks).expect("no failure");
                    exchange.settle(report.is_usable() && step > 1);
                    (report.is_usable(), [report.loss.to_bits(), report.gnorm.to_bits()])
                })
            })
        };
        let (bad, good) = (of_steps(true), of_steps(false));
        for (rank, (bad, good)) in bad.iter().zip(&good).enumerate() {
            let told = format!("rank {rank}, {exchange:?}, divided: {divided}, {too_large}");
            assert_eq!(bad.map(|(usable, _)| usable), [false, true, true], "{told}");
            assert!(good.iter().all(|(usable, _)| *usable), "{told}");
            assert_eq!(bad[2].1, good[2].1, "{told}");
        }
    }
}

#[test]
fn gradients_leave_in_turn_while_the_pass_goes_on() {
    let kinds = [ExchangeKind::Exact, ExchangeKind::OneBit];
    for (recompute, exchange) in ["null", "1"].into_iter().flat_map(|n| kinds.map(|kind| (n, kind))) {
        on_each(2, |ranks| {
            let settings = RanksSection { exchange, warm_up: 0, ..RanksSection::default() };
            let mut by = Exchange::choose(&settings, false, ranks);
            let (learner, data, owners) = (learner(recompute), data(4), Owners::default());
            let mut sum = Sum::new(ranks.share(4), None, &owners, Passes::none());
            by.begin_sums(&learner, 1, &mut sum, ranks).expect("no rank fails");
            let (first, end) = (sum.share.range().start, sum.share.range().end);
            let own = &data.micro_batches[first as usize..end as usize];
            let losses = learner.own_losses(1, (first, own), data.counted(), &mut sum);
            let reduce = sum.reduce.as_ref().expect("it has begun");
            assert!(reduce.are_out(), "{exchange:?}, recompute {recompute}: some wait for the end");
            let (all, back) = (reduce.order.ids.len(), sum.grads.len());
            assert!(back > 0 && back < all, "recompute {recompute}: {back} of {all} are back");
            by.finish_sums(&learner, losses, &mut sum, ranks).expect("no rank fails");
            assert_eq!(sum.grads.len(), all);
        });
    }
}

#[test]
fn all_ranks_take_the_norm_of_rank_0_though_their_own_differs() {
    let norms = on_each(2, |ranks| {
        let (learner, data, owners) = (learner("1"), data(4), Owners::default());
        let mut sum = Sum::new(ranks.share(4), None, &owners, Passes::none());
        let mut by = exact(ranks);
        by.begin_sums(&learner, 1, &mut sum, ranks).expect("no rank fails");
        let (first, end) = (sum.share.range().start, sum.share.range().end);
        let own = &data.micro_batches[first as usize..end as usize];
        let losses = learner.own_losses(1, (first, own), data.counted(), &mut sum);
        if ranks.rank() == 1 {
            let back = sum.reduce.as_ref().expect("it has begun").order.ids[0];
            sum.norms.add(back, Tensor::<Flex, 1>::ones([1000], &FlexDevice));
        }
        by.finish_sums(&learner, losses, &mut sum, ranks).expect("no rank fails").1
    });
    let TrainOutput { item, .. } = TrainStep::step(&learner("1"), data(4));
    let norms: Vec<u32> = norms.into_iter().map(f32::to_bits).collect();
    assert_eq!(norms, [item.gnorm.to_bits(); 2]);
}

#[test]
fn a_step_is_done_again_by_all_that_live_whichever_call_fails() {
    let one = learner("1");
    let TrainOutput { grads, item } = TrainStep::step(&one, data(5));
    let expected = (item.loss.to_bits(), item.gnorm.to_bits(), values_of(&one.gpt, &grads));
    let calls = on_each(3, |ranks| {
        let sum = gradients(&learner("1"), &data(5), &Owners::default(), &mut exact(ranks), ranks);
        assert_eq!(sum.expect("no failure").1.failure, None);
        ranks.spent().expect("three ranks").costs.calls
    });

    // After the sums: a vote, losses, the norm, a vote.
    let votes = [4, 1].map(|before_end| calls[1] - before_end);
    // The last calls too, which only some ranks may miss.
    let some = || (0..calls[1]).filter(|at| at % 7 == 0 || at + 6 > calls[1]);

    for fault in [Fault::Die, Fault::Deaf] {
        for at in some() {
            let fails = |engine: Threads| {
                if engine.rank() == 1 { engine.with_fault(at, fault) } else { engine }
            };
            let ends = on_each_of(3, fails, |ranks| {
                let learner = learner("1");
                let mut times = 1;
                loop {
                    let sum = gradients(&learner, &data(5), &Owners::default(), &mut exact(ranks), ranks);
                    if let Ok((grads, report)) = sum {
                        let values = values_of(&learner.gpt, &grads);
                        return Some((times, (report.loss.to_bits(), report.gnorm.to_bits(), values)));
                    }
                    // A dead rank cannot continue.
                    if !ranks.drop_lost_ranks().is_ok_and(|loss| loss.is_some()) {
                        return None;
                    }
                    times += 1;
                }
            });
            let times = ends[0].as_ref().expect("it lives").0;
            assert_eq!(ends[1].is_none(), fault == Fault::Die, "{fault:?} at call {at}");
            // All ranks hear a vote, or none does.
            let heard = fault == Fault::Deaf && votes.contains(&at);
            assert_eq!(times, if heard { 1 } else { 2 }, "{fault:?} at call {at} of {}", calls[1]);
            for (rank, end) in ends.iter().enumerate().filter_map(|(rank, end)| Some((rank, end.as_ref()?))) {
                assert_eq!(
                    end.0, times,
                    "rank {rank} does the step as often as the others, {fault:?} at call {at}"
                );
                assert!(end.1 == expected, "rank {rank} after {fault:?} at call {at}");
            }
        }
    }
}
