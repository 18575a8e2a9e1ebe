//! Over the MPI that is installed: the same bits as in one process, whatever the pieces, and an end to every job.

use std::time::Duration;

use exchange::{Alone, Counted, Engine, Error, Exact, Exchange, Mpi, OneBit, Pairwise, Share, threads};
use rustix::process::{Signal, getpid, kill_process};

use crate::ranks::{End, mpirun_or_not_run, report, run, run_mortal, run_within, scenario};

const MICRO_BATCHES: u64 = 8;
const LEN: usize = 20_011;

/// A gradient whose sum shows its association.
fn gradient(n: u64) -> Vec<f32> {
    (0..LEN).map(|at| ((at as f32 + 1.0) * (n as f32 + 0.7)).sin() * 10_f32.powi((at % 7) as i32)).collect()
}

fn contributions(engine: &dyn Engine) -> Pairwise {
    let share = Share { count: MICRO_BATCHES, world: engine.world(), rank: engine.rank() };
    let mut own = Pairwise::new(share, LEN);
    share.range().for_each(|n| _ = own.push(gradient(n)).expect("one length"));
    own
}

fn digest(values: &[f32]) -> u64 {
    values.iter().fold(0xcbf2_9ce4_8422_2325, |hash, value| {
        (hash ^ u64::from(value.to_bits())).wrapping_mul(0x100_0000_01b3)
    })
}

fn exact_digest(engine: &mut dyn Engine) -> u64 {
    let own = contributions(engine);
    digest(&Exact::default().sum(engine, own).expect("summed"))
}

fn one_bit_digest(engine: &mut dyn Engine) -> u64 {
    let mut one_bit = OneBit::new(LEN, 0);
    let mut last = 0;
    for _ in 0..3 {
        let own = contributions(engine);
        last = digest(&one_bit.sum(engine, own).expect("summed"));
        let committed = engine.commit(true).expect("all live");
        one_bit.settle(committed);
    }
    last
}

#[test]
#[ignore = "started by other tests, under mpirun"]
fn runs_the_scenario_it_was_started_for() {
    let Some(scenario) = scenario() else { return };
    let mut engine = Mpi::open_in_pieces_of(5000).expect("MPI starts");
    let rank = engine.rank();
    match scenario.as_str() {
        "sums" => {
            let exact = exact_digest(&mut engine);
            let one_bit = one_bit_digest(&mut engine);
            let answers = (engine.commit(true), engine.commit(rank != 0));
            report(&format!("{rank} {exact:x} {one_bit:x} {answers:?}"));
        }
        "bytes" => {
            let mut counted = Counted::new(engine);
            exact_digest(&mut counted);
            report(&format!("{rank} {}", counted.costs().sent));
        }
        "other sizes" => {
            let parts: &mut [&mut [u8]] = &mut [&mut [0; 6000], &mut [1; 7000]];
            if rank == 1 {
                parts[0] = &mut [];
            }
            let end = engine.all_gather(parts);
            report(&format!("{rank} {}", end.expect_err("sizes differ")));
            // The other rank waits for a part that does not come; this one ends.
        }
        "killed" => {
            engine.barrier().expect("all are here");
            if rank == 1 {
                end_by(Signal::KILL);
            }
            let own = contributions(&engine);
            let error = Exact::default().sum(&mut engine, own).expect_err("rank 1 is gone");
            assert!(matches!(error, Error::Lost { .. } | Error::Broken { .. }), "{error}");
            assert!(engine.commit(true).is_err());
            engine.shrink().expect("the others live");
            let sum = exact_digest(&mut engine);
            report(&format!("{} of {}: {sum:x}", engine.rank(), engine.world()));
        }
        "frozen" => {
            let _watchdog = engine.watchdog(Duration::from_secs(2));
            engine.barrier().expect("all are here");
            if rank == 1 {
                end_by(Signal::STOP);
            }
            engine.barrier().expect_err("the watchdog is faster");
        }
        "no shrinking" => {
            let end = engine.shrink();
            report(&format!("{rank} {}", end.err().map_or("shrank".into(), |error| error.to_string())));
        }
        other => panic!("no scenario {other:?}"),
    }
}

/// A signal reaches its own process a moment later; nothing may happen in between.
fn end_by(signal: Signal) {
    kill_process(getpid(), signal).expect("sent");
    std::thread::sleep(Duration::from_secs(1));
}

fn ended(end: &End) {
    assert!(end.success.is_some(), "it hangs: {}", end.printed);
}

fn succeeded(end: &End) {
    assert_eq!(end.success, Some(true), "{}", end.printed);
}

