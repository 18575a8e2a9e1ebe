//! A command line of another program, shown before it runs.

use std::{
    env, fmt,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// A program, its arguments and environment changes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Invocation {
    environment: Vec<(&'static str, String)>,
    withheld: &'static [&'static str],
    /// Beginning of the names of further variables.
    withheld_prefix: Option<&'static str>,
    program: String,
    arguments: Vec<String>,
}

impl Invocation {
    /// A program without arguments.
    pub fn new(program: impl Into<String>) -> Self {
        Self {
            environment: Vec::new(),
            withheld: &[],
            withheld_prefix: None,
            program: program.into(),
            arguments: Vec::new(),
        }
    }

    /// Cargo, with arguments separated by blanks.
    pub fn cargo(line: &str) -> Self {
        Self::new("cargo").arguments(line.split_whitespace())
    }

    /// Adds arguments.
    pub fn arguments<S: Into<String>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets a variable.
    pub fn environment(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// The program and its arguments.
    pub fn argv(&self) -> Vec<String> {
        [&self.program].into_iter().chain(&self.arguments).cloned().collect()
    }

    /// Hides variables of our own environment.
    pub fn withhold(mut self, names: &'static [&'static str]) -> Self {
        self.withheld = names;
        self
    }

    /// Hides all variables of our own environment whose names begin with `prefix`.
    pub fn withhold_all(mut self, prefix: &'static str) -> Self {
        self.withheld_prefix = Some(prefix);
        self
    }

    /// Shows the command, then runs it in `directory`.
    pub fn run(&self, directory: &Path) -> Result<()> {
        println!("$ {self}");
        let status =
            self.command(directory).status().with_context(|| format!("`{self}` could not be started"))?;
        if !status.success() {
            bail!("`{self}` failed: {status}");
        }
        Ok(())
    }

    /// Runs without showing the command; returns standard output. Standard error reaches the terminal.
    pub fn output(&self, directory: &Path) -> Result<String> {
        let output = self
            .command(directory)
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("`{self}` could not be started"))?;
        if !output.status.success() {
            bail!("`{self}` failed: {}", output.status);
        }
        String::from_utf8(output.stdout)
            .with_context(|| format!("`{self}` printed something that is not UTF-8"))
    }

    /// The command for `std::process`.
    pub fn command(&self, directory: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(directory);
        for name in self.withheld {
            command.env_remove(name);
        }
        if let Some(prefix) = self.withheld_prefix {
            let ours = env::vars_os().map(|(name, _)| name);
            for name in ours.filter(|name| name.to_string_lossy().starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        // Last: a program may get its own value of a withheld variable.
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

impl fmt::Display for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            write!(f, "{name}={} ", quoted(value))?;
        }
        write!(f, "{}", quoted(&self.program))?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {}", quoted(argument)))
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:%@+".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { format!("'{word}'") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_command_can_be_pasted_into_a_shell() {
        let shown = Invocation::cargo("doc --no-deps").environment("RUSTDOCFLAGS", "-D warnings").to_string();
        assert_eq!(shown, "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }

    #[test]
    fn a_failing_program_is_an_error_that_names_it() {
        let failing = Invocation::new("git").arguments(["rev-parse", "--quiet", "--verify", "no-such-name"]);
        let error = failing.run(Path::new(".")).unwrap_err().to_string();
        assert!(error.starts_with("`git rev-parse --quiet --verify no-such-name` failed"), "{error}");
    }

    #[test]
    fn a_missing_program_is_an_error_that_names_it() {
        let error = Invocation::new("no-such-program").output(Path::new(".")).unwrap_err().to_string();
        assert_eq!(error, "`no-such-program` could not be started");
    }

    #[cfg(unix)]
    #[test]
    fn a_withheld_variable_does_not_reach_the_program() {
        let show = Invocation::new("sh").arguments(["-c", "echo ${PATH-withheld}"]);
        assert_ne!(show.output(Path::new(".")).unwrap(), "withheld\n");
        // Without a path, `sh` sets a default, but does not export it.
        let show = Invocation::new("sh").arguments(["-c", "exec /usr/bin/env"]).withhold(&["PATH"]);
        assert!(!show.output(Path::new(".")).unwrap().contains("\nPATH="));
    }

    #[cfg(unix)]
    #[test]
    fn only_variables_set_here_reach_a_program_if_their_prefix_is_withheld() {
        let show = Invocation::new("sh").arguments(["-c", "exec /usr/bin/env"]);
        let show = show.withhold_all("PAT").environment("PATTERN", "set");
        let said = show.output(Path::new(".")).unwrap();
        let names: Vec<_> = said.lines().filter(|line| line.starts_with("PAT")).collect();
        assert_eq!(names, ["PATTERN=set"]);
    }
}
