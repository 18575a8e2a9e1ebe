//! `docs/reference/train.md`: verbs, options and exit codes.

use crate::exit::Ending;

const HEAD: &str = "\
# train

<!-- `cargo xtask reference` writes this page. -->

Verbs and options, as `train --help` and `train VERB --help` print them. From a clone, `cargo run -p train --release --`
stands for `train`.
";

pub(crate) fn train(program: clap::Command) -> String {
    let codes = [
        (0, Some(Ending::Done), "done"),
        (1, None, "any other error"),
        (2, None, "bad input: the message says what to change"),
        (3, Some(Ending::Interrupted), "interrupted; a checkpoint is saved if a step was taken"),
        (
            4,
            Some(Ending::Diverged),
            "diverged: too many updates in a row were NaN or infinite (`train.bad_steps`)",
        ),
    ];
    let codes: Vec<String> = codes
        .into_iter()
        .map(|(code, ending, meaning)| {
            assert_eq!(Ending::from_exit_code(code), ending);
            format!("| {code} | {meaning} |\n")
        })
        .collect();
    let verbs = suite::command_line(program);
    format!("{HEAD}\n## Exit codes\n\n| code | meaning |\n|---|---|\n{}{verbs}", codes.concat())
}
