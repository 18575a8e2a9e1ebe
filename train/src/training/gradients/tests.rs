//! A step's gradients, alone and over ranks.

use burn::backend::{Autodiff, Flex, flex::FlexDevice};
use exchange::Engine;
use exchange::threads::Fault;
use models::Gpt;
use runs::config::{Config, ExchangeKind, RanksSection};

use super::*;
use crate::optimizer::tests::{norm_of, values_of};
use crate::ranks::tests::{on_each, on_each_of};

fn data(micro_batches: i32) -> StepData {
    let micro_batch = |first: i32| MicroBatch {
        rows: 1,
        inputs: vec![first, 1, 2, 3],
        targets: vec![1, 2, 3, first],
        followers: Some(vec![2, 264, first, 264]),
        // Unequal counts of targets: one in two here, and all of them there.
        mask: (first % 2 == 0).then(|| vec![1.0, 0.0, 1.0, 0.0]),
    };
    StepData { step: 1, micro_batches: (5..5 + micro_batches).map(micro_batch).collect() }
}

fn learner(recompute: &str) -> Learner<Autodiff<Flex>> {
    let text = format!(
        r#"{{"model": {{"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 4, "vocab_size": 264,
                       "longest_match": true}},
            "tokenizer": {{"kind": "bytes"}}, "train": {{"recompute": {recompute}}}}}"#
    );
    let config = Config::from_text(&text, "a tiny run", &[]).expect("valid");
    let gpt = Gpt::<Autodiff<Flex>>::new(&config.model, 3, &FlexDevice).expect("valid");
    Learner::new(gpt, &config)
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
    for (count, recompute) in [(1, "null"), (4, "1"), (7, "null"), (8, "1")] {
        let one = learner(recompute);
        let TrainOutput { grads, item } = TrainStep::step(&one, data(count));
        let expected = (item.loss.to_bits(), item.gnorm.to_bits(), values_of(&one.gpt, &grads));
        for world in [2, 3, 4] {
            let each = on_each(world, |ranks| {
                let learner = learner(recompute);
                let (grads, report) = learner.gradients(&data(count), None, Passes::none(), ranks);
                assert_eq!(report.failure, None);
                (report.loss.to_bits(), report.gnorm.to_bits(), values_of(&learner.gpt, &grads))
            });
            assert!(each.iter().all(|rank| *rank == expected), "{count} over {world}: {each:?}");
        }
    }
}

#[test]
fn ranks_that_step_apart_have_the_gradients_of_their_own_micro_batches() {
    let whole = data(5);
    let settings = RanksSection { exchange: ExchangeKind::Rarely, ..RanksSection::default() };
    let each = on_each(2, |ranks| {
        ranks.exchange_by(&settings);
        let learner = learner("1");
        let (grads, report) = learner.gradients(&data(5), None, Passes::none(), ranks);
        (report.failure, report.loss, report.gnorm.to_bits(), values_of(&learner.gpt, &grads))
    });
    let mut loss = 0.0;
    for (rank, (failure, of_all, norm, values)) in each.iter().enumerate() {
        let range = Share { count: 5, world: 2, rank }.range();
        let micro_batches = whole.micro_batches[range.start as usize..range.end as usize].to_vec();
        let own = StepData { step: 1, micro_batches };
        let one = learner("1");
        let TrainOutput { grads, item } = TrainStep::step(&one, own.clone());
        assert_eq!((failure, *norm), (&None, item.gnorm.to_bits()), "rank {rank}");
        assert_eq!(*values, values_of(&one.gpt, &grads), "rank {rank}");
        loss += f64::from(item.loss) * own.counted() / whole.counted();
        assert_eq!(of_all.to_bits(), each[0].1.to_bits(), "all see one loss");
    }
    assert!((loss - f64::from(each[0].1)).abs() < 1e-6, "{loss} {}", each[0].1);
}

#[test]
fn survivors_of_a_rank_that_dies_at_any_call_have_the_bits_of_one_process() {
    let one = learner("1");
    let TrainOutput { grads, item } = TrainStep::step(&one, data(5));
    let expected = (item.loss.to_bits(), item.gnorm.to_bits(), values_of(&one.gpt, &grads));
    let mut deaths = 0;
    for at in (0..200).step_by(3) {
        let dies = |engine: exchange::threads::Threads| {
            if engine.rank() == 1 { engine.with_fault(at, Fault::Die) } else { engine }
        };
        let ends = on_each_of(3, dies, |ranks| {
            let learner = learner("1");
            loop {
                let (grads, report) = learner.gradients(&data(5), None, Passes::none(), ranks);
                if report.failure.is_none() {
                    let bits =
                        (report.loss.to_bits(), report.gnorm.to_bits(), values_of(&learner.gpt, &grads));
                    return Some((bits, ranks.world()));
                }
                // The dead one cannot.
                if !ranks.go_on().unwrap_or_default() {
                    return None;
                }
            }
        });
        deaths += usize::from(ends[1].is_none());
        let left = if ends[1].is_none() { 2 } else { 3 };
        for rank in [0, 2] {
            let end = ends[rank].as_ref().expect("it lives");
            assert!(end.0 == expected, "rank {rank} after a death at call {at}");
            assert_eq!(end.1, left, "rank {rank} ends its step after a death at call {at} as the others do");
        }
    }
    assert!(
        (5..67).contains(&deaths),
        "{deaths} deaths: all calls are to be met, and the last ones to be none"
    );
}
