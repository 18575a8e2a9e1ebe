//! Developer commands: `cargo xtask <command>`. One file per command; this one only dispatches.
//!
//! This program builds in seconds: it depends neither on Burn nor on a crate that does
//! (`developer_commands_build_without_burn`).

mod bench_scale;
mod bench_vram;
mod ci;
mod gpu_check;
mod instructions;
mod invocation;
mod kernels;
mod process;
mod records;
mod stand_in;
mod test;
mod tidy;
mod times;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of this repository")]
enum Command {
    /// The gate that a change must pass; local runs and the CI service run the same steps
    Ci(ci::Ci),
    /// Run the tests: the quick suite, or a larger one
    Test(test::Test),
    /// Check the house rules that no compiler checks
    Tidy,
    /// Check on a CUDA machine that spilling changes no number, and record its cost; takes at most eight minutes there
    GpuCheck(gpu_check::GpuCheck),
    /// Measure the cost of device budgets, and record it
    BenchVram(Box<bench_vram::BenchVram>),
    /// Measure exchanges between ranks on this machine, simulate more ranks, and record both
    BenchScale(bench_scale::BenchScale),
    /// Count the pager's instructions with callgrind, and compare them with the committed table
    Instructions(instructions::Instructions),
    /// Run a program on a CUDA driver that needs no GPU
    StandIn(stand_in::StandIn),
    /// Compile the kernels that programs generated on the stand-in, with NVIDIA's own compiler
    Kernels(kernels::Kernels),
}

fn main() -> ExitCode {
    let outcome = match Command::parse() {
        Command::Ci(ci) => ci.run(),
        Command::Test(test) => test.run(),
        Command::Tidy => tidy::run(),
        Command::GpuCheck(gpu_check) => gpu_check.run(),
        Command::BenchVram(bench_vram) => bench_vram.run(),
        Command::BenchScale(bench_scale) => bench_scale.run(),
        Command::Instructions(instructions) => instructions.run(),
        Command::StandIn(stand_in) => stand_in.run(),
        Command::Kernels(kernels) => kernels.run(),
    };
    if let Err(error) = outcome {
        // Causes on one line and no backtrace, whatever RUST_BACKTRACE says: these errors are not bugs of ours.
        eprintln!("error: {error:#}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
