//! The command line: one verb, one file in `verbs/`. Without a verb it trains.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use runs::config::Config;

use tracing_subscriber::filter::{EnvFilter, LevelFilter};

use crate::exit::{self, Ending};
use crate::interrupt;
use crate::verbs::{
    chat, completions, doctor, eval, examples, export, import, index, inspect, plan as planning, prepare,
    report, run, sample, tokenizer_train,
};

/// Train language models bigger than your GPU.
///
/// Without a verb it trains: `train --config gpt-124m.json`. Exit codes: 0 done, 2 bad input, 3 interrupted with a
/// checkpoint saved, 4 diverged, 1 anything else.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true, after_help = examples::RUN)]
struct Cli {
    #[command(flatten)]
    run: run::Args,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Train, or resume a run.
    #[command(after_help = examples::RUN)]
    Run(run::Args),
    /// Print what a run would need and take.
    #[command(after_help = examples::PLAN)]
    Plan(planning::Args),
    /// Evaluate a checkpoint on the validation data.
    Eval(eval::Args),
    /// Continue a text.
    #[command(after_help = examples::SAMPLE)]
    Sample(sample::Args),
    /// Talk with a model.
    #[command(after_help = examples::CHAT)]
    Chat(chat::Args),
    /// Begin a run with published weights.
    #[command(after_help = examples::IMPORT)]
    Import(import::Args),
    /// Export a checkpoint for other programs.
    #[command(after_help = examples::EXPORT)]
    Export(export::Args),
    /// Print what a run directory or a checkpoint holds, and whether it is undamaged.
    Inspect(inspect::Args),
    /// Draw `report.html` of a run anew.
    #[command(after_help = examples::REPORT)]
    Report(report::Args),
    /// Draw several runs on one page.
    #[command(after_help = examples::COMPARE)]
    Compare(report::Compare),
    /// Print the JSON schema of configurations, for editors.
    #[command(after_help = examples::SCHEMA)]
    Schema,
    /// Check this machine: CUDA, memory, disks, Open MPI, and the remedy for each lack.
    #[command(after_help = examples::DOCTOR)]
    Doctor(doctor::Args),
    /// Print a script that completes this command line in a shell.
    #[command(after_help = examples::COMPLETIONS)]
    Completions(completions::Args),
    /// Turn text into token shards that training reads at any position.
    #[command(after_help = examples::PREPARE)]
    Prepare(prepare::Args),
    /// Make a tokenizer.
    #[command(subcommand)]
    Tokenizer(TokenizerVerb),
    /// Index a set by longest matches.
    #[command(subcommand)]
    Index(IndexVerb),
}

#[derive(Debug, Subcommand)]
enum IndexVerb {
    /// Build the index of a prepared set.
    Build(index::Build),
    /// Print what an index holds, whether it is undamaged, and which validation documents are in it.
    Inspect(index::Inspect),
}

#[derive(Debug, Subcommand)]
enum TokenizerVerb {
    /// Learn a vocabulary from text.
    Train(tokenizer_train::Args),
}

/// Runs the command line's verb and returns the exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    logging();
    interrupt::survive_file_limits();
    let done = match cli.verb.unwrap_or(Verb::Run(cli.run)) {
        Verb::Run(args) => run::run(&args),
        Verb::Plan(args) => planning::run(&args).map(done),
        Verb::Eval(args) => eval::run(&args).map(done),
        Verb::Sample(args) => sample::run(&args).map(done),
        Verb::Chat(args) => chat::run(&args).map(done),
        Verb::Import(args) => import::run(&args).map(done),
        Verb::Export(args) => export::run(&args).map(done),
        Verb::Inspect(args) => inspect::run(&args).map(done),
        Verb::Report(args) => report::run(&args).map(done),
        Verb::Compare(args) => report::compare(&args).map(done),
        Verb::Schema => {
            println!("{:#}", Config::schema());
            Ok(Ending::Done)
        }
        Verb::Doctor(args) => doctor::run(&args).map(done),
        Verb::Completions(args) => {
            completions::run(&args, Cli::command());
            Ok(Ending::Done)
        }
        Verb::Prepare(args) => prepare::run(&args).map(done),
        Verb::Tokenizer(TokenizerVerb::Train(args)) => tokenizer_train::run(&args).map(done),
        Verb::Index(IndexVerb::Build(args)) => index::build(&args).map(done),
        Verb::Index(IndexVerb::Inspect(args)) => index::inspect(&args).map(done),
    };

    match done {
        Ok(ending) => ending.code(),
        Err(error) => {
            eprintln!("train: {error:#}");
            exit::code_of(&error)
        }
    }
}

/// Warnings to standard error, or as `RUST_LOG` says.
fn logging() {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into()).from_env_lossy();
    let coloured = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(coloured);
    log.with_writer(std::io::stderr).init();
}

fn done((): ()) -> Ending {
    Ending::Done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_has_every_verb_option_and_exit_code() {
        suite::assert_reference("train.md", &crate::reference::train(Cli::command().name("train")));
    }

    #[test]
    fn every_example_of_the_help_is_a_command_that_the_program_accepts() {
        let texts = [
            examples::RUN,
            examples::PLAN,
            examples::SAMPLE,
            examples::CHAT,
            examples::IMPORT,
            examples::EXPORT,
            examples::PREPARE,
            examples::REPORT,
            examples::COMPARE,
            examples::SCHEMA,
            examples::DOCTOR,
            examples::COMPLETIONS,
        ];
        let mut accepted = 0;
        for line in texts.iter().flat_map(|text| text.lines()).filter_map(|line| line.strip_prefix("  train"))
        {
            // Two spaces, or a redirection, end the command; quoted texts are words.
            let command = line.split("  ").next().unwrap_or_default().split('>').next().unwrap_or_default();
            let quoted = command.split('\'').enumerate();
            let words = quoted.flat_map(|(n, part)| match n % 2 {
                0 => part.split_whitespace().collect(),
                _ => vec![part],
            });
            let parsed = Cli::try_parse_from(["train"].into_iter().chain(words));
            assert!(parsed.is_ok(), "train{command}: {}", parsed.unwrap_err());
            accepted += 1;
        }
        assert!(accepted >= 20, "{accepted}");
    }
}
