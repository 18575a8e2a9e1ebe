//! The README's test command is the one CI runs, read from the README itself: what a visitor is told to type
//! and what is known to pass cannot drift apart.

use std::fs;

use anyhow::{Context, Result, bail, ensure};

use crate::{invocation::Invocation, workspace};

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TestCommand {
    arguments: Vec<String>,
}

impl TestCommand {
    pub(crate) fn read() -> Result<Self> {
        let path = workspace::root().join("README.md");
        Self::parse(
            &fs::read_to_string(&path).context("README.md, which holds the test command, is unreadable")?,
        )
    }

    /// The first line in a fenced `sh` block that starts with `cargo test`.
    pub(crate) fn parse(readme: &str) -> Result<Self> {
        let line = shell_lines(readme)
            .find(|line| line.split_whitespace().take(2).eq(["cargo", "test"]))
            .context("README.md has no fenced `sh` block with a line that starts with `cargo test`")?;
        if line.contains(['"', '\'', '\\', '$', '#', '|', '&', ';']) {
            bail!(
                "README.md: `{line}` must be a single line of plain words, so that it can run without a shell"
            );
        }
        let arguments: Vec<String> = line.split_whitespace().skip(1).map(str::to_owned).collect();
        ensure!(
            arguments.iter().any(|argument| argument == "--workspace"),
            "README.md: `{line}` lacks --workspace, so that CI would test only some of the crates"
        );
        Ok(Self { arguments })
    }

    pub(crate) fn invocation(&self) -> Invocation {
        Invocation::new("cargo").arguments(self.arguments.iter().cloned())
    }

    /// The flags that choose features, for the other steps to see the same code as the tests.
    pub(crate) fn feature_flags(&self) -> Vec<String> {
        let mut flags = Vec::new();
        let mut arguments = self.arguments.iter().take_while(|argument| *argument != "--");
        while let Some(argument) = arguments.next() {
            if matches!(argument.as_str(), "--features" | "-F") {
                flags.push("--features".to_owned());
                flags.extend(arguments.next().cloned());
            } else if argument.starts_with("--features=")
                || matches!(argument.as_str(), "--all-features" | "--no-default-features")
            {
                flags.push(argument.clone());
            }
        }
        flags
    }

    /// The features it chooses of one crate, in the form `crate/feature`.
    pub(crate) fn features_of(&self, member: &str) -> Vec<String> {
        let flags = self.feature_flags();
        let features = flags.iter().flat_map(|flag| flag.trim_start_matches("--features=").split(','));
        let is_its = |feature: &&str| feature.split_once('/').is_some_and(|(owner, _)| owner == member);
        features.filter(is_its).map(str::to_owned).collect()
    }
}

fn shell_lines(markdown: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    markdown.lines().map(str::trim).filter(move |line| {
        if let Some(language) = line.strip_prefix("```") {
            inside = !inside && language == "sh";
            return false;
        }
        inside
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<TestCommand> {
        TestCommand::parse(&format!("# Title\n\n```sh\n{line}\n```\n"))
    }

    #[test]
    fn the_first_shell_line_with_cargo_test_is_the_command() {
        let readme = "cargo test --prose\n```toml\ncargo test --toml\n```\n\
                      ```sh\ncargo run\ncargo test --workspace\ncargo test --second\n```\n";
        let command = TestCommand::parse(readme).unwrap();
        assert_eq!(command.invocation().to_string(), "cargo test --workspace");
    }

    #[test]
    fn a_readme_without_a_test_command_is_refused() {
        let error = TestCommand::parse("# Title\n").unwrap_err().to_string();
        assert!(error.contains("no fenced `sh` block"), "{error}");
    }

    #[test]
    fn a_command_that_skips_crates_is_refused() {
        assert!(parse("cargo test -p models").unwrap_err().to_string().contains("--workspace"));
    }

    #[test]
    fn a_command_that_needs_a_shell_is_refused() {
        assert!(parse("cargo test --workspace \\").unwrap_err().to_string().contains("single line"));
    }

    #[test]
    fn other_steps_see_the_features_of_the_tests_and_nothing_else() {
        let command =
            parse("cargo test --workspace --release -F a/b,c --all-features -- --features x").unwrap();
        assert_eq!(command.feature_flags(), ["--features", "a/b,c", "--all-features"]);
        let command = parse("cargo test --workspace --no-default-features --features=a").unwrap();
        assert_eq!(command.feature_flags(), ["--no-default-features", "--features=a"]);
    }
    #[test]
    fn the_features_of_one_crate_can_be_told_from_those_of_others() {
        let command = parse("cargo test --workspace --features a/x,b/y --features=a/z -F ab/w").unwrap();
        assert_eq!(command.features_of("a"), ["a/x", "a/z"]);
        assert_eq!(command.features_of("c"), [""; 0]);
    }
}
