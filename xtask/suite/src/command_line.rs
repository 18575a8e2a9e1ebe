//! A command line as pages of the reference show it.

use std::fmt::Write;

use clap::builder::Str;
use clap::{Arg, Command};

/// Sections of the program and its verbs, with a table of options each.
pub fn command_line(mut program: Command) -> String {
    program.build();
    let mut page = String::new();
    section(&mut page, program.get_name(), &program, &[]);
    page
}

fn section(page: &mut String, name: &str, command: &Command, of_program: &[&Arg]) {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    writeln!(page, "\n## `{name}`\n\n{}", sentence(&about)).expect("a string");
    let arguments: Vec<_> = command.get_arguments().filter(|argument| is_shown(argument)).collect();
    let ids =
        |arguments: &[&Arg]| arguments.iter().map(|argument| argument.get_id().clone()).collect::<Vec<_>>();
    if !arguments.is_empty() && ids(&arguments) == ids(of_program) {
        writeln!(page, "\nOptions and examples are those without a verb.").expect("a string");
        return;
    }
    if !arguments.is_empty() {
        writeln!(page, "\n| option | default | meaning |\n|---|---|---|").expect("a string");
    }
    for argument in &arguments {
        row(page, argument);
    }
    if let Some(examples) = command.get_after_help() {
        writeln!(page, "\n```text\n{examples}\n```").expect("a string");
    }
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        section(page, &format!("{name} {}", verb.get_name()), verb, &arguments);
    }
}

fn is_shown(argument: &Arg) -> bool {
    !argument.is_hide_set() && !matches!(argument.get_id().as_str(), "help" | "version")
}

fn row(page: &mut String, argument: &Arg) {
    let values: Vec<&str> = argument.get_value_names().unwrap_or_default().iter().map(Str::as_str).collect();
    let takes_values = argument.get_action().takes_values();
    let long = argument.get_long().map(|long| format!("--{long}"));
    let option = match (long, argument.get_short()) {
        (Some(long), Some(short)) => format!("{long}, -{short}"),
        (Some(long), None) => long,
        (None, Some(short)) => format!("-{short}"),
        (None, None) => String::new(),
    };
    let option = if takes_values { format!("{option} {}", values.join(" ")) } else { option };
    let defaults = argument.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy()));
    let defaults = if takes_values { defaults.collect::<Vec<_>>().join(" ") } else { String::new() };
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut meaning = sentence(&help);
    let possible = if takes_values { argument.get_possible_values() } else { Vec::new() };
    for value in possible.iter().filter(|value| !value.is_hide_set()) {
        let help =
            value.get_help().map(|help| format!(": {}", sentence(&help.to_string()))).unwrap_or_default();
        write!(meaning, "<br>`{}`{help}", value.get_name()).expect("a string");
    }
    writeln!(page, "| `{}` | {defaults} | {meaning} |", option.trim().replace('|', "\\|")).expect("a string");
}

fn sentence(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    if line.is_empty() || line.ends_with(['.', ':', '?']) { line } else { line + "." }
}
