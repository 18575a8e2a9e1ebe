//! Random faults at every call: never a wrong sum, never a hang.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use exchange::threads::{self, Fault, Threads};
use exchange::{Alone, Engine, Error, Exact, Exchange, OneBit, Outer, OuterStep};
use proptest::prelude::*;

use crate::numbers::{bits, contribution, contributions};

const STEPS: u64 = 3;
const COUNT: u64 = 12;

/// A program that takes longer hangs.
const LIMIT: Duration = Duration::from_mins(1);

/// Fails instead of hanging: a test that waits for ever tells nobody anything.
fn within_the_limit<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(work()));
    told.recv_timeout(LIMIT).expect("the program ends within its limit and does not panic")
}

/// One fault a rank may meet.
fn fault() -> impl Strategy<Value = (u64, Fault)> {
    let delay = (1..4_u64).prop_map(|ms| Fault::Delay(Duration::from_millis(ms)));
    (0..30_u64, prop_oneof![Just(Fault::Fail), Just(Fault::Deaf), Just(Fault::Die), delay])
}

fn faulty(mut engine: Threads, faults: &[Vec<(u64, Fault)>]) -> Threads {
    for (at, fault) in &faults[engine.rank()] {
        engine = engine.with_fault(*at, *fault);
    }
    engine
}

/// Steps of a trainer: exchange, commit, and after a failure shrink and do the step again. Returns the committed sums, or
/// none once this rank is gone.
fn train(mut engine: Threads, seed: u64, len: usize, piece: usize) -> Option<Vec<Vec<u32>>> {
    let mut sums = Vec::new();
    while (sums.len() as u64) < STEPS {
        let own = contributions(&engine, seed ^ sums.len() as u64, COUNT, len);
        let sum = Exact::in_pieces_of(piece).sum(&mut engine, own);
        match (engine.commit(sum.is_ok()), sum) {
            (Ok(true), Ok(sum)) => sums.push(bits(&sum)),
            (Ok(true), Err(error)) => panic!("committed a step that failed: {error}"),
            (Ok(false), _) => panic!("a sum that fails breaks the world"),
            (Err(_), _) => engine.shrink().ok()?,
        }
    }
    Some(sums)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn survivors_of_any_faults_commit_the_sums_of_an_undisturbed_run(
        seed: u64,
        len in 0..40_usize,
        piece in 1..20_usize,
        faults in prop::collection::vec(prop::collection::vec(fault(), 0..3), 1..=5),
    ) {
        let dead = |rank: usize| faults[rank].iter().any(|(_, fault)| *fault == Fault::Die);
        let mortal: Vec<bool> = (0..faults.len()).map(dead).collect();
        let world = faults.len();
        let ends = within_the_limit(move || {
            threads::on_each(world, |engine| train(faulty(engine, &faults), seed, len, piece))
        });
        let alone = |step| {
            let own = contributions(&Alone, seed ^ step, COUNT, len);
            bits(&Exact::default().sum(&mut Alone, own).expect("summed"))
        };
        let expected: Vec<_> = (0..STEPS).map(alone).collect();
        for (end, mortal) in ends.iter().zip(mortal) {
            prop_assert!(mortal || end.is_some(), "a rank that was to live is gone");
            prop_assert!(end.as_ref().is_none_or(|sums| *sums == expected));
        }
    }
}

#[test]
fn a_fault_at_any_one_call_of_any_exchange_ends_with_an_error_or_the_right_result_on_every_rank() {
    /// Runs every exchange once and stops at the first error: the sums so far, and that error.
    fn attempt(mut engine: Threads) -> (Vec<Vec<u32>>, Option<Error>) {
        let mut done = Vec::new();
        let mut all = || -> Result<(), Error> {
            let own = contributions(&engine, 1, 6, 50);
            done.push(bits(&Exact::in_pieces_of(9).sum(&mut engine, own)?));
            let mut one_bit = OneBit::new(50, 0);
            let own = contributions(&engine, 2, 6, 50);
            done.push(bits(&one_bit.sum(&mut engine, own)?));
            let outer = Outer::new(OuterStep { inner: 1, rate: 0.7, momentum: 0.9 }, &[0.0; 20]);
            let weights = contribution(3, engine.rank() as u64, 20);
            done.push(bits(&outer.average(&mut engine, &weights)?));
            engine.barrier()?;
            engine.commit(true)?;
            Ok(())
        };
        let error = all().err();
        (done, error)
    }
    for world in [2, 3] {
        let undisturbed = threads::on_each(world, attempt);
        assert!(undisturbed.iter().all(|(done, error)| done.len() == 3 && error.is_none()));
        for fault in [Fault::Fail, Fault::Deaf, Fault::Die] {
            for at in 0..12 {
                let ends = within_the_limit(move || {
                    threads::on_each(world, |engine| {
                        let faulty = engine.rank() == 0;
                        attempt(if faulty { engine.with_fault(at, fault) } else { engine })
                    })
                });
                for (rank, (done, error)) in ends.iter().enumerate() {
                    assert_eq!(done[..], undisturbed[rank].0[..done.len()], "{fault:?} at {at}");
                    assert!(error.is_some() || done.len() == 3);
                }
                let none_failed = ends.iter().all(|(_, error)| error.is_none());
                let all_failed = ends.iter().all(|(_, error)| error.is_some());
                assert!(none_failed || all_failed, "{world} ranks, {fault:?} at {at}: {ends:?}");
            }
        }
    }
}
