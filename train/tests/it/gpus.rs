//! Several GPUs, played by the stand-in for CUDA: one rank on each.

use std::fs;
use std::process::Command;

use crate::program::{PROGRAM, assert_success, json};
use crate::ranks::{begin_with, has_mpi, set};
use crate::stand_in::installation;
use crate::tiny::{Tiny, bits};

/// Bits of a run on as many GPUs; `None` if this machine lacks MPI or the stand-in.
fn trained(tiny: &Tiny, ranks: &'static str, settings: &[&str]) -> Option<[String; 2]> {
    if !has_mpi() {
        return None;
    }

    let installation = installation()?;
    fs::write(tiny.join("cubecl.toml"), "[autotune]\ncache = \"local\"\nlevel = \"minimal\"\n")
        .expect("writing");
    let steps = ["train.micro_batch=1", "train.steps=2", "eval.questions=[]"];
    let mut command = Command::new(PROGRAM);
    command.args(begin_with("cuda", ranks, ranks)).args(set(&[&steps[..], settings].concat()));
    command.env("CUDA_PATH", installation).env("LD_LIBRARY_PATH", installation.join("lib"));
    command.env("STAND_IN_CACHE", installation.join("kernels")).env("STAND_IN_DEVICES", "2");
    let output = tiny.run_to_end(&mut command);
    assert_success(&output);
    Some(bits(&json(&output)))
}

mod gate {
    use super::*;

    #[test]
    #[ignore = "gate: tunes kernels for minutes"]
    fn each_rank_takes_its_own_gpu_and_ends_with_the_bits_of_one() {
        let tiny = Tiny::new();
        let Some(two) = trained(&tiny, "2", &["train.accumulate=2"]) else { return };
        assert_eq!(Some(two), trained(&tiny, "1", &["train.accumulate=2"]));
        let devices = ["1", "2", "2/ranks/1"].map(|run| tiny.records(run, "start")[0]["device"].clone());
        assert_eq!(devices, ["CUDA device 0", "CUDA device 0", "CUDA device 1"]);
    }
}

mod full {
    use super::*;

    #[test]
    #[ignore = "full: tunes kernels for minutes"]
    fn stages_on_gpus_end_with_the_bits_of_one() {
        let tied = "model.tie_word_embeddings=true";
        for more in [&[r#"eval.questions=["Who?"]"#][..], &[tied, "memory.optimizer=host"]] {
            let tiny = Tiny::new();
            let settings = [
                &["train.accumulate=3", "train.recompute=1", "ranks.pipeline=2", "model.n_layer=2"][..],
                more,
            ]
            .concat();
            let Some(two) = trained(&tiny, "2", &settings) else { return };
            assert_eq!(Some(two), trained(&tiny, "1", &settings), "{more:?}");
            assert_eq!(tiny.records("2", "sample"), tiny.records("1", "sample"), "{more:?}");
        }
    }
}
