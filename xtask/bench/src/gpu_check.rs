//! `cargo xtask gpu-check`: checks on a CUDA device that spilling changes no number, and measures its cost.
//!
//! GPU machines often lack compiler and network, so three stripped release binaries are carried there, with PyTorch's models
//! and a script that runs all: the check, the trainer, and this program, which measures plain copies and trained models and
//! gives the verdict. One binary could not hold them, since the trainer is a program of its own. Every run, passed or failed,
//! becomes a dated record.

mod carry;
mod completeness;
mod link;
mod record;
mod run;
mod stand_in;
mod verdict;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use xtask::{invocation::Invocation, workspace};

#[derive(Args)]
pub(crate) struct GpuCheck {
    /// Run on this machine after building, and record it
    #[arg(long, conflicts_with = "record")]
    here: bool,
    /// Build nothing: record the lines that `run` wrote on another machine
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Name of the record; by default the device that the run found
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Build nothing: print the speed of plain copies between host and GPU 0, as one line of `run`'s file
    #[arg(long, exclusive = true)]
    link: bool,
    /// Build nothing: print the verdict on the lines that `run` wrote
    #[arg(long, value_name = "FILE", exclusive = true)]
    verdict: Option<PathBuf>,
}

impl GpuCheck {
    pub(crate) fn run(self) -> Result<()> {
        let device = self.device.as_deref();
        if self.link {
            return link::print();
        }
        if let Some(raw) = self.verdict {
            return record::print_verdict(&raw);
        }
        if let Some(raw) = self.record {
            record::print_verdict(&raw)?;
            return record::make(&raw, device);
        }
        let folder = carry::fill_folder()?;
        if !self.here {
            println!(
                "carry {} to a machine with an NVIDIA driver, NVRTC and CUDA headers; run ./run there, which takes at most \
                 eight minutes and with several GPUs two more, then bring raw.jsonl and bench-vram back to `cargo xtask gpu-check --record raw.jsonl`",
                folder.display()
            );
            return Ok(());
        }
        let ran = Invocation::new(folder.join("run").to_string_lossy()).run(workspace::root());
        let recorded = record::make(&folder.join("raw.jsonl"), device);
        ran.and(recorded)
    }
}
