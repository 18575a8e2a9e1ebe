//! Correct programs give the right values in every permitted order; incorrect ones are detected.

use crate::{
    child::{Scenario, compiler_found, run},
    cuda::{Argument, Cuda, NOT_READY},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    ("relay", || relay(true)),
    ("relay_without_waits", || relay(false)),
    ("polling", polling),
    ("null_stream", null_stream),
    ("threads", threads),
];

const STEP: &str = "#include <cuda_runtime.h>
extern \"C\" __global__ void step(float* x, float by) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] = 2.0f * x[i] + by;
}
";

fn relay(waits: bool) {
    let cuda = Cuda::start();
    let step = cuda.kernel(STEP, "step");
    let streams = [(); 4].map(|()| cuda.stream());
    let order = |earlier: u64, later: u64| {
        if waits {
            cuda.order(earlier, later);
        }
    };
    let host = cuda.pinned::<f32>(64);
    host.fill(1.0);
    let [x, y] = [(); 2].map(|()| cuda.allocate(256, streams[0]));
    cuda.upload(x, host, streams[0]);

    let mut expected = 1.0;
    for (round, by) in (1_u8..=12).enumerate() {
        let (stream, next) = (streams[round % 4], streams[(round + 1) % 4]);
        let by = f32::from(by % 3);
        cuda.launch(step, (2, 32, 0), stream, &[Argument::Device(x), Argument::Float(by)]);
        expected = 2.0 * expected + by;
        order(stream, next);
        cuda.move_within(y, x, 256, next);
        cuda.fill(x, 0, 256, next);
        cuda.move_within(x, y, 256, next);
    }

    let last = streams[12 % 4];
    cuda.download(host, x, last);
    cuda.synchronize(last);
    if waits {
        assert!(host.iter().all(|found| found.to_bits() == f32::to_bits(expected)), "{} {expected}", host[0]);
        cuda.free(x, last);
        cuda.free(y, last);
    } else {
        eprintln!("found {} where order gives {expected}", host[0]);
    }
}

#[test]
fn a_correct_program_gives_the_same_values_in_every_mode_without_findings() {
    if !compiler_found() {
        return;
    }
    let strict = [("RACES", "1"), ("STRICT", "1")];
    for mode in ["eager", "lazy"] {
        run("relay", &[strict.as_slice(), &[("MODE", mode)]].concat()).passes();
    }
    for seed in 1..=20 {
        let seed = seed.to_string();
        run("relay", &[strict.as_slice(), &[("MODE", "random"), ("SEED", &seed)]].concat()).passes();
    }
}

#[test]
fn without_waits_a_program_is_right_by_luck_in_eager_mode_alone() {
    if !compiler_found() {
        return;
    }
    let value = |options: &[(&str, &str)]| {
        let ended = run("relay_without_waits", options);
        assert!(ended.status.success(), "{}", ended.stderr);
        let line = ended.stderr.lines().find(|line| line.starts_with("found ")).unwrap().to_owned();
        let words: Vec<&str> = line.split(' ').collect();
        words[1] == words[5]
    };
    assert!(value(&[("MODE", "eager")]));
    assert!(!value(&[("MODE", "lazy")]));
    let wrong = (1..=10).filter(|seed| !value(&[("MODE", "random"), ("SEED", &seed.to_string())])).count();
    assert!(wrong >= 8, "only {wrong} of 10 seeds break it");
}

fn polling() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(16, stream);
    cuda.fill(x, 7, 16, stream);
    let event = cuda.record(stream);
    let mut questions = 0;
    while cuda.query_event(event) == NOT_READY {
        questions += 1;
        assert!(questions < 100);
    }
    cuda.wait_for_event(event);
    cuda.fill(x, 8, 16, stream);
    while cuda.query(stream) == NOT_READY {
        questions += 1;
        assert!(questions < 100);
    }
    let mut bytes = [0_u8; 16];
    cuda.download(&mut bytes, x, stream);
    assert_eq!(bytes, [8; 16]);
    eprintln!("{questions} questions");
}

#[test]
fn repeated_queries_end_although_work_is_late() {
    let ended = run("polling", &[("MODE", "lazy"), ("RACES", "1")]);
    ended.passes();
    assert!(!ended.stderr.contains("0 questions"), "{}", ended.stderr);
    let eager = run("polling", &[]);
    eager.passes();
    assert!(eager.stderr.contains("4 questions"), "{}", eager.stderr);
}

fn null_stream() {
    let cuda = Cuda::start();
    let stream = cuda.blocking_stream();
    let x = cuda.allocate(4, stream);
    cuda.upload(x, &[1_u8; 4], stream);
    cuda.upload_and_wait(x, &[2_u8; 4]);
    cuda.move_within(x + 2, x, 2, stream);
    let mut bytes = [0_u8; 4];
    cuda.download(&mut bytes, x, 0);
    assert_eq!(bytes, [2; 4]);
}

#[test]
fn the_stream_without_a_handle_and_blocking_streams_wait_for_each_other() {
    for mode in ["eager", "lazy", "random"] {
        run("null_stream", &[("MODE", mode), ("RACES", "1"), ("STRICT", "1")]).passes();
    }
}

/// One thread waits for events of waiting streams, as CubeCL's collector does.
fn threads() {
    let cuda = Cuda::start();
    let [work, collect] = [(); 2].map(|()| cuda.stream());
    let x = cuda.allocate(16, work);
    let mut bytes = [0_u8; 16];
    for round in 0..20 {
        cuda.fill(x, round, 16, work);
        cuda.order(work, collect);
        let event = cuda.record(collect);
        std::thread::scope(|scope| {
            scope.spawn(|| Cuda::start().wait_for_event(event));
            cuda.download(&mut bytes, x, work);
        });
        assert_eq!(bytes, [round; 16]);
    }
}

#[test]
fn a_thread_that_waits_and_one_that_works_do_not_block_each_other() {
    for mode in ["eager", "lazy", "random"] {
        run("threads", &[("MODE", mode), ("RACES", "1"), ("STRICT", "1")]).passes();
    }
}
