//! Random faults at every call give neither a wrong sum nor a hang.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use exchange::threads::{self, Fault, Threads};
use exchange::{Alone, Engine, Error, Exact, OneBit, Pairwise, Share, even};
use proptest::prelude::*;

use crate::numbers::{bits, contribution, contributions};

const STEPS: u64 = 3;
const COUNT: u64 = 12;

const LIMIT: Duration = Duration::from_mins(1);

fn within_the_limit<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(work()));
    told.recv_timeout(LIMIT).expect("the program ends within its limit and does not panic")
}

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

trait Program {
    fn exchange(&mut self, engine: &mut Threads, step: u64) -> Result<Vec<f32>, Error>;

    fn settle(&mut self, _exchanged: Option<&[f32]>) {}

    fn shrunk(&mut self, _fewer: bool) {}
}

/// One committed step: ranks and exchanged bits.
type Committed = (usize, Vec<u32>);

/// A trainer's steps: exchange, commit; after a failure shrink and repeat. `None` if this rank is gone.
fn train(mut engine: Threads, program: &mut dyn Program) -> Option<Vec<Committed>> {
    let mut done = Vec::new();
    while (done.len() as u64) < STEPS {
        let exchanged = program.exchange(&mut engine, done.len() as u64);
        match (engine.commit(exchanged.is_ok()), exchanged) {
            (Ok(true), Ok(exchanged)) => {
                program.settle(Some(&exchanged));
                done.push((engine.world(), bits(&exchanged)));
            }
            (Ok(true), Err(error)) => panic!("committed a step that failed: {error}"),
            (Ok(false), _) => panic!("a sum that fails breaks the world"),
            (Err(_), _) => {
                program.settle(None);
                let before = engine.world();
                engine.shrink().ok()?;
                program.shrunk(engine.world() < before);
            }
        }
    }
    Some(done)
}

struct Sums {
    seed: u64,
    len: usize,
    piece: usize,
}

impl Program for Sums {
    fn exchange(&mut self, engine: &mut Threads, step: u64) -> Result<Vec<f32>, Error> {
        let own = contributions(engine, self.seed ^ step, COUNT, self.len);
        Exact::in_pieces_of(self.piece).sum(engine, own)
    }
}

struct Divided(Sums);

impl Program for Divided {
    fn exchange(&mut self, engine: &mut Threads, step: u64) -> Result<Vec<f32>, Error> {
        let Sums { len, piece, .. } = self.0;
        let exact = Exact::in_pieces_of(piece).on_hosts_of(2);
        let share = Share { count: COUNT, world: engine.world(), rank: engine.rank() };
        let lens = even(len, 5);
        let places: Vec<_> = (0..5).map(|at| lens[..at].iter().sum::<usize>()).zip(&lens).collect();
        let owners: Vec<usize> = (0..5).map(|at| (at * 3 + 1) % share.world).collect();
        let buffer = |(begin, len): &(usize, &usize)| {
            let mut own = Pairwise::new(share, **len);
            let part = |n| contribution(self.0.seed ^ step, n, self.0.len)[*begin..][..**len].to_vec();
            share.range().try_for_each(|n| own.push(part(n)).map(|_| ()))?;
            Ok(own)
        };
        let buffers = places.iter().map(buffer).collect::<Result<_, Error>>()?;
        let sums = exact.sum_all(engine, buffers, Some(&owners))?;

        let mut all = vec![0.0_f32; len];
        let (mut by_owner, mut owned) = (Vec::new(), vec![0; share.world]);
        let mut order: Vec<usize> = (0..5).collect();
        order.sort_by_key(|at| owners[*at]);
        for at in &order {
            owned[owners[*at]] += 4 * lens[*at];
            by_owner.extend(if owners[*at] == share.rank { sums[*at].clone() } else { vec![0.0; lens[*at]] });
        }
        exact.gather_owned(engine, bytemuck::cast_slice_mut(&mut by_owner), &owned)?;
        for (begin, len) in order.into_iter().map(|at| places[at]) {
            let rest = by_owner.split_off(*len);
            all[begin..][..*len].copy_from_slice(&std::mem::replace(&mut by_owner, rest));
        }
        Ok(all)
    }
}

/// Residuals belong to one number of ranks.
struct Compressed {
    seed: u64,
    len: usize,
    one_bit: OneBit,
}

impl Compressed {
    fn new(seed: u64, len: usize) -> Self {
        Self { seed, len, one_bit: OneBit::new(len, 0) }
    }
}

impl Program for Compressed {
    fn exchange(&mut self, engine: &mut Threads, step: u64) -> Result<Vec<f32>, Error> {
        let own = contributions(engine, self.seed ^ step, COUNT, self.len);
        self.one_bit.sum(engine, own)
    }

    fn settle(&mut self, exchanged: Option<&[f32]>) {
        self.one_bit.settle(exchanged.is_some());
    }

    fn shrunk(&mut self, fewer: bool) {
        if fewer {
            self.one_bit.drop_residuals();
        }
    }
}

type Faults = Vec<Vec<(u64, Fault)>>;

fn faults() -> impl Strategy<Value = Faults> {
    prop::collection::vec(prop::collection::vec(fault(), 0..3), 1..=5)
}

