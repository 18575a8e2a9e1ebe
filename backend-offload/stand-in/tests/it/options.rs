//! Options as a process receives them.

use std::{fs, process::id};

use crate::{
    child::{Scenario, folder, run},
    cuda::Cuda,
};

pub(crate) const SCENARIOS: &[Scenario] = &[("copies", copies), ("untouched", untouched)];

fn copies() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(1000, stream);
    cuda.upload(x, &[1_u8; 1000], stream);
    cuda.download(&mut [0_u8; 1000], x, stream);
}

fn untouched() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    // More than any machine that runs this has.
    let x = cuda.allocate(1 << 40, stream);
    let mut bytes = [7_u8; 1000];
    cuda.upload(x, &[1_u8; 1000], stream);
    cuda.download(&mut bytes, x, stream);
    assert_eq!(bytes, [0; 1000], "small downloads read zeros");
}

#[test]
fn a_stand_in_that_computes_nothing_counts_copies_and_touches_no_memory() {
    let ended = run("untouched", &[("COMPUTE", "0"), ("VRAM", "2048G")]);
    ended.passes();
    assert!(ended.report.contains(r#""peak_device_bytes":1099511627776"#), "{}", ended.report);
}

#[test]
fn an_option_that_does_not_exist_ends_the_process_with_one_line() {
    let ended = run("copies", &[("RACE", "1")]);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert!(
        ended.messages()[0].starts_with("stand-in: STAND_IN_RACE is no option: there are STAND_IN_MODE,")
    );
    assert_eq!((ended.messages().len(), ended.report.as_str()), (1, ""));
}

#[test]
fn the_trace_shows_each_copy_with_its_simulated_times() {
    let trace = folder().join(format!("trace-{}.jsonl", id()));
    run("copies", &[("TRACE", trace.to_str().unwrap()), ("BANDWIDTH", "1e6")]).passes();
    let text = fs::read_to_string(&trace).unwrap();
    fs::remove_file(trace).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2);
    let start = r#"{"stream":1,"kind":"to device","name":"cuMemcpyHtoDAsync","bytes":1000,"called_us":2.00,"#;
    assert!(lines[0].starts_with(start), "{}", lines[0]);
    // A microsecond per byte, and two of latency.
    assert!(lines[0].ends_with(r#""start_us":2.00,"end_us":1004.00}"#), "{}", lines[0]);
    assert!(lines[1].ends_with(r#""start_us":1004.00,"end_us":2006.00}"#), "{}", lines[1]);
}