#[test]
fn two_and_four_ranks_over_mpi_sum_to_the_bits_of_one() {
    let Some(mpirun) = mpirun_or_not_run("two_and_four_ranks_over_mpi_sum_to_the_bits_of_one") else {
        return;
    };
    let alone = exact_digest(&mut Alone);
    for ranks in [2, 4] {
        let end = run(&mpirun, ranks, "sums");
        succeeded(&end);
        // Threads are the reference for what depends on the world.
        let one_bit = threads::on_each(ranks, |mut engine| one_bit_digest(&mut engine));
        let expected: Vec<_> = one_bit
            .iter()
            .enumerate()
            .map(|(rank, one_bit)| format!("{rank} {alone:x} {one_bit:x} (Ok(true), Ok(false))"))
            .collect();
        assert_eq!(end.reports(), expected, "{}", end.printed);
    }
}

#[test]
fn a_namespace_with_nothing_but_loopback_is_enough() {
    let name = "a_namespace_with_nothing_but_loopback_is_enough";
    let Some(mpirun) = mpirun_or_not_run(name) else { return };
    let front = ["unshare", "-n", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"];
    let possible = std::process::Command::new(front[0]).args(["-n", "ip", "link"]).output();
    // Release 5 does not start where there is loopback alone.
    if !possible.is_ok_and(|output| output.status.success()) || mpirun.1 >= 5 {
        return eprintln!("NOT RUN: {name}: no namespace, or no MPI that runs in it");
    }
    let end = run_within(&mpirun, 2, "sums", &front, false);
    succeeded(&end);
    assert_eq!(end.reports().len(), 2);
}

#[test]
fn an_exact_sum_sends_what_a_ring_would() {
    let Some(mpirun) = mpirun_or_not_run("an_exact_sum_sends_what_a_ring_would") else { return };
    let end = run(&mpirun, 4, "bytes");
    succeeded(&end);
    for report in end.reports() {
        let sent: usize = report.split_once(' ').expect("two numbers").1.parse().expect("a number");
        // Twice three quarters of the bytes, up to the one element by which parts differ.
        assert!(sent.abs_diff(2 * 3 * 4 * LEN / 4) <= 2 * 3 * 4, "{report}");
    }
}

#[test]
fn parts_of_another_size_than_expected_are_refused_before_any_memory_is_written() {
    let name = "parts_of_another_size_than_expected_are_refused_before_any_memory_is_written";
    let Some(mpirun) = mpirun_or_not_run(name) else { return };
    let end = run(&mpirun, 2, "other sizes");
    ended(&end);
    let told = "1 all_gather: 0 bytes are expected of rank 0, which sends 6000";
    assert!(end.reports().contains(&told), "{}", end.printed);
}

#[test]
fn a_rank_that_is_killed_ends_the_job_or_is_survived_with_the_same_bits() {
    let name = "a_rank_that_is_killed_ends_the_job_or_is_survived_with_the_same_bits";
    let Some(mpirun) = mpirun_or_not_run(name) else { return };
    for ranks in [2, 4] {
        let end = run(&mpirun, ranks, "killed");
        ended(&end);
        assert!(end.took < Duration::from_secs(30), "{:?}", end.took);
        if mpirun.1 < 5 {
            assert_eq!((end.success, end.reports().len()), (Some(false), 0), "{}", end.printed);
            continue;
        }
        let sum = exact_digest(&mut Alone);
        let expected: Vec<_> =
            (0..ranks - 1).map(|rank| format!("{rank} of {}: {sum:x}", ranks - 1)).collect();
        assert_eq!(end.reports(), expected, "{}", end.printed);
    }
}

#[test]
fn a_frozen_rank_ends_the_job_and_is_named() {
    let Some(mpirun) = mpirun_or_not_run("a_frozen_rank_ends_the_job_and_is_named") else { return };
    for ranks in [2, 4] {
        let end = run(&mpirun, ranks, "frozen");
        assert_eq!(end.success, Some(false), "{}", end.printed);
        assert!(end.printed.contains("error: rank 1 did not arrive at barrier"), "{}", end.printed);
    }
}

#[test]
fn without_ulfm_shrinking_is_refused_with_what_it_needs() {
    let name = "without_ulfm_shrinking_is_refused_with_what_it_needs";
    let Some(mpirun) = mpirun_or_not_run(name) else { return };
    let end = run_mortal(&mpirun, 2, "no shrinking");
    succeeded(&end);
    let expected = "needs Open MPI 5 under `mpirun --with-ft ulfm`; this is Open MPI";
    assert_eq!(end.reports().len(), 2);
    assert!(end.reports().iter().all(|report| report.contains(expected)), "{}", end.printed);
}
