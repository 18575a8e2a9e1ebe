//! The scheduler alone, on random programs.

use std::collections::BTreeSet;

use super::*;

#[derive(Debug, Clone)]
struct Piece {
    number: usize,
    stream: usize,
    after: Vec<usize>,
}

/// Runs a random program, partly while it is queued. Returns the order.
fn run(mode: Mode, seed: u64) -> Vec<Piece> {
    let mut dice = Random::new(seed ^ 0x5eed);
    let mut schedule = Schedule::new(mode, seed);
    let streams: Vec<StreamId> = (0..4).map(|_| schedule.create_stream()).collect();
    let mut last_of = [None; 4];
    let mut also_after: [Vec<usize>; 4] = Default::default();
    let mut marks: Vec<(Mark, Option<usize>)> = Vec::new();
    let mut order = Vec::new();

    for number in 0..60 {
        let stream = dice.below(4);
        match dice.below(10) {
            0 | 1 => marks.push((schedule.mark(streams[stream]), last_of[stream])),
            2 | 3 if !marks.is_empty() => {
                let (mark, last) = marks[dice.below(marks.len())];
                schedule.wait(streams[stream], mark);
                also_after[stream].extend(last);
            }
            4 if !marks.is_empty() => {
                let (mark, last) = marks[dice.below(marks.len())];
                while let Some(piece) = schedule.next(Goal::Mark(mark)) {
                    order.push(piece);
                }
                let happened = |number| order.iter().any(|piece: &Piece| piece.number == number);
                assert!(last.is_none_or(happened), "{mode:?} {seed}: a mark is done before its work");
            }
            _ => {
                let after = last_of[stream].into_iter().chain(also_after[stream].drain(..)).collect();
                schedule.push(streams[stream], Piece { number, stream, after });
                last_of[stream] = Some(number);
            }
        }
        while let Some(piece) = schedule.next(Goal::Optional) {
            order.push(piece);
        }
    }

    while let Some(piece) = schedule.next(Goal::Everything) {
        order.push(piece);
    }
    assert_eq!(schedule.pending().count(), 0);
    order
}

#[test]
fn every_order_respects_streams_and_waits_and_loses_nothing() {
    for (mode, seeds) in [(Mode::Eager, 200), (Mode::Lazy, 200), (Mode::Random, 2000)] {
        for seed in 0..seeds {
            let order = run(mode, seed);
            let mut happened = BTreeSet::new();
            for piece in &order {
                for earlier in &piece.after {
                    assert!(happened.contains(earlier), "{mode:?} {seed}: {piece:?} before {earlier}");
                }
                assert!(happened.insert(piece.number), "{mode:?} {seed}: {piece:?} happened twice");
            }
            let eager = run(Mode::Eager, seed);
            assert_eq!(order.len(), eager.len(), "{mode:?} {seed}");
        }
    }
}

#[test]
fn a_seed_gives_one_order_and_seeds_differ() {
    let numbers = |seed| run(Mode::Random, seed).iter().map(|piece| piece.number).collect::<Vec<_>>();
    assert_eq!(numbers(3), numbers(3));
    let with_one_program = |seed| {
        let mut schedule = Schedule::new(Mode::Random, seed);
        let streams = [schedule.create_stream(), schedule.create_stream(), schedule.create_stream()];
        let mut order = Vec::new();
        for number in 0..9 {
            schedule.push(streams[number % 3], number);
            order.extend(std::iter::from_fn(|| schedule.next(Goal::Optional)));
        }
        order.extend(std::iter::from_fn(|| schedule.next(Goal::Everything)));
        order
    };
    let orders: BTreeSet<Vec<usize>> = (0..100).map(with_one_program).collect();
    assert!(orders.len() > 20, "only {} orders in 100 seeds", orders.len());
}

#[test]
fn eager_work_happens_at_the_call() {
    let order = run(Mode::Eager, 1);
    assert!(order.is_sorted_by_key(|piece| piece.number));
    assert!(order.iter().any(|piece| piece.stream != order[0].stream));
}

#[test]
fn lazy_work_runs_when_needed_with_its_predecessors_alone() {
    let mut schedule = Schedule::new(Mode::Lazy, 1);
    let [first, second, third] = [(); 3].map(|()| schedule.create_stream());
    schedule.push(first, "a");
    let mark = schedule.mark(first);
    schedule.push(first, "not needed");
    schedule.wait(second, mark);
    schedule.push(second, "b");
    schedule.push(third, "c");
    assert_eq!(schedule.next(Goal::Optional), None);
    let happened: Vec<_> = std::iter::from_fn(|| schedule.next(Goal::Stream(second))).collect();
    assert_eq!(happened, ["a", "b"]);
    assert!(schedule.is_done(mark) && schedule.is_idle(second) && !schedule.is_idle(first));
    assert_eq!(schedule.pending().count(), 2);
}

#[test]
fn repeated_requests_for_progress_empty_a_stream() {
    let mut schedule = Schedule::new(Mode::Lazy, 1);
    let [first, second] = [(); 2].map(|()| schedule.create_stream());
    schedule.push(first, 1);
    schedule.wait(second, schedule.mark(first));
    schedule.push(second, 2);
    assert_eq!(schedule.next(Goal::Progress(second)), Some(1));
    assert_eq!(schedule.next(Goal::Progress(second)), Some(2));
    assert_eq!(schedule.next(Goal::Progress(second)), None);
}

#[test]
fn a_mark_knows_whether_its_stream_had_work() {
    let mut schedule = Schedule::new(Mode::Lazy, 1);
    let [first, second] = [(); 2].map(|()| schedule.create_stream());
    schedule.push(first, ());
    schedule.wait(second, schedule.mark(first));
    assert!(schedule.mark(first).after_work && !schedule.mark(second).after_work);
}

#[test]
fn the_last_work_of_a_kind_is_reached_without_what_follows_it() {
    let mut schedule = Schedule::new(Mode::Lazy, 1);
    let streams = [(); 3].map(|()| schedule.create_stream());
    for number in 0..4 {
        schedule.push(streams[0], number);
        schedule.push(streams[1], 10 + number);
    }
    schedule.wait(streams[1], schedule.mark(streams[0]));
    schedule.push(streams[1], 20);
    let mut done = Vec::new();
    for mark in schedule.last_pending(|number| [1, 2, 11].contains(number)) {
        while let Some(number) = schedule.next(Goal::Mark(mark)) {
            done.push(number);
        }
    }
    assert_eq!(done, [0, 1, 2, 10, 11]);
    assert!(schedule.last_pending(|number| *number == 2).is_empty());
}
