//! `cargo run -p web --example load --release -- 127.0.0.1:8080` loads a running server. Speeds are ratios within the
//! run, less variable on a busy machine.

mod client;
mod figures;
mod hostile;
mod same;
mod stalls;
mod streams;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::ensure;
use clap::{Parser, ValueEnum};

#[derive(Parser)]
struct Args {
    /// Address of the server.
    server: SocketAddr,
    /// Measurements to make, in this order; by default all.
    #[arg(long, value_delimiter = ',', default_values_t = Part::value_variants().to_vec(), value_enum)]
    parts: Vec<Part>,
    /// Numbers of concurrent streams, each measured separately.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64])]
    streams: Vec<usize>,
    /// Seconds after which a measurement begins no more streams.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Tokens of every answer.
    #[arg(long, default_value_t = 48)]
    tokens: usize,
    /// Concurrent streams while a long prompt is read.
    #[arg(long, default_value_t = 8)]
    beside: usize,
    /// Long prompts, one after another.
    #[arg(long, default_value_t = 20)]
    long_prompts: usize,
    /// Process id of the server, whose memory is printed after every part.
    #[arg(long)]
    process: Option<u32>,
    /// Folder for the raw numbers.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Part {
    Streams,
    LongPrompts,
    Same,
    Hostile,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    print_memory(&args, "before")?;
    for part in &args.parts {
        println!();
        match part {
            Part::Streams => streams::measure(&args)?,
            Part::LongPrompts => stalls::measure(&args)?,
            Part::Same => same::compare(&args)?,
            Part::Hostile => hostile::attempt(&args)?,
        }
        println!();
        print_memory(&args, &format!("after {part:?}"))?;
    }
    let failed = client::metric(args.server, |line| line.contains(",status=\"5"))?;
    println!("answers with a status from 500 on: {failed}");
    ensure!(failed == 0.0, "the server failed");
    Ok(())
}

fn print_memory(args: &Args, when: &str) -> anyhow::Result<()> {
    if let Some(process) = args.process {
        let [resident, most] = client::memory(process)?;
        println!("memory {when}: {resident:.1} MiB resident, {most:.1} MiB at most so far");
    }
    Ok(())
}
