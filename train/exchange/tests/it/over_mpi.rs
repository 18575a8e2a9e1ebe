//! Every installed Open MPI gives one process's bits, for any pieces, and every job ends.

use std::time::Duration;

use exchange::{Alone, Counted, Engine, Error, Exact, Mpi, OneBit, Pairwise, Share, threads};
use rustix::process::{Signal, getpid, kill_process};
use suite::Need;

use crate::ranks::{End, Installation, installations, report, scenario};

const MICRO_BATCHES: u64 = 8;
const LEN: usize = 20_011;

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
            // The other rank waits in vain; this rank ends.
        }
        "failed call" => {
            let parts: &mut [&mut [u8]] = &mut [&mut [0; 6000], &mut [1; 7000]];
            if rank == 1 {
                parts[0] = &mut [];
            }
            let failed = engine.all_gather(parts).is_err();
            let refused = engine.commit(true).is_err();
            engine.shrink().expect("all live");
            let sum = exact_digest(&mut engine);
            report(&format!("{rank} of {}: {failed} {refused} {sum:x}", engine.world()));
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
            // Longer than a loaded machine's delays.
            let _watchdog = engine.watchdog(Duration::from_secs(5));
            engine.barrier().expect("all are here");
            if rank == 1 {
                // `mpirun` may continue the process for a moment before it ends it.
                end_by(Signal::STOP);
                return;
            }
            engine.barrier().expect_err("the watchdog is faster");
        }
        "frozen receiver" => {
            let _watchdog = engine.watchdog(Duration::from_secs(5));
            engine.barrier().expect("all are here");
            if rank == 1 {
                end_by(Signal::STOP);
                return;
            }
            // More than sockets hold.
            engine.send((1, 0), vec![0; 16 << 20]).expect("it begins to leave");
            engine.finish_sending().expect_err("the watchdog is faster");
        }
        "no shrinking" => {
            let end = engine.shrink();
            report(&format!("{rank} {}", end.err().map_or("shrank".into(), |error| error.to_string())));
        }
        other => panic!("no scenario {other:?}"),
    }
}

/// A signal to oneself arrives later; no code may run in between.
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
    let alone = exact_digest(&mut Alone);
    for mpi in installations() {
        for ranks in [2, 4] {
            let end = mpi.run(ranks, "sums");
            succeeded(&end);
            // Threads are the reference where the world matters.
            let one_bit = threads::on_each(ranks, |mut engine| one_bit_digest(&mut engine));
            let expected: Vec<_> = one_bit
                .iter()
                .enumerate()
                .map(|(rank, one_bit)| format!("{rank} {alone:x} {one_bit:x} (Ok(true), Ok(false))"))
                .collect();
            assert_eq!(end.reports(), expected, "release {}: {}", mpi.release, end.printed);
        }
    }
}

#[test]
fn a_namespace_with_nothing_but_loopback_is_enough() {
    let of_path = Installation::of_path();
    let release_4 = of_path.and_then(|mpi| {
        if mpi.release < 5 { Ok(mpi) } else { Err("release 4 of Open MPI is needed".to_owned()) }
    });
    let Some(mpi) = Need::Mpi.found(release_4) else { return };

    // Without root, it needs a user namespace.
    let namespace =
        if rustix::process::geteuid().is_root() { "--net" } else { "--user --map-root-user --net" };
    let mut front: Vec<&str> = ["unshare"].into_iter().chain(namespace.split(' ')).collect();

    // TCP instead of shared memory; it takes loopback only by name.
    front.extend(["env", "OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,tcp"]);
    front.extend(["sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
    let possible = std::process::Command::new(front[0]).args(&front[1..]).arg("true").output();
    let refused = possible.map(|output| {
        (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
    });

    if let Some(why) = refused.unwrap_or_else(|error| Some(error.to_string())) {
        let needs = "it needs `unshare` and `ip` (packages util-linux and iproute2) and the right to make a namespace";
        Need::Namespace.is_met(Some(&format!("{needs}: {why}")));
        return;
    }

    let end = mpi.run_within(2, "sums", &front, false);
    succeeded(&end);
    assert_eq!(end.reports().len(), 2, "{}", end.printed);
}

#[test]
fn an_exact_sum_sends_what_a_ring_would() {
    for mpi in installations() {
        let end = mpi.run(4, "bytes");
        succeeded(&end);
        assert_eq!(end.reports().len(), 4, "{}", end.printed);
        for report in end.reports() {
            let sent: usize = report.split_once(' ').expect("two numbers").1.parse().expect("a number");
            // Twice three quarters of the bytes, up to the one element by which parts differ.
            assert!(sent.abs_diff(2 * 3 * 4 * LEN / 4) <= 2 * 3 * 4, "{report}");
        }
    }
}

#[test]
fn parts_of_another_size_than_expected_are_refused_before_any_memory_is_written() {
    for mpi in installations() {
        let end = mpi.run(2, "other sizes");
        ended(&end);
        let told = "1 all_gather: 0 bytes are expected of rank 0, which sends 6000";
        assert!(end.reports().contains(&told), "release {}: {}", mpi.release, end.printed);
    }
}

/// Release 4 ends the job, as for unequal sizes.
#[test]
fn a_call_that_fails_where_all_live_is_refused_by_their_vote_and_they_go_on() {
    let Some(mpi) = Need::Mpi5.found(Installation::unpacked()) else { return };
    let sum = exact_digest(&mut Alone);
    let end = mpi.run(2, "failed call");
    succeeded(&end);
    let expected = [0, 1].map(|rank| format!("{rank} of 2: true true {sum:x}"));
    assert_eq!(end.reports(), expected, "{}", end.printed);
}

#[test]
fn a_rank_that_is_killed_ends_the_job_or_is_survived_with_the_same_bits() {
    let sum = exact_digest(&mut Alone);
    for mpi in installations() {
        for ranks in [2, 4] {
            let end = mpi.run(ranks, "killed");
            ended(&end);
            if mpi.release < 5 {
                assert_eq!((end.success, end.reports().len()), (Some(false), 0), "{}", end.printed);
                continue;
            }
            let expected: Vec<_> =
                (0..ranks - 1).map(|rank| format!("{rank} of {}: {sum:x}", ranks - 1)).collect();
            assert_eq!(end.reports(), expected, "{}", end.printed);
        }
    }
}

#[test]
fn a_frozen_rank_ends_the_job_and_is_named() {
    for mpi in installations() {
        for ranks in [2, 4] {
            let end = mpi.run(ranks, "frozen");
            assert_eq!(end.success, Some(false), "release {}: {}", mpi.release, end.printed);
            assert!(end.printed.contains("error: rank 1 did not arrive at barrier"), "{}", end.printed);
        }
    }
}

#[test]
fn a_rank_that_freezes_before_it_takes_a_message_ends_the_job_and_is_named() {
    for mpi in installations() {
        let end = mpi.run(2, "frozen receiver");
        assert_eq!(end.success, Some(false), "release {}: {}", mpi.release, end.printed);
        assert!(end.printed.contains("error: rank 1 did not arrive at message"), "{}", end.printed);
    }
}

#[test]
fn without_ulfm_shrinking_is_refused_with_what_it_needs() {
    for mpi in installations() {
        let end = mpi.run_mortal(2, "no shrinking");
        succeeded(&end);
        let expected = "needs Open MPI 5 under `mpirun --with-ft ulfm`; this is Open MPI";
        assert_eq!(end.reports().len(), 2);
        assert!(end.reports().iter().all(|report| report.contains(expected)), "{}", end.printed);
    }
}
