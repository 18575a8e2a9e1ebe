//! Several GPUs of a host, played by the stand-in for the CUDA driver: one rank on each.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::program::{PROGRAM, assert_success, json};
use crate::ranks::{begin_with, has_mpi, set};
use crate::tiny::{Tiny, bits};

/// The folder that plays a CUDA installation. `None` where it cannot be built and need not.
fn installation() -> Option<PathBuf> {
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["run", "--quiet", "--package", "xtask", "--", "stand-in"])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    let built = build.output().expect("cargo starts");
    if built.status.success() {
        return Some(PathBuf::from(String::from_utf8_lossy(&built.stdout).trim()));
    }
    let why = String::from_utf8_lossy(&built.stderr).into_owned();
    let required = env::var("OFFLOAD_REQUIRE_STAND_IN").is_ok_and(|value| value == "1");
    assert!(!required, "this test has to run, but {why}");
    eprintln!("NOT RUN: one rank on each of two GPUs: {why}");
    None
}

#[test]
fn each_rank_takes_a_gpu_of_its_own_and_they_end_with_the_bits_of_one() {
    if !has_mpi() {
        return;
    }
    let Some(installation) = installation() else { return };
    let tiny = Tiny::new();
    fs::write(tiny.join("cubecl.toml"), "[autotune]\ncache = \"local\"\nlevel = \"minimal\"\n")
        .expect("writing");
    let settings = ["train.accumulate=2", "train.micro_batch=1", "train.steps=2", "eval.questions=[]"];
    let trained = |ranks: &'static str| {
        let mut command = Command::new(PROGRAM);
        command.args(begin_with("cuda", ranks, ranks)).args(set(&settings));
        command.env("CUDA_PATH", &installation).env("LD_LIBRARY_PATH", installation.join("lib"));
        command.env("STAND_IN_CACHE", installation.join("kernels")).env("STAND_IN_DEVICES", "2");
        let output = tiny.to_its_end(&mut command);
        assert_success(&output);
        bits(&json(&output))
    };
    assert_eq!(trained("2"), trained("1"));
    let devices = ["1", "2", "2/ranks/1"].map(|run| tiny.records(run, "start")[0]["device"].clone());
    assert_eq!(devices, ["CUDA device 0", "CUDA device 0", "CUDA device 1"]);
}
