//! `cargo xtask tidy`: house rules that no compiler checks, explained in CONTRIBUTING.md. Rules map text to findings;
//! this file alone reads the tree.

mod circles;
mod compiled_once;
mod documents;
mod fences;
mod invariants;
mod manifests;
mod page_limits;
mod project;
mod random_tests;
mod rust_files;

use std::{collections::BTreeMap, fmt, fs, io};

use anyhow::{Context, Result, bail};

use xtask::{
    invocation::Invocation,
    readme_table,
    workspace::{self, Workspace},
};

pub(crate) use documents::linked;

#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    line: usize,
    rule: &'static str,
    reason: String,
}

/// Paths are relative to the root, with `/`.
#[derive(Debug, Clone, Copy)]
struct File<'a> {
    path: &'a str,
    text: &'a str,
}

impl File<'_> {
    fn finding(&self, line: usize, rule: &'static str, reason: impl Into<String>) -> Finding {
        Finding { path: self.path.to_owned(), line, rule, reason: reason.into() }
    }

    fn has_extension(&self, extension: &str) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, found)| found == extension)
    }

    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: [{}] {}", self.path, self.line, self.rule, self.reason)
    }
}

pub(crate) fn run() -> Result<()> {
    let findings = findings()?;
    if findings.is_empty() {
        return Ok(());
    }
    let list: Vec<_> = findings.iter().map(Finding::to_string).collect();
    bail!("{} breaches of the house rules:\n{}", findings.len(), list.join("\n"));
}

fn findings() -> Result<Vec<Finding>> {
    let tree = read_tree()?;
    let members = Workspace::read()?.members;
    let files: Vec<File> = tree.iter().map(|(path, text)| File { path, text }).collect();
    let tests = invariants::all_tests(&tree);
    let mut findings = manifests::arrows(&members);
    findings.extend(compiled_once::all()?);
    findings.extend(circles::all(&files));
    findings.extend(documents::errors(&tree));
    findings.extend(documents::chapters(&tree));
    findings.extend(project::all(&tree));
    findings.extend(random_tests::kept_cases(&tree));

    for file in files {
        findings.extend(documents::machine_paths(&file));
        if file.has_extension("rs") {
            findings.extend(rust_files::all(&file));
            findings.extend(random_tests::numbers_of_cases(&file));
            findings.extend(invariants::foreign_libraries(&file));
            findings.extend(invariants::named_in_head(&file, &tests));
        }
        if file.has_extension("md") {
            findings.extend(documents::links(&file, &tree));
            findings.extend(page_limits::all(&file));
            findings.extend(documents::features(&file, &members));
        }
        if matches!(file.path, "README.md" | "ARCHITECTURE.md") {
            findings.extend(documents::code_map(&file, &tree));
        }
        if file.path == "ARCHITECTURE.md" {
            findings.extend(invariants::named_tests(&file, &tests));
        }
        if file.path == readme_table::PAGE {
            findings.extend(documents::measured_table(&file, &tree));
        }
        if file.path.starts_with("train/runs/configs/") && file.has_extension("json") {
            findings.extend(documents::json_object(&file));
        }
        if members.iter().any(|member| member.manifest == file.path) {
            findings.extend(manifests::inherited_lints(&file));
        }
    }

    Ok(findings)
}

pub(crate) type Tree = BTreeMap<String, String>;

/// Files that git tracks or would track. Other than UTF-8 becomes empty text: links resolve.
pub(crate) fn read_tree() -> Result<Tree> {
    let listing = Invocation::new("git")
        .arguments(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output(workspace::root())
        .context("tidy looks at the files git knows and needs a checkout")?;
    let mut tree = Tree::new();
    for path in listing.split_terminator('\0') {
        match fs::read(workspace::root().join(path)) {
            Ok(bytes) => _ = tree.insert(path.to_owned(), String::from_utf8(bytes).unwrap_or_default()),
            // Deleted, not yet committed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("`{path}` is unreadable")),
        }
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_keeps_its_own_rules() {
        if let Err(error) = run() {
            panic!("{error:#}");
        }
    }

    #[test]
    fn a_finding_names_file_line_rule_and_reason() {
        let finding = File { path: "a/b.rs", text: "" }.finding(3, "header", "why");
        assert_eq!(finding.to_string(), "a/b.rs:3: [header] why");
    }
}
