//! The host's simulated time: calls' costs, and waits.

use crate::{
    child::{Scenario, compiler_found, run},
    cuda::{Argument, Cuda, NOT_READY},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    ("memory_takes_time", memory_takes_time),
    ("memory_is_free", memory_is_free),
    ("freeing_waits", freeing_waits),
    ("pageable_upload", pageable_upload),
    ("collector", || collector(39.99)),
    // 1,008 GB/s and 165.2 TFLOP/s, after 3 microseconds.
    ("kernel_of_two_operands", || kernel(0.102, true)),
    ("kernel_of_one_operand", || kernel(0.0129, false)),
    ("kernel_of_much_arithmetic", || kernel(1.003, true)),
    ("kernel_without_a_card", || kernel(0.005, true)),
    ("collector_apart", || collector(0.0)),
    ("own_streams", own_streams),
];

const CARD: [(&str, &str); 1] = [("CARD", "4090")];

fn milliseconds(cuda: &Cuda, calls: impl FnOnce()) -> f32 {
    let stream = cuda.stream();
    let start = cuda.record(stream);
    calls();
    let end = cuda.record(stream);
    cuda.elapsed(start, end)
}

#[track_caller]
fn takes(cuda: &Cuda, expected: f32, calls: impl FnOnce()) {
    let found = milliseconds(cuda, calls);
    // The two events take 1.2 microseconds.
    assert!((expected..expected + 0.02).contains(&found), "{found} ms where {expected} are expected");
}

fn memory_takes_time() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    takes(&cuda, 0.0, || {});
    let mut pinned = None;
    takes(&cuda, 10.05, || pinned = Some(cuda.pinned::<u8>(25_000_000)));
    takes(&cuda, 0.1, || cuda.free_pinned(pinned.unwrap().as_mut_ptr()));

    let mut x = 0;
    takes(&cuda, 0.15, || x = cuda.allocate(400_000_000, stream));
    takes(&cuda, 0.0, || cuda.free(x, stream));
    takes(&cuda, 0.0, || x = cuda.allocate(400_000_000, stream));
    cuda.free(x, stream);
    takes(&cuda, 0.15, || cuda.trim_pool());
}

#[test]
fn page_locking_and_mapping_take_time_and_memory_of_the_pool_takes_none() {
    run("memory_takes_time", &CARD).passes();
}

fn memory_is_free() {
    let cuda = Cuda::start();
    let found = milliseconds(&cuda, || cuda.free_pinned(cuda.pinned::<u8>(1 << 20).as_mut_ptr()));
    assert_eq!(found.to_bits(), 0);
}

#[test]
fn without_a_card_memory_takes_no_time() {
    run("memory_is_free", &[]).passes();
}

/// Both frees wait for an unrelated copy of 40 ms.
fn freeing_waits() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(1_000_000, stream);
    let [source, other] = [1_000_000, 10].map(|size| cuda.pinned::<u8>(size));
    cuda.upload(x, source, stream);
    takes(&cuda, 40.1, || cuda.free_pinned(other.as_mut_ptr()));
    takes(&cuda, 0.1, || cuda.free_pinned(source.as_mut_ptr()));
}

#[test]
fn freeing_page_locked_memory_waits_for_the_device_and_the_wait_is_counted() {
    let ended = run("freeing_waits", &[CARD.as_slice(), &[("BANDWIDTH", "25e6")]].concat());
    ended.passes();
    assert_eq!((ended.counter("pinned_frees"), ended.counter("host_waits")), (2, 1));
    let wait = r#""waits":{"cuMemFreeHost":{"count":1,"ms":40.0"#;
    assert!(ended.report.contains(wait), "{}", ended.report);
}

fn pageable_upload() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let [x, y] = [(); 2].map(|()| cuda.allocate(9_000_000, stream));
    let pinned = cuda.pinned::<u8>(9_000_000);
    takes(&cuda, 0.0, || cuda.upload(x, pinned, stream));
    cuda.synchronize(stream);
    takes(&cuda, 1.0, || cuda.upload(y, &vec![1_u8; 9_000_000], stream));
}

