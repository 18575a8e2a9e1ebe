//! Several GPUs, played by the stand-in for CUDA: one rank on each.

use std::fs;
use std::process::Command;

use crate::program::{PROGRAM, assert_success, json};
use crate::ranks::{begin_with, has_mpi, set};
use crate::stand_in::installation;
use crate::tiny::{Tiny, bits};

mod gate {
    use super::*;

    #[test]
    #[ignore = "gate: tunes kernels for minutes"]
    fn each_rank_takes_its_own_gpu_and_ends_with_the_bits_of_one() {
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
            command.env("CUDA_PATH", installation).env("LD_LIBRARY_PATH", installation.join("lib"));
            command.env("STAND_IN_CACHE", installation.join("kernels")).env("STAND_IN_DEVICES", "2");
            let output = tiny.run_to_end(&mut command);
            assert_success(&output);
            bits(&json(&output))
        };

        assert_eq!(trained("2"), trained("1"));
        let devices = ["1", "2", "2/ranks/1"].map(|run| tiny.records(run, "start")[0]["device"].clone());
        assert_eq!(devices, ["CUDA device 0", "CUDA device 0", "CUDA device 1"]);
    }
}
