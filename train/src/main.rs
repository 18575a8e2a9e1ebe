//! The trainer's command line: one verb, one file.

mod interrupt;
mod prepare;
mod progress;
mod tokenizer_train;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Train language models bigger than your GPU.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Turn text into token shards that training reads at any position.
    Prepare(prepare::Args),
    /// Make a tokenizer.
    #[command(subcommand)]
    Tokenizer(TokenizerVerb),
}

#[derive(Debug, Subcommand)]
enum TokenizerVerb {
    /// Learn a vocabulary from text.
    Train(tokenizer_train::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().verb {
        Verb::Prepare(args) => prepare::run(&args),
        Verb::Tokenizer(TokenizerVerb::Train(args)) => tokenizer_train::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("train: {error:#}");
            let interrupted = matches!(error.downcast_ref(), Some(tokenizer::Error::Interrupted));
            ExitCode::from(if interrupted { 130 } else { 1 })
        }
    }
}