#[test]
fn a_pageable_upload_holds_up_the_program_until_its_end() {
    let ended = run("pageable_upload", &CARD);
    ended.passes();
    assert_eq!((ended.counter("copies_pageable"), ended.counter("bytes_pageable")), (1, 9_000_000));
    let waits = r#""waits":{"cuMemcpyHtoDAsync":{"count":1,"ms":1.0"#;
    assert!(ended.report.contains(waits), "{}", ended.report);
}

fn collector(expected: f32) {
    let cuda = Cuda::start();
    let [work, collect] = [(); 2].map(|()| cuda.stream());
    let x = cuda.allocate(1_000_000, work);
    cuda.upload(x, cuda.pinned::<u8>(1_000_000), work);
    cuda.order(work, collect);
    let event = cuda.record(collect);
    takes(&cuda, expected, || {
        std::thread::scope(|scope| {
            scope.spawn(|| Cuda::start().wait_for_event(event));
        });
    });
}

#[test]
fn waits_of_a_collector_thread_hold_up_the_program_only_without_a_card() {
    const SLOW: (&str, &str) = ("BANDWIDTH", "25e6");
    let apart = run("collector_apart", &[CARD.as_slice(), &[SLOW]].concat());
    apart.passes();
    assert_eq!((apart.counter("collector_waits"), apart.counter("host_waits")), (1, 0));
    let held_up = run("collector", &[SLOW]);
    held_up.passes();
    assert_eq!((held_up.counter("collector_waits"), held_up.counter("host_waits")), (0, 1));
}

/// Another thread waits for a copy of 40 ms.
fn own_streams() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(1_000_000, stream);
    let source = cuda.pinned::<u8>(1_000_000);
    let mut event = 0;
    takes(&cuda, 0.0, || {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let cuda = Cuda::start();
                let stream = cuda.stream();
                cuda.upload(x, source, stream);
                cuda.synchronize(stream);
                cuda.record(stream)
            });
            event = thread.join().expect("no panic");
        });
    });
    assert_eq!(cuda.query_event(event), NOT_READY, "on the other thread's time");
    takes(&cuda, 39.995, || cuda.order_after_event(event, stream));
    assert_eq!(cuda.query_event(event), 0);
}

#[test]
fn a_thread_with_a_stream_of_its_own_holds_up_others_only_at_its_events() {
    let ended = run("own_streams", &[CARD.as_slice(), &[("BANDWIDTH", "25e6")]].concat());
    ended.passes();
    assert_eq!(
        (ended.counter("other_hosts"), ended.counter("other_waits"), ended.counter("host_waits")),
        (1, 1, 1)
    );
}

const TOUCH: &str = "#include <cuda_runtime.h>
extern \"C\" __global__ void touch(float* x, const float* __restrict__ y) { x[threadIdx.x] = y[threadIdx.x]; }
";

fn kernel(expected: f32, two_operands: bool) {
    let cuda = Cuda::start();
    let touch = cuda.kernel(TOUCH, "touch");
    let stream = cuda.stream();
    let [x, y] = [10_000_000, 90_000_000].map(|size| cuda.allocate(size, stream));
    cuda.fill(y, 0, 90_000_000, stream);
    cuda.synchronize(stream);
    let other = if two_operands { y } else { x };
    let start = cuda.record(stream);
    cuda.launch(touch, (8, 256, 0), stream, &[Argument::Device(x), Argument::Device(other)]);
    let end = cuda.record(stream);
    let found = cuda.elapsed(start, end);
    assert!((expected..expected + 0.01).contains(&found), "{found} ms where {expected} are expected");
}

#[test]
fn a_kernel_takes_time_for_each_byte_of_its_operands_and_its_arithmetic() {
    if !compiler_found() {
        return;
    }
    run("kernel_of_two_operands", &CARD).passes();
    run("kernel_of_one_operand", &CARD).passes();
    run("kernel_of_much_arithmetic", &[CARD.as_slice(), &[("INTENSITY", "1652")]].concat()).passes();
    run("kernel_without_a_card", &[("INTENSITY", "1652")]).passes();
}
