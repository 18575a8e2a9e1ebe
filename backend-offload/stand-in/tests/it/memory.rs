//! Memory as on CUDA: size, times of access, fresh contents.

use crate::{
    child::{Ended, Scenario, run},
    cuda::{Cuda, OUT_OF_MEMORY, Pitched, Side},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    ("out_of_memory", out_of_memory),
    ("out_of_pinned", out_of_pinned),
    ("reuse", || reuse(true)),
    ("no_reuse", || reuse(false)),
    ("granules", granules),
    ("refused_allocations", refused_allocations),
    ("unmapped", unmapped),
    ("late_pinned_source", || late_source(true)),
    ("pageable_source", || late_source(false)),
    ("late_pinned_target", late_pinned_target),
    ("pageable_target", pageable_target),
    ("rows", rows),
    ("counters", counters),
];

const LAZY: [(&str, &str); 3] = [("MODE", "lazy"), ("RACES", "1"), ("STRICT", "1")];

fn out_of_memory() {
    let cuda = Cuda::start();
    let [first, second] = [(); 2].map(|()| cuda.stream());
    let x = cuda.allocate(700 << 10, first);
    assert_eq!(cuda.free_memory(), 324 << 10);
    assert_eq!(cuda.try_allocate(400 << 10, first), Err(OUT_OF_MEMORY));
    assert_eq!(cuda.try_allocate(1 << 50, first), Err(OUT_OF_MEMORY));
    cuda.free(x, first);
    let y = cuda.allocate(1 << 20, second);
    cuda.free(y, second);
}

#[test]
fn a_full_device_says_out_of_memory_and_has_room_again_after_a_free() {
    let ended = run("out_of_memory", &[LAZY.as_slice(), &[("VRAM", "1M")]].concat());
    ended.passes();
    assert_eq!(ended.counter("peak_device_bytes"), 1 << 20);
    assert_eq!((ended.counter("allocations"), ended.counter("refused_allocations")), (2, 2));
}

fn out_of_pinned() {
    let cuda = Cuda::start();
    let first = cuda.pinned::<u8>(700 << 10);
    assert_eq!(cuda.try_pinned::<u8>(400 << 10).unwrap_err(), OUT_OF_MEMORY);
    cuda.pinned::<u8>(324 << 10);
    assert_eq!(cuda.try_pinned::<u8>(1).unwrap_err(), OUT_OF_MEMORY);
    cuda.free_pinned(first.as_mut_ptr());
    cuda.pinned::<u8>(700 << 10);
}

#[test]
fn page_locked_memory_has_a_limit_and_room_again_after_a_free() {
    let ended = run("out_of_pinned", &[("PINNED", "1M")]);
    ended.passes();
    assert_eq!(ended.counter("peak_pinned_bytes"), 1 << 20);
    assert_eq!((ended.counter("pinned_allocations"), ended.counter("refused_pinned_allocations")), (3, 2));
}

fn reuse(expected: bool) {
    let cuda = Cuda::start();
    let [first, second] = [(); 2].map(|()| cuda.stream());
    let x = cuda.allocate(5000, first);
    cuda.fill(x, 1, 5000, first);
    cuda.free(x, first);
    cuda.synchronize(first);
    let y = cuda.allocate(5000, second);
    assert_eq!(x == y, expected);
    cuda.fill(y, 2, 5000, second);
    let mut bytes = [0_u8; 5000];
    cuda.download(&mut bytes, y, second);
    assert_eq!(bytes, [2; 5000]);
    cuda.free(y, second);
}

#[test]
fn a_freed_address_serves_again_only_where_reuse_is_on() {
    for mode in ["eager", "lazy"] {
        let strict = [("MODE", mode), ("RACES", "1"), ("STRICT", "1")];
        run("reuse", &[strict.as_slice(), &[("REUSE", "1")]].concat()).passes();
        run("no_reuse", &strict).passes();
    }
}

fn granules() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let all = cuda.free_memory();
    let left = || cuda.free_memory() >> 20;
    let large = cuda.allocate((2 << 20) + 1, stream);
    assert_eq!(left(), 4);
    let small = [(); 2].map(|()| cuda.allocate(512 << 10, stream));
    assert_eq!(left(), 2);
    cuda.allocate(1000, stream);
    assert_eq!(left(), 0);
    assert_eq!(cuda.try_allocate(3000, stream), Err(OUT_OF_MEMORY), "no granule for another size");
    cuda.allocate(1000, stream);
    cuda.allocate(512 << 10, stream);

    cuda.free(small[0], stream);
    cuda.synchronize(stream);
    assert_eq!(left(), 0, "its granule has others");
    cuda.free(large, stream);
    cuda.synchronize(stream);
    assert_eq!((left(), all >> 20), (4, 8));
}

#[test]
fn device_memory_is_taken_in_granules_that_small_allocations_share() {
    run("granules", &[("VRAM", "8M"), ("GRANULE", "2M")]).passes();
}

fn refused_allocations() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let found: Vec<bool> = (0..4).map(|_| cuda.try_allocate(16, stream).is_ok()).collect();
    assert_eq!(found, [true, true, false, false]);
}

#[test]
fn allocations_are_refused_after_the_configured_number() {
    run("refused_allocations", &[("FAIL_ALLOCATIONS_AFTER", "2")]).passes();
}

