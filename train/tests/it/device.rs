//! `--device auto` on a machine with half of CUDA.

use std::fs;
use std::os::unix::fs::symlink;

use assert_cmd::Command;

use crate::program::{CACHE, PROGRAM, assert_code, assert_success, stderr};
use crate::tiny::Tiny;

fn with_a_driver_alone(tiny: &Tiny, device: &str) -> std::process::Output {
    let libraries = tiny.join("libraries");
    if !libraries.exists() {
        let maps = fs::read_to_string("/proc/self/maps").expect("Linux tells what is loaded");
        let mapped = |line: &str| {
            line.split_whitespace().last().filter(|path| path.contains("/libc.so")).map(str::to_owned)
        };
        let library = maps.lines().find_map(mapped).expect("the C library is loaded");
        fs::create_dir(&libraries).expect("making");
        symlink(library, libraries.join("libcuda.so.1")).expect("linking");
    }
    let mut command = Command::new(PROGRAM);
    command
        .args(["plan", "--config", "tiny.json", "--device", device])
        .current_dir(tiny.path())
        .envs([CACHE]);
    command.env("LD_LIBRARY_PATH", &libraries).env("CUDA_PATH", &libraries).env("CUDA_HOME", &libraries);
    command.output().expect("the program starts")
}

#[test]
fn an_incomplete_cuda_is_named_and_the_cpu_is_used() {
    let tiny = Tiny::new();
    let output = with_a_driver_alone(&tiny, "auto");
    assert_success(&output);
    let said = stderr(&output);
    for part in ["working on the CPU, because", "CUDA device 0", "not found", "install"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let insisted = with_a_driver_alone(&tiny, "cuda");
    assert_code(&insisted, 1);
    assert!(stderr(&insisted).contains("CUDA device 0"), "{}", stderr(&insisted));
}
