//! `train completions`: a shell script that completes verbs and options.

use std::io;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// bash, zsh, fish, elvish or powershell.
    shell: clap_complete::Shell,
}

pub(crate) fn run(args: &Args, mut command: clap::Command) {
    clap_complete::generate(args.shell, &mut command, "train", &mut io::stdout());
}
