//! Two or three ranks as threads meet after local steps, and their weights by hand.

use burn::backend::{Autodiff, Flex, flex::FlexDevice};
use models::ParameterGroup;
use runs::config::{Config, ExchangeKind, Round};

use super::*;
use crate::ranks::tests::on_each;

type B = Autodiff<Flex>;

fn model(seed: u64) -> Gpt<B> {
    let text = r#"{"model": {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 4, "vocab_size": 264},
                   "tokenizer": {"kind": "bytes"}}"#;
    let config = Config::from_text(text, "a tiny run", &[]).expect("valid");
    Gpt::new(&config.model, seed, &FlexDevice).expect("valid")
}

#[derive(Default)]
struct All(Vec<f32>);

impl ModuleVisitor<B> for All {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.0.extend(numbers(param.val().inner()).expect("on the CPU"));
    }
}

fn all(gpt: &Gpt<B>) -> Vec<f32> {
    let mut all = All::default();
    gpt.visit(&mut all);
    all.0
}

/// The mean change is added without momentum.
fn plain(round: Round) -> Periodic {
    Periodic::new(&settings(round, ChangesKind::F32))
}

fn settings(round: Round, changes: ChangesKind) -> RanksSection {
    RanksSection {
        exchange: ExchangeKind::Rarely,
        outer_rate: 1.0,
        outer_momentum: 0.0,
        round,
        changes,
        ..RanksSection::default()
    }
}

fn at(step: u64) -> RoundEnd {
    RoundEnd { step, steps: 100, diverged: false }
}

/// As many steps as a rank has taken when it asks.
const AT_ONCE: Round = Round::Time(std::time::Duration::ZERO);

#[test]
fn a_round_reaches_the_others_during_the_next_one() {
    let ends = on_each(2, |ranks| {
        let mut periodic = plain(Round::Steps(3));
        periodic.start(&model(1), 0).expect("begun");
        let seed = 2 + ranks.rank() as u64;
        let trained = || model(seed);
        let (gpt, met) = periodic.meet(trained(), at(2), ranks);
        assert!(met.expect("no fault").is_none() && all(&gpt) == all(&trained()), "the round lasts");
        assert_eq!(periodic.met_before(2), None);
        let (first, met) = periodic.meet(gpt, at(3), ranks);
        assert_eq!(periodic.met_before(3), Some(0));
        assert_eq!(met.expect("no fault").map(|met| met.step), Some(3));
        let (own, begun) = periodic.begin_round(first.clone(), ranks);
        begun.expect("no fault");
        let (second, _) = periodic.meet(own.clone(), at(6), ranks);
        [all(&first), all(&own), all(&second)]
    });
    let [start, a, b] = [1, 2, 3].map(|seed| all(&model(seed)));
    for (rank, [first, own, second]) in ends.iter().enumerate() {
        assert_eq!(*first, start, "nothing has arrived");
        let trained = if rank == 0 { &a } else { &b };
        assert!(own.iter().zip(trained).all(|(own, trained)| (own - trained).abs() < 1e-6));
        assert_eq!(*second, ends[0][2]);
        for (n, second) in second.iter().enumerate() {
            assert!((second - f32::midpoint(a[n], b[n])).abs() < 1e-6, "{n}: {second}");
        }
    }
}

/// Both ranks train in the first round alone.
#[test]
fn changes_in_one_bit_arrive_over_time() {
    let [start, a, b] = [1, 2, 3].map(|seed| all(&model(seed)));
    let far = |common: &[f32]| -> f32 {
        let far = common.iter().enumerate().map(|(n, common)| (common - f32::midpoint(a[n], b[n])).abs());
        far.sum::<f32>() / common.len() as f32
    };
    let ends = on_each(2, |ranks| {
        let mut periodic = Periodic::new(&settings(Round::Steps(1), ChangesKind::OneBit));
        periodic.start(&model(1), 0).expect("begun");
        let (mut gpt, met) = periodic.meet(model(2 + ranks.rank() as u64), at(1), ranks);
        met.expect("no fault");
        let mut common = vec![all(&gpt)];
        for step in 2..30 {
            let (own, begun) = periodic.begin_round(gpt, ranks);
            begun.expect("no fault");
            let (next, met) = periodic.meet(own, at(step), ranks);
            met.expect("no fault");
            common.push(all(&next));
            gpt = next;
        }
        common
    });
    assert_eq!(ends[0], ends[1]);
    let [first, last] = [&ends[0][1], &ends[0][28]].map(|common| far(common));
    println!("{} at first, {first} after a round, {last} after all", far(&start));
    assert!(first > 0.3 * far(&start) && last < 0.1 * far(&start));
}

