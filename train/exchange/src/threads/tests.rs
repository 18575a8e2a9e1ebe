//! Promises of the engine within one process.

use super::*;

fn said(parts: &[&[u8]]) -> Vec<Vec<u8>> {
    parts.iter().map(|part| part.to_vec()).collect()
}

#[test]
fn parts_of_any_size_arrive_where_they_are_sent() {
    let received = on_each(3, |mut engine| {
        let me = engine.rank();
        let send: Vec<Vec<u8>> = (0..3).map(|to| vec![(10 * me + to) as u8; me + 2 * to]).collect();
        let send: Vec<&[u8]> = send.iter().map(Vec::as_slice).collect();
        let mut receive: Vec<Vec<u8>> = (0..3).map(|from| vec![0; from + 2 * me]).collect();
        let mut slices: Vec<&mut [u8]> = receive.iter_mut().map(Vec::as_mut_slice).collect();
        engine.all_to_all(&send, &mut slices).expect("sent");
        receive
    });
    assert_eq!(received[0], said(&[&[], &[10], &[20, 20]]));
    assert_eq!(received[2], said(&[&[2; 4], &[12; 5], &[22; 6]]));
}

#[test]
fn a_rank_that_dies_gives_the_others_an_error_and_shrinks_away() {
    let ends = on_each(4, |engine| {
        let mut engine = if engine.rank() == 1 { engine.with_fault(2, Fault::Die) } else { engine };
        engine.barrier().expect("all are here");
        assert_eq!(engine.commit(true), Ok(true));
        let broke = engine.barrier().expect_err("rank 1 is gone");
        if engine.shrink().is_err() {
            return None;
        }
        engine.barrier().expect("three are here");
        Some((engine.rank(), engine.world(), broke))
    });
    let places: Vec<_> = ends.iter().flatten().map(|(rank, world, _)| (*rank, *world)).collect();
    assert_eq!(places, [(0, 3), (1, 3), (2, 3)]);
    assert!(ends[1].is_none());
    assert!(ends.iter().flatten().any(|(.., error)| matches!(error, Error::Lost { peer: 1, .. })));
}

#[test]
fn commit_is_refused_to_all_when_a_call_of_one_has_failed() {
    let answers = on_each(3, |engine| {
        let mut engine = if engine.rank() == 2 { engine.with_fault(0, Fault::Fail) } else { engine };
        assert!(engine.barrier().is_err());
        let refused = engine.commit(true);
        engine.shrink().expect("all live");
        (refused, engine.commit(true), engine.commit(engine.rank() != 0), engine.world())
    });
    let refused = Err(Error::Broken { call: Call::Commit });
    assert!(answers.iter().all(|answer| *answer == (refused.clone(), Ok(true), Ok(false), 3)), "{answers:?}");
}

#[test]
fn ranks_that_make_different_calls_get_an_error_and_do_not_wait() {
    let ends =
        on_each(
            2,
            |mut engine| {
                if engine.rank() == 0 { engine.barrier() } else { engine.commit(true).map(|_| ()) }
            },
        );
    assert!(matches!(ends[0], Err(Error::OtherCall { peer: 1, .. })), "{ends:?}");
    assert!(ends[1].is_err());
    let ends = on_each(2, |mut engine| {
        let mut byte = [0; 1];
        if engine.rank() == 0 { engine.barrier() } else { engine.all_gather(&mut [&mut [], &mut byte]) }
    });
    assert!(ends.iter().any(|end| matches!(end, Err(Error::OtherCall { .. }))), "{ends:?}");
    assert!(ends.iter().all(Result::is_err));
}

#[test]
fn a_part_of_another_size_than_expected_is_an_error_with_both_sizes() {
    let ends = on_each(2, |mut engine| {
        let (mut small, mut large) = ([0; 2], [0; 5]);
        let parts: &mut [&mut [u8]] =
            if engine.rank() == 0 { &mut [&mut small, &mut large] } else { &mut [&mut small, &mut [0; 4]] };
        (engine.all_gather(parts), engine.commit(true))
    });
    let bytes = Error::Bytes { call: Call::AllGather, peer: 1, expected: 5, found: 4 };
    assert_eq!(ends[0].0, Err(bytes));
    assert!(ends.iter().all(|(_, commit)| commit.is_err()), "{ends:?}");
}

#[test]
fn a_slow_rank_is_waited_for_and_named_meanwhile() {
    let ends = on_each(3, |engine| {
        let delay = Fault::Delay(Duration::from_millis(200));
        let mut engine = if engine.rank() == 1 { engine.with_fault(0, delay) } else { engine };
        let waiting = engine.waiting();
        let overdue = thread::scope(|scope| {
            let look = scope.spawn(|| {
                thread::sleep(Duration::from_millis(100));
                waiting.overdue(Duration::ZERO)
            });
            engine.barrier().expect("late, and here");
            look.join().expect("looked")
        });
        (engine.rank(), overdue.map(|overdue| overdue.missing))
    });
    assert!(ends.contains(&(0, Some(vec![1]))) && ends.contains(&(1, None)), "{ends:?}");
}
