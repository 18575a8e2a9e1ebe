//! `cargo xtask dev`: the commands for changing this repository, on one screen.

use clap::{Command, CommandFactory};

const OTHERS: [(&str, &str); 6] = [
    ("cargo run -p train --release", "Train the toy"),
    ("cargo run -p serve --release", "Serve the newest run"),
    ("cargo run -p web", "Serve an echo, for work on clients and the page; builds in seconds"),
    ("cargo test --release -p PACKAGE NAME", "Run tests of one package"),
    (".ci/run", "Install what all tests need, then run the gate"),
    ("docs/try-pages", "Run the pages' commands in an empty root"),
];

pub(crate) fn run<C: CommandFactory>() {
    print!("{}", list(&C::command()));
}

fn list(xtask: &Command) -> String {
    let own = xtask.get_subcommands().map(|command| {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        (format!("cargo xtask {}", command.get_name()), about)
    });
    let others = OTHERS.iter().map(|(command, about)| ((*command).to_owned(), (*about).to_owned()));
    let lines = own.chain(others).map(|(command, about)| format!("{command:<38}{about}\n"));
    lines.collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use xtask::workspace;

    #[test]
    fn every_command_is_listed_with_its_purpose_and_scripts_exist() {
        let list = list(&crate::Command::command());
        assert!(list.lines().count() > 15, "{list}");
        for line in list.lines() {
            assert!(line.len() > 44 && !line.ends_with(' '), "{line}");
            let script = line.split(' ').next().filter(|word| word.contains('/'));
            assert!(
                script.is_none_or(|script| workspace::root().join(Path::new(script)).is_file()),
                "{line}"
            );
        }
    }
}
