//! A failed copy: where its error appears, and whether it stays.

use crate::{
    child::{Scenario, run},
    cuda::{Cuda, ECC_UNCORRECTABLE, NOT_READY},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    ("failed_copy", failed_copy),
    ("failed_copy_asked_for", failed_copy_asked_for),
    ("failed_copy_to_pageable", failed_copy_to_pageable),
    ("failed_copy_before_a_free", failed_copy_before_a_free),
    ("error_that_stays", error_that_stays),
];

/// The second copy fails. A stream that waits for it finds the error.
fn failed_copy() {
    let cuda = Cuda::start();
    let [work, after, other] = [(); 3].map(|()| cuda.stream());
    let x = cuda.allocate(16, work);
    let [source, target] = [(); 2].map(|()| cuda.pinned::<u8>(16));
    source.fill(7);
    cuda.upload(x, source, work);
    cuda.download(target, x, work);
    cuda.synchronize(other);
    cuda.order(work, after);
    let event = cuda.record(after);
    assert_eq!(cuda.try_wait_for_event(event), ECC_UNCORRECTABLE);
    assert_eq!(target, [0xCB; 16]);

    cuda.synchronize(work);
    cuda.download(target, x, work);
    cuda.synchronize(work);
    assert_eq!(target, [7; 16]);
}

#[test]
fn a_failed_copy_moves_nothing_and_the_first_wait_for_it_returns_the_error() {
    for mode in ["eager", "lazy", "random"] {
        let ended = run("failed_copy", &[("FAIL_COPY_AFTER", "1"), ("MODE", mode)]);
        ended.passes();
        assert_eq!((ended.counter("copies"), ended.counter("failed_copies")), (3, 1));
    }
}

fn failed_copy_asked_for() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(16, stream);
    cuda.upload(x, cuda.pinned::<u8>(16), stream);
    let event = cuda.record(stream);
    let mut answer = NOT_READY;
    while answer == NOT_READY {
        answer = cuda.query_event(event);
    }
    assert_eq!(answer, ECC_UNCORRECTABLE);
    assert_eq!(cuda.query_event(event), 0);
}

#[test]
fn a_query_returns_the_error_of_a_failed_copy_once() {
    run("failed_copy_asked_for", &[("FAIL_COPY_AFTER", "0")]).passes();
    run("failed_copy_asked_for", &[("FAIL_COPY_AFTER", "0"), ("MODE", "lazy")]).passes();
}

fn failed_copy_to_pageable() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(16, stream);
    cuda.fill(x, 7, 16, stream);
    let mut bytes = [1_u8; 16];
    assert_eq!(cuda.try_download(&mut bytes, x, stream), ECC_UNCORRECTABLE);
    assert_eq!(bytes, [1; 16]);
    cuda.download(&mut bytes, x, stream);
    assert_eq!(bytes, [7; 16]);
}

#[test]
fn a_download_into_pageable_memory_returns_its_own_error() {
    run("failed_copy_to_pageable", &[("FAIL_COPY_AFTER", "0")]).passes();
}

/// The free happens although it returns the error.
fn failed_copy_before_a_free() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(16, stream);
    let [source, other] = [(); 2].map(|()| cuda.pinned::<u8>(16));
    cuda.upload(x, source, stream);
    assert_eq!(cuda.try_free_pinned(other.as_mut_ptr()), ECC_UNCORRECTABLE);
    cuda.synchronize(stream);
    cuda.pinned::<u8>(16);
}

#[test]
fn a_free_that_waits_returns_the_error_of_a_failed_copy() {
    let ended = run("failed_copy_before_a_free", &[("FAIL_COPY_AFTER", "0"), ("PINNED", "32")]);
    ended.passes();
    assert_eq!(ended.counter("pinned_frees"), 1);
}

fn error_that_stays() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(16, stream);
    let target = cuda.pinned::<u8>(16);
    cuda.fill(x, 7, 16, stream);
    cuda.download(target, x, stream);
    let event = cuda.record(stream);
    assert_eq!(cuda.try_synchronize(stream), ECC_UNCORRECTABLE);

    for _ in 0..2 {
        assert_eq!(cuda.try_allocate(16, stream), Err(ECC_UNCORRECTABLE));
        assert_eq!(cuda.try_pinned::<u8>(16).unwrap_err(), ECC_UNCORRECTABLE);
        assert_eq!(cuda.try_download(target, x, stream), ECC_UNCORRECTABLE);
        assert_eq!(cuda.query_event(event), ECC_UNCORRECTABLE);
        assert_eq!(cuda.try_wait_for_event(event), ECC_UNCORRECTABLE);
        assert_eq!(cuda.try_free_pinned(target.as_mut_ptr()), ECC_UNCORRECTABLE);
    }
}

#[test]
fn an_error_that_stays_is_returned_by_every_later_call() {
    for mode in ["eager", "lazy"] {
        let ended = run("error_that_stays", &[("FAIL_COPY_AFTER", "0"), ("STICKY", "1"), ("MODE", mode)]);
        ended.passes();
        assert_eq!((ended.counter("allocations"), ended.counter("pinned_frees")), (1, 0));
    }
}