/// Committed steps of ranks that survive `faults`, equal on all.
fn survived<P: Program>(
    faults: Faults,
    program: impl Fn() -> P + Send + Sync + 'static,
) -> Result<Option<Vec<Committed>>, TestCaseError> {
    let dies = |faults: &Vec<(u64, Fault)>| faults.iter().any(|(_, fault)| *fault == Fault::Die);
    let mortal: Vec<bool> = faults.iter().map(dies).collect();
    let world = faults.len();
    let ends = within_the_limit(move || {
        threads::on_each(world, |engine| train(faulty(engine, &faults), &mut program()))
    });
    for (end, mortal) in ends.iter().zip(mortal) {
        prop_assert!(mortal || end.is_some(), "a rank that was to live is gone");
    }
    let mut living = ends.into_iter().flatten();
    let first = living.next();
    prop_assert!(living.all(|other| Some(&other) == first.as_ref()), "ranks have different sums");
    Ok(first)
}

fn of_one(seed: u64, len: usize) -> Vec<Vec<u32>> {
    let alone = |step| {
        let own = contributions(&Alone, seed ^ step, COUNT, len);
        bits(&Exact::default().sum(&mut Alone, own).expect("summed"))
    };
    (0..STEPS).map(alone).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(suite::cases(300)))]

    #[test]
    fn survivors_of_any_faults_commit_the_sums_of_an_undisturbed_run(
        seed: u64, len in 0..40_usize, piece in 1..20_usize, faults in faults(),
    ) {
        let found = survived(faults, move || Sums { seed, len, piece })?;
        let found: Option<Vec<_>> = found.map(|steps| steps.into_iter().map(|(_, sum)| sum).collect());
        prop_assert!(found.is_none_or(|sums| sums == of_one(seed, len)));
    }

    #[test]
    fn survivors_of_any_faults_gather_the_parts_that_each_has_summed(
        seed: u64, len in 0..40_usize, piece in 1..20_usize, faults in faults(),
    ) {
        let found = survived(faults, move || Divided(Sums { seed, len, piece }))?;
        let found: Option<Vec<_>> = found.map(|steps| steps.into_iter().map(|(_, sum)| sum).collect());
        prop_assert!(found.is_none_or(|sums| sums == of_one(seed, len)));
    }

    /// A new world starts where the survivors had to drop their residuals.
    #[test]
    fn survivors_of_any_faults_go_on_with_one_bit_as_so_many_ranks_would(
        seed: u64, len in 0..40_usize, faults in faults(),
    ) {
        let found = survived(faults, move || Compressed::new(seed, len))?.unwrap_or_default();
        let mut begin = 0;
        for steps in found.chunk_by(|(one, _), (other, _)| one == other) {
            let (world, end) = (steps[0].0, begin + steps.len() as u64);
            let expected = threads::on_each(world, |mut engine| {
                let mut program = Compressed::new(seed, len);
                let exchanged = |step| {
                    let sum = program.exchange(&mut engine, step).expect("nobody disturbs");
                    program.settle(Some(&sum));
                    bits(&sum)
                };
                (begin..end).map(exchanged).collect::<Vec<_>>()
            });
            prop_assert!(steps.iter().map(|(_, sum)| sum).eq(&expected[0]), "steps {begin}..{end} on {world}");
            begin = end;
        }
    }
}

#[test]
fn a_fault_at_any_one_call_of_any_exchange_ends_with_an_error_or_the_right_result_on_every_rank() {
    fn attempt(mut engine: Threads) -> (Vec<Vec<u32>>, Option<Error>, u64) {
        let mut done = Vec::new();
        let mut all = || -> Result<(), Error> {
            let own = contributions(&engine, 1, 6, 50);
            done.push(bits(&Exact::in_pieces_of(9).sum(&mut engine, own)?));
            let own = vec![contributions(&engine, 4, 6, 30), contributions(&engine, 5, 6, 3)];
            let sums = Exact::in_pieces_of(9).sum_all(&mut engine, own, Some(&[1, 0]))?;
            done.push(bits(&sums.concat()));
            let mut one_bit = OneBit::new(50, 0);
            let own = contributions(&engine, 2, 6, 50);
            done.push(bits(&one_bit.sum(&mut engine, own)?));
            engine.barrier()?;
            engine.commit(true)?;
            Ok(())
        };

        let error = all().err();
        (done, error, engine.calls())
    }

    for world in [2, 3] {
        let undisturbed = threads::on_each(world, attempt);
        assert!(undisturbed.iter().all(|(done, error, _)| done.len() == 3 && error.is_none()));
        let calls = undisturbed[0].2;
        for fault in [Fault::Fail, Fault::Deaf, Fault::Die] {
            for at in 0..calls {
                let ends = within_the_limit(move || {
                    threads::on_each(world, |engine| {
                        let faulty = engine.rank() == 0;
                        attempt(if faulty { engine.with_fault(at, fault) } else { engine })
                    })
                });
                for (rank, (done, error, _)) in ends.iter().enumerate() {
                    assert_eq!(done[..], undisturbed[rank].0[..done.len()], "{fault:?} at {at}");
                    assert!(error.is_some() || done.len() == 3);
                }
                let none_failed = ends.iter().all(|(_, error, _)| error.is_none());
                let all_failed = ends.iter().all(|(_, error, _)| error.is_some());
                assert!(none_failed || all_failed, "{world} ranks, {fault:?} at {at}: {ends:?}");
            }
        }
    }
}
