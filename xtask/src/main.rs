//! Developer commands: `cargo xtask <command>`, one file each.
//!
//! It builds in seconds: no dependency leads to Burn (`developer_commands_build_without_burn`).

mod burn_22;
mod ci;
mod dev;
mod errors;
mod features;
mod instructions;
mod kernels;
mod measurements;
mod reference;
mod release;
mod stand_in;
mod test;
mod tidy;
mod times;

use std::process::ExitCode;

use clap::Parser;
use measurements::Measurement;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of this repository")]
enum Command {
    /// List the commands of those who change this repository
    Dev,
    /// The gate that a change must pass; local runs and the CI service run the same steps
    Ci(ci::Ci),
    /// Run the tests: the quick suite, or a larger one
    Test(test::Test),
    /// Check the house rules that no compiler checks
    Tidy,
    /// Write `docs/reference/` anew; tests compare it with the code
    Reference,
    /// Build the archive of both programs, and try it in an empty root
    Release,
    /// Check on a CUDA machine that spilling changes no number, and record its cost; takes at most eight minutes there
    GpuCheck(Measurement),
    /// Measure the cost of device budgets, and record it
    BenchVram(Measurement),
    /// Measure exchanges between ranks on this machine, simulate more ranks, and record both
    BenchScale(Measurement),
    /// Draw the README's picture from two runs of the toy, or check it
    Picture(Measurement),
    /// Count the pager's instructions with callgrind, and compare them with the committed table
    Instructions(instructions::Instructions),
    /// Test the adapter for Burn 0.22, a workspace of its own
    #[command(name = "burn-0.22")]
    Burn22(burn_22::Burn22),
    /// Run a program on a CUDA driver that needs no GPU
    StandIn(stand_in::StandIn),
    /// Compile the kernels that programs generated on the stand-in, with NVIDIA's own compiler
    Kernels(kernels::Kernels),
}

fn main() -> ExitCode {
    let outcome = match Command::parse() {
        Command::Dev => {
            dev::run::<Command>();
            Ok(())
        }
        Command::Ci(ci) => ci.run(),
        Command::Test(test) => test.run(),
        Command::Tidy => tidy::run(),
        Command::Reference => reference::run(),
        Command::Release => release::run(),
        Command::GpuCheck(measurement) => return measured(measurement.run("gpu-check")),
        Command::BenchVram(measurement) => return measured(measurement.run("bench-vram")),
        Command::BenchScale(measurement) => return measured(measurement.run("bench-scale")),
        Command::Picture(measurement) => return measured(measurement.run("picture")),
        Command::Instructions(instructions) => instructions.run(),
        Command::Burn22(burn) => burn.run(),
        Command::StandIn(stand_in) => stand_in.run(),
        Command::Kernels(kernels) => kernels.run(),
    };
    xtask::exit_code(outcome)
}

/// The program reports its own errors.
fn measured(ended: anyhow::Result<ExitCode>) -> ExitCode {
    ended.unwrap_or_else(|error| xtask::exit_code(Err(error)))
}
