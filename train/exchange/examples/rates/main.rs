//! Measures exchanges: the program that `cargo xtask bench-scale` starts.
//!
//! `rates BYTES,BYTES… TURNS` repeats each exchange of gradients of these sizes at most `TURNS` times. Under `mpirun`
//! it measures between ranks, else a world of one against a plain sum. It prints lines of
//! `sample,kind,bytes,turn,sent,seconds` and one of `engine,version`.

mod alone;
mod between_ranks;

use std::{
    error::Error,
    io::{self, Write},
    process::ExitCode,
};

use exchange::{Alone, launch};

/// A longer hang ends the job.
#[cfg(unix)]
const LIMIT: std::time::Duration = std::time::Duration::from_mins(2);

/// Larger gradients take fewer turns.
const BYTES_OF_A_SIZE: usize = 1 << 30;

const FEWEST: usize = 5;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rates: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let asked = Asked::parse(std::env::args().skip(1))?;
    let mut out = io::stdout().lock();
    if launch::place(&std::env::vars().collect())?.is_none() {
        writeln!(out, "engine,a world of one")?;
        return alone::measure(Alone, &asked, &mut out);
    }
    between(&asked, &mut out)
}

#[cfg(unix)]
fn between(asked: &Asked, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let engine = exchange::Mpi::open()?;
    let _watchdog = exchange::Engine::watchdog(&engine, LIMIT);
    if exchange::Engine::rank(&engine) == 0 {
        writeln!(out, "engine,{}", engine.version().lines().next().unwrap_or_default())?;
    }
    between_ranks::measure(engine, asked, out)
}

#[cfg(not(unix))]
fn between(_: &Asked, _: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    Err("Open MPI is loaded on Unix alone".into())
}

struct Asked {
    /// Bytes of gradients, whole numbers of f32.
    sizes: Vec<usize>,
    turns: usize,
}

impl Asked {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let usage = "usage: rates BYTES,BYTES… TURNS";
        let sizes = arguments.next().ok_or(usage)?;
        let turns: usize = arguments.next().ok_or(usage)?.parse()?;
        let sizes = sizes.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
        if turns == 0 || sizes.iter().any(|bytes| *bytes == 0 || bytes % size_of::<f32>() != 0) {
            return Err("a size is a multiple of 4 bytes, and there is one turn or more".into());
        }
        Ok(Self { sizes, turns })
    }

    fn turns_of(&self, bytes: usize) -> usize {
        (BYTES_OF_A_SIZE / bytes).clamp(FEWEST.min(self.turns), self.turns)
    }
}

struct Sample {
    kind: &'static str,
    bytes: usize,
    turn: usize,
    sent: u64,
    seconds: f64,
}

impl Sample {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { kind, bytes, turn, sent, seconds } = self;
        writeln!(out, "sample,{kind},{bytes},{turn},{sent},{seconds:.9}")
    }
}

/// No two neighbours are equal, so no pack is a special case.
fn gradient(bytes: usize) -> Vec<f32> {
    (0..bytes / size_of::<f32>()).map(|at| (at % 8191) as f32 * 0.25 - 1000.0).collect()
}
