//! The clock alone: engines, queues, and what holds up the host.

use super::*;

const FIRST: StreamId = StreamId::from_index(0);
const SECOND: StreamId = StreamId::from_index(1);

fn timeline(options: &[(&str, &str)]) -> Timeline {
    let options = options.iter().chain(&[("CACHE", "c")]);
    let options = options.map(|(name, value)| (format!("STAND_IN_{name}"), (*value).to_owned()));
    Timeline::new(&Settings::parse(options).unwrap())
}

/// 24 GB/s page-locked, 8 GB/s pageable; kernels of 3 µs.
fn card() -> Timeline {
    let mut timeline = timeline(&[("CARD", "4090"), ("BANDWIDTH", "24e9")]);
    timeline.prices.link.pageable = Some(8e9);
    timeline
}

fn copy(bytes: u64) -> Task<'static> {
    Task { call: "copy", name: "copy", engine: Engine::ToDevice, bytes, touched: 0, pageable: false }
}

fn kernel(bytes: u64) -> Task<'static> {
    Task { engine: Engine::Compute, touched: bytes, ..copy(0) }
}

#[test]
fn waiting_work_leaves_its_engine_to_others_and_small_copies_run_between() {
    let mut timeline = timeline(&[]);
    timeline.stream_waits(FIRST, 5e-3);
    timeline.book(FIRST, copy(20_000_000));
    timeline.book(SECOND, copy(20_000_000));
    assert!(timeline.end_of(SECOND) < 2e-3, "while the first one waits");
    timeline.book(SECOND, copy(200_000_000));
    assert!(timeline.end_of(SECOND) > 15e-3, "too long for the time before the first one");
    let third = StreamId::from_index(2);
    timeline.book(third, copy(48));
    assert!(timeline.end_of(third) < 1e-3);
}

#[test]
fn copies_and_kernels_of_two_streams_overlap_and_those_of_one_engine_do_not() {
    let mut timeline = timeline(&[]);
    timeline.book(FIRST, copy(20_000_000));
    timeline.book(SECOND, kernel(0));
    assert!(timeline.end_of(SECOND) < timeline.end_of(FIRST));
    timeline.book(SECOND, copy(20_000_000));
    assert!(timeline.end_of(SECOND) > 2.0 * 1e-3);
    let end = timeline.end_of(SECOND);
    timeline.stream_waits(FIRST, end);
    timeline.book(FIRST, kernel(0));
    assert!(timeline.end_of(FIRST) > timeline.end_of(SECOND));
}

#[test]
fn work_starts_no_earlier_than_its_call() {
    let mut timeline = card();
    timeline.book(FIRST, kernel(0));
    timeline.charge(1e-3);
    timeline.book(FIRST, kernel(0));
    assert!(timeline.end_of(FIRST) >= 1e-3 + 3e-6);
    timeline.charge(1e-3);
    assert!(timeline.record(FIRST) >= 2e-3, "an event after ended work happens at its call");
}

#[test]
fn a_full_queue_holds_up_the_host_until_its_oldest_work_ends() {
    let mut timeline = card();
    for _ in 0..1024 {
        timeline.book(FIRST, kernel(0));
    }
    assert!(timeline.has_passed(0.0) && !timeline.has_passed(1e-9), "the queue has room");
    timeline.book(SECOND, kernel(0));
    assert!(!timeline.has_passed(1e-9), "another stream has a queue of its own");
    timeline.book(FIRST, kernel(0));
    assert!(timeline.has_passed(2.9e-6) && !timeline.has_passed(3.1e-6), "the end of the first kernel");
    timeline.book(FIRST, kernel(0));
    assert!(timeline.has_passed(5.9e-6) && !timeline.has_passed(6.1e-6), "the end of the second kernel");
}

#[test]
fn without_a_card_no_queue_is_ever_full() {
    let mut timeline = timeline(&[]);
    for _ in 0..2000 {
        timeline.book(FIRST, kernel(0));
    }
    assert!(!timeline.has_passed(1e-9) && timeline.streams[0].queued.is_empty());
}

#[test]
fn a_large_pageable_upload_holds_up_the_host_to_its_end_and_a_small_one_while_it_is_staged() {
    let pageable = |bytes| Task { pageable: true, ..copy(bytes) };
    let mut timeline = card();
    timeline.book(FIRST, copy(8_000_000));
    assert!(!timeline.has_passed(1e-9), "a pinned one leaves the host free");
    timeline.book(FIRST, pageable(8_000));
    assert!(timeline.has_passed(0.99e-6) && !timeline.has_passed(1.01e-6));
    timeline.book(FIRST, pageable(8_000_000));
    let end = timeline.end_of(FIRST);
    assert!(end > 1.3e-3 && timeline.has_passed(end));

    let mut flat = self::timeline(&[]);
    flat.book(FIRST, pageable(8_000_000));
    assert!(!flat.has_passed(1e-9));
}

const OTHER: HostId = HostId::from_index(1);

#[test]
fn a_host_waits_on_its_own_time_until_it_names_anothers_event() {
    let mut timeline = card();
    timeline.charge(1e-3);
    timeline.begin_host();
    timeline.host_calls(OTHER);
    assert!(timeline.has_passed(1e-3), "it begins at its creator's time");
    timeline.host_waits(5e-3, "test");
    let recorded = timeline.now();
    timeline.host_calls(HostId::SHARED);
    assert!(!timeline.has_passed(1.1e-3), "the other's wait holds up only itself");
    timeline.book(FIRST, copy(24_000_000));
    assert!(timeline.end_of(FIRST) < 2.1e-3);
    timeline.host_waits(recorded, "test");
    assert!(timeline.has_passed(5e-3));
}

#[test]
fn a_host_reaches_the_time_of_a_waiter_that_it_meets_and_a_new_waiter_that_of_its_host() {
    let mut timeline = card();
    let waiter = timeline.begin_waiter(None);
    timeline.host_calls(waiter);
    timeline.host_waits(5e-3, "test");
    timeline.host_calls(HostId::SHARED);
    assert!(!timeline.has_passed(1e-6));
    timeline.host_meets([waiter].into_iter());
    assert!(timeline.has_passed(5e-3) && !timeline.has_passed(5.1e-3));
    timeline.host_waits(7e-3, "test");
    assert_eq!(timeline.begin_waiter(Some(waiter)), waiter);
    timeline.host_calls(waiter);
    assert!(timeline.has_passed(7e-3));
}

#[test]
fn a_host_that_falls_behind_still_finds_gaps_and_never_a_busy_engine() {
    let mut timeline = card();
    timeline.begin_host();
    timeline.charge(4e-3);
    timeline.book(FIRST, copy(24_000_000));
    timeline.host_calls(OTHER);
    timeline.book(SECOND, copy(24_000_000));
    assert!(timeline.end_of(SECOND) < 1.1e-3, "before the first one");
    timeline.book(SECOND, copy(96_000_000));
    assert!(timeline.end_of(SECOND) > 9e-3, "after it");
}

#[test]
fn what_an_engine_did_long_ago_is_forgotten_and_stays_busy() {
    let mut busy = Busy::default();
    for n in 0..2 * REMEMBERED {
        busy.take(0.0, 2.0 * n as f64, 1.0);
    }
    assert!(busy.intervals.len() <= REMEMBERED + 1);
    let start = busy.take(0.0, 0.0, 1.0);
    assert!(start > REMEMBERED as f64, "{start}");
}