fn unmapped() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let all = cuda.free_memory();
    let freed = || {
        let x = cuda.allocate(300 << 10, stream);
        cuda.free(x, stream);
        cuda.synchronize(stream);
        all - cuda.free_memory()
    };
    assert_eq!(freed(), 0);
    cuda.set_release_threshold(100 << 10);
    assert_eq!(freed(), 100 << 10);
    cuda.set_release_threshold(u64::MAX);
    assert_eq!(freed(), 300 << 10);
    assert_eq!(freed(), 300 << 10, "it serves again");
    cuda.trim_pool();
    assert_eq!(cuda.free_memory(), all);
}

#[test]
fn freed_memory_is_unmapped_at_a_wait_down_to_the_release_threshold() {
    let ended = run("unmapped", &LAZY);
    ended.passes();
    assert_eq!(ended.counter("unmapped_bytes"), (300 + 200 + 300) << 10);
}

fn late_source(pinned: bool) {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(16, stream);
    let mut pageable = [1_u8; 16];
    let source = if pinned { cuda.pinned(16) } else { &mut pageable[..] };
    source.fill(1);
    cuda.upload(x, source, stream);
    source.fill(2);
    let mut bytes = [0_u8; 16];
    cuda.download(&mut bytes, x, stream);
    assert_eq!(bytes, [if pinned { 2 } else { 1 }; 16]);
}

#[test]
fn pinned_memory_is_read_when_the_copy_happens_and_pageable_memory_at_the_call() {
    run("late_pinned_source", &LAZY).passes();
    let ended = run("pageable_source", &LAZY);
    ended.passes();
    assert_eq!(ended.counter("copies_pageable"), 2);
}

fn late_pinned_target() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(16, stream);
    cuda.fill(x, 7, 16, stream);
    let host = cuda.pinned::<u8>(16);
    host.fill(1);
    cuda.download(host, x, stream);
    assert_eq!(host, [0xCB; 16]);
    cuda.synchronize(stream);
    assert_eq!(host, [7; 16]);
}

fn pageable_target() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(16, stream);
    cuda.fill(x, 7, 16, stream);
    let mut bytes = [0_u8; 16];
    cuda.download(&mut bytes, x, stream);
    assert_eq!(bytes, [7; 16]);
}

#[test]
fn a_download_into_pinned_memory_is_late_and_into_pageable_memory_immediate() {
    run("late_pinned_target", &LAZY).passes();
    run("pageable_target", &LAZY).passes();
}

fn rows() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(24, stream);
    let mut host: Vec<u8> = (0..30).collect();
    let on_host =
        |host: &mut [u8]| Side { kind: 1, host: host.as_mut_ptr() as u64, pitch: 10, ..Side::default() };
    let on_device = || Side { kind: 2, device: x, pitch: 8, ..Side::default() };
    let up = Pitched { from: on_host(&mut host), to: on_device(), width: 4, height: 3 };
    cuda.copy_rows(&up, stream);
    host.fill(0);
    let down = Pitched { from: on_device(), to: on_host(&mut host), width: 4, height: 3 };
    cuda.copy_rows(&down, stream);
    let expected: Vec<u8> = (0..30).map(|at| if at % 10 < 4 { at } else { 0 }).collect();
    assert_eq!(host, expected);
    let mut gap = [0_u8; 4];
    cuda.download(&mut gap, x + 4, stream);
    assert_eq!(gap, [0xCB; 4]);
}

#[test]
fn rows_are_copied_without_gaps_and_fresh_memory_is_recognisable() {
    let ended = run("rows", &[("MODE", "lazy")]);
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(ended.report.contains(r#""findings":{"read of unwritten memory":1}"#), "{}", ended.report);
}

fn counters() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let [x, y] = [(); 2].map(|()| cuda.allocate(1000, stream));
    let host = cuda.pinned::<u8>(500);
    let small = cuda.pinned::<u8>(100);
    cuda.upload(x, host, stream);
    cuda.move_within(y, x, 400, stream);
    cuda.download(small, y, stream);
    cuda.free(x, stream);
    cuda.synchronize(stream);
    cuda.free_pinned(host.as_mut_ptr());
    cuda.pinned::<u8>(50);
    cuda.record(stream);
    cuda.trim_pool();
}

#[test]
fn the_report_counts_what_happened() {
    let ended: Ended = run("counters", &LAZY);
    ended.passes();
    let counted = [
        ("allocations", 2),
        ("frees", 1),
        ("copies", 3),
        ("copies_to_device", 1),
        ("bytes", 1000),
        ("bytes_to_device", 500),
        ("bytes_within_device", 400),
        ("bytes_to_host", 100),
        ("peak_device_bytes", 2000),
        ("peak_pinned_bytes", 600),
        ("kernels", 0),
        ("seed", 1),
        ("trims", 1),
        ("pinned_allocations", 3),
        ("pinned_bytes", 650),
        ("pinned_frees", 1),
        ("events_created", 1),
        ("cuMemAllocAsync", 2),
        ("cuMemcpyHtoDAsync", 1),
        ("cuStreamSynchronize", 1),
        ("cuEventRecord", 1),
        // One wait at the copies' end; page-locked memory is freed when all work has ended.
        ("host_waits", 1),
    ];
    for (name, count) in counted {
        assert_eq!(ended.counter(name), count, "{name}: {}", ended.report);
    }
    assert!(ended.report.starts_with(r#"{"mode":"lazy","#), "{}", ended.report);
    assert!(
        ended.report.contains(r#""waits":{"cuStreamSynchronize":{"count":1,"ms":0.0"#),
        "{}",
        ended.report
    );
}
