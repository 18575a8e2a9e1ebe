//! Errors in a configuration, reported together.

use std::fmt;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::overrides::Overrides;
use super::presets::presets;

/// An unreadable or invalid configuration.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message says what its variant is and what its fields are")]
pub enum ConfigError {
    #[error(
        "no configuration `{name}`: there is no such file, and the presets are {}",
        presets().map(|(name, _)| name.trim_end_matches(".json")).collect::<Vec<_>>().join(", ")
    )]
    Unknown { name: String },
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("cannot read {origin}")]
    Syntax { origin: String, source: serde_json::Error },
    #[error("{origin} has {}", listed(problems))]
    Refused { origin: String, problems: Vec<Problem> },
}

fn listed(problems: &[Problem]) -> String {
    let plural = if problems.len() == 1 { "" } else { "s" };
    let lines: Vec<_> = problems.iter().map(|problem| format!("  {problem}")).collect();
    format!("{} problem{plural}:\n{}", problems.len(), lines.join("\n"))
}

/// One problem.
#[derive(Debug, Error)]
pub enum Problem {
    #[error("unknown key `{path}`{source_note}; the nearest known key is `{nearest}`")]
    UnknownKey { path: String, source_note: Source, nearest: String },
    #[error("`{path}`{source_note}: {reason}")]
    Value { path: String, source_note: Source, reason: String },
    #[error("--set {given}: {reason}")]
    Override { given: String, reason: String },
    #[error("section `model`: {0}")]
    Model(models::ConfigError),
    #[error("{0}")]
    Combination(Combination),
}

/// Where a key was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    File,
    Set,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "",
            Self::Set => " (from --set)",
        })
    }
}

/// Values incompatible or out of range.
#[derive(Debug)]
pub struct Combination {
    pub(super) keys: Vec<&'static str>,
    pub(super) text: String,
}

impl fmt::Display for Combination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[derive(Debug, Default)]
pub(super) struct Problems {
    found: Vec<Problem>,
    in_doubt: Vec<String>,
}

impl Problems {
    pub(super) fn unknown_key(&mut self, path: String, nearest: String, overrides: &Overrides) {
        let source_note = overrides.source(&path);
        self.in_doubt.push(nearest.clone());
        self.found.push(Problem::UnknownKey { path, source_note, nearest });
    }

    pub(super) fn value(&mut self, path: String, reason: &str, overrides: &Overrides) {
        let source_note = overrides.source(&path);
        self.in_doubt.push(path.clone());
        self.found.push(Problem::Value { path, source_note, reason: plain(reason) });
    }

    pub(super) fn refused_override(&mut self, given: &str, reason: String) {
        self.found.push(Problem::Override { given: given.to_owned(), reason });
    }

    pub(super) fn doubt(&mut self, key: &str) {
        self.in_doubt.push(key.to_owned());
    }

    pub(super) fn model(&mut self, error: models::ConfigError) {
        self.found.push(Problem::Model(error));
    }

    pub(super) fn add_combinations(&mut self, combinations: Vec<Combination>) {
        let doubtful = |key: &str| {
            let within = |doubt: &String| {
                key.strip_prefix(doubt.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            self.in_doubt.iter().any(within)
        };
        let certain: Vec<_> = combinations
            .into_iter()
            .filter(|combination| !combination.keys.iter().any(|key| doubtful(key)))
            .collect();
        self.found.extend(certain.into_iter().map(Problem::Combination));
    }

    pub(super) fn none_or(self, origin: &str) -> Result<(), ConfigError> {
        if self.found.is_empty() {
            return Ok(());
        }
        Err(ConfigError::Refused { origin: origin.to_owned(), problems: self.found })
    }
}

fn plain(reason: &str) -> String {
    const WORDS: [(&str, &str); 7] = [
        ("invalid type: ", "found "),
        ("invalid value: ", "found "),
        ("unknown variant ", "unknown value "),
        ("expected usize", "expected a whole number"),
        ("expected u64", "expected a whole number"),
        ("expected f64", "expected a number"),
        ("expected path string", "expected a path"),
    ];
    WORDS.iter().fold(reason.to_owned(), |text, (serde, plain)| text.replace(serde, plain))
}
