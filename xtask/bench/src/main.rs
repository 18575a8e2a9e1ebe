//! The measuring commands of `cargo xtask`.

mod gpu_check;
mod picture;
mod process;
mod records;
mod scale;
mod vram;

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Measurements of this repository")]
enum Command {
    /// Check on a CUDA machine that spilling changes no number, and record its cost; takes at most eight minutes there
    GpuCheck(gpu_check::GpuCheck),
    /// Measure the cost of device budgets, and record it
    BenchVram(Box<vram::BenchVram>),
    /// Measure exchanges between ranks on this machine, simulate more ranks, and record both
    BenchScale(scale::BenchScale),
    /// Draw the README's picture from two runs of the toy
    Picture(picture::Picture),
}

fn main() -> ExitCode {
    let outcome = match Command::parse() {
        Command::GpuCheck(gpu_check) => gpu_check.run(),
        Command::BenchVram(bench_vram) => bench_vram.run(),
        Command::BenchScale(bench_scale) => bench_scale.run(),
        Command::Picture(picture) => picture.run(),
    };
    xtask::exit_code(outcome)
}