#[test]
fn the_last_meeting_waits_for_its_own_mean() {
    let ends = on_each(2, |ranks| {
        let mut periodic = plain(Round::Steps(50));
        periodic.start(&model(1), 0).expect("begun");
        let end = RoundEnd { step: 3, steps: 3, diverged: false };
        let (gpt, met) = periodic.meet(model(2 + ranks.rank() as u64), end, ranks);
        assert!(met.expect("no fault").is_some() && periodic.under_way.is_none());
        all(&gpt)
    });
    let [a, b] = [2, 3].map(|seed| all(&model(seed)));
    assert_eq!(ends[0], ends[1]);
    assert!(ends[0].iter().enumerate().all(|(n, end)| (end - f32::midpoint(a[n], b[n])).abs() < 1e-6));
}

#[test]
fn a_rank_counts_by_its_steps_and_goes_on_where_the_furthest_is() {
    let ends = on_each(2, |ranks| {
        let mut periodic = plain(AT_ONCE);
        periodic.start(&model(1), 4).expect("begun");
        let steps = if ranks.leads() { 3 } else { 1 };
        let (gpt, met) = periodic.meet(model(2 + ranks.rank() as u64), at(4 + steps), ranks);
        let met = met.expect("no fault").expect("they meet");
        assert_eq!((met.step, periodic.met_before(7)), (7, Some(4)));
        assert_eq!(met.record["counts"], serde_json::json!([3, 1]));
        // Four steps where two ranks at this one's pace would take six, or two.
        let pace = if ranks.leads() { 4.0 / 6.0 } else { 4.0 / 2.0 };
        assert!((periodic.pace() - pace).abs() < 1e-9, "{}", periodic.pace());
        let (gpt, begun) = periodic.begin_round(gpt, ranks);
        begun.expect("no fault");
        let (gpt, _) = periodic.meet(gpt, at(8), ranks);
        all(&gpt)
    });
    let [a, b] = [2, 3].map(|seed| all(&model(seed)));
    assert_eq!(ends[0], ends[1]);
    for (n, end) in ends[0].iter().enumerate() {
        assert!((end - (0.75 * a[n] + 0.25 * b[n])).abs() < 1e-6, "{n}: {end}");
    }
}

#[test]
fn a_meeting_leaves_frozen_weights_as_they_were() {
    let frozen = |seed| model(seed).with_frozen(&[ParameterGroup::Embedding, ParameterGroup::Blocks]);
    let ends = on_each(3, |ranks| {
        let mut periodic = plain(Round::Steps(1));
        periodic.start(&frozen(1), 0).expect("begun");
        let (gpt, met) = periodic.meet(frozen(1), RoundEnd { steps: 1, ..at(1) }, ranks);
        met.expect("no fault");
        (periodic.outers.len(), all(&gpt))
    });
    assert!(ends.iter().all(|end| *end == (2, all(&model(1)))), "two vectors of the last norm learn");
}

#[test]
fn a_rank_that_fails_within_a_round_ends_the_others_when_they_meet() {
    let ends = on_each(3, |ranks| {
        let mut periodic = plain(Round::Steps(2));
        periodic.start(&model(1), 0).expect("begun");
        let (gpt, met) = periodic.meet(model(1), at(2), ranks);
        met.expect("no fault");
        let (gpt, begun) = periodic.begin_round(gpt, ranks);
        begun.expect("no fault");
        if ranks.rank() == 1 {
            periodic.fail(ranks);
            return (None, ranks.all_know_failure());
        }
        let (_, met) = periodic.meet(gpt, at(4), ranks);
        periodic.fail(ranks);
        (Some(met.expect_err("rank 1 has failed").to_string()), ranks.all_know_failure())
    });
    let told = (Some(ANOTHER_FAILED.to_owned()), true);
    assert_eq!(ends, [told.clone(), (None, true), told]);
}

#[test]
fn divergence_of_one_rank_ends_the_round_of_all() {
    let ends = on_each(2, |ranks| {
        let mut periodic = plain(AT_ONCE);
        periodic.start(&model(1), 0).expect("begun");
        let (gpt, met) = periodic.meet(model(1), RoundEnd { diverged: ranks.leads(), ..at(2) }, ranks);
        (all(&gpt), met.expect("no fault").map(|met| met.diverged))
    });
    assert!(ends.iter().all(|end| *end == (all(&model(1)), Some(true))));
}

#[test]
fn a_meeting_without_a_beginning_is_an_error_and_no_panic() {
    let met = on_each(2, |ranks| {
        let (_, met) = plain(AT_ONCE).meet(model(1), at(1), ranks);
        met.map_err(|error| format!("{error:#}")).expect_err("never begun")
    });
    assert!(met.iter().all(|error| error.contains("never begun")), "{met:?}");
}
