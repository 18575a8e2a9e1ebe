//! Rules for promises: tests named by ARCHITECTURE.md and heads of Rust files exist; only its adapter uses an adapter's
//! library.

use std::collections::{BTreeMap, BTreeSet};

use super::{File, Finding, fences, rust_files};

const NAMED: &str = "invariant-names-its-test";
const NAMED_IN_HEAD: &str = "head-names-its-test";
const FOREIGN: &str = "library-stays-in-its-adapter";

/// Every invariant names an existing test.
pub(super) fn named_tests(architecture: &File, tests: &BTreeSet<&str>) -> Vec<Finding> {
    let section = architecture.lines().skip_while(|(_, line)| *line != "## Invariants").skip(1);
    let section: Vec<_> = section.take_while(|(_, line)| !line.starts_with("## ")).collect();
    let mut findings = Vec::new();
    for paragraph in section.split(|(_, line)| line.is_empty()).filter(|lines| !lines.is_empty()) {
        let (number, _) = paragraph[0];
        let text = joined(paragraph);
        let names = test_names(&text);
        if names.is_empty() {
            findings.push(architecture.finding(number, NAMED, "this invariant names no test that holds it"));
        }
        for name in names.into_iter().filter(|name| !tests.contains(name)) {
            findings.push(architecture.finding(number, NAMED, format!("there is no test `{name}`")));
        }
    }
    findings
}

/// Tests named in parentheses exist.
pub(super) fn named_in_head(file: &File, tests: &BTreeSet<&str>) -> Vec<Finding> {
    let head = file.lines().map_while(|(number, line)| Some((number, line.strip_prefix("//!")?.trim())));
    let head: Vec<_> = fences::blanked(head).collect();

    let mut findings = Vec::new();
    for paragraph in head.split(|(_, line)| line.is_empty()).filter(|lines| !lines.is_empty()) {
        let (number, _) = paragraph[0];
        let text = joined(paragraph);
        for name in test_names_in_parentheses(&text).into_iter().filter(|name| !tests.contains(name)) {
            findings.push(file.finding(number, NAMED_IN_HEAD, format!("there is no test `{name}`")));
        }
    }
    findings
}

fn joined(lines: &[(usize, &str)]) -> String {
    lines.iter().map(|(_, line)| *line).collect::<Vec<_>>().join(" ")
}

/// Many words, no path.
fn is_test_name(code: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    code.matches('_').count() >= 3 && code.chars().all(is_word)
}

fn test_names(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).filter(|code| is_test_name(code)).collect()
}

/// Parentheses in code do not count.
fn test_names_in_parentheses(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let mut names = Vec::new();
    for (index, part) in text.split('`').enumerate() {
        let is_code = index % 2 == 1;
        if is_code && depth > 0 && is_test_name(part) {
            names.push(part);
        }
        for character in part.chars().filter(|_| !is_code) {
            match character {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
    }
    names
}

/// Includes those of the macro `promises!`.
pub(super) fn all_tests(tree: &BTreeMap<String, String>) -> BTreeSet<&str> {
    let sources = tree.iter().filter(|(path, text)| File { path, text }.has_extension("rs"));
    let texts = sources.map(|(_, text)| text.as_str());
    texts.flat_map(|text| rust_files::tests_in(text).map(|(_, name)| name).chain(promised(text))).collect()
}

/// A call of `promises!` ends with a brace at the beginning of a line.
fn promised(text: &str) -> impl Iterator<Item = &str> {
    let calls = text.split("\npromises! {\n").skip(1).filter_map(|rest| rest.split("\n}").next());
    let words = calls.flat_map(|call| call.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    words.filter(|word| is_test_name(word))
}

/// In `backend-offload`, only an adapter's folder names its library.
pub(super) fn foreign_libraries(file: &File) -> Vec<Finding> {
    let Some(path) = file.path.strip_prefix("backend-offload/src/") else { return Vec::new() };
    let adapters = [
        ("cubecl_", "cubecl/"),
        ("burn_cubecl", "cubecl/"),
        ("burn_fusion", "cubecl/"),
        ("burn_router", "flex/"),
    ];
    let foreign: Vec<_> = adapters.into_iter().filter(|(_, home)| !path.starts_with(home)).collect();
    let mut findings = Vec::new();
    for (number, line) in file.lines().filter(|(_, line)| !line.trim_start().starts_with("//")) {
        for (library, home) in foreign.iter().filter(|(library, _)| line.contains(library)) {
            let reason = format!("`{library}` is named outside backend-offload/src/{home}");
            findings.push(file.finding(number, FOREIGN, reason));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> BTreeMap<String, String> {
        let functions = "#[test]\nfn a_budget_changes_no_number() {}\n\nfn a_helper_of_many_words() {}\n";
        let calls = "//! A.\n\npromises! {\n    full {\n        a_promise_on_every_runtime,\n    }\n}\n";
        BTreeMap::from([("a.rs".to_owned(), functions.to_owned()), ("b.rs".to_owned(), calls.to_owned())])
    }

    fn checked(text: &str) -> Vec<String> {
        let (tree, file) = (tree(), File { path: "ARCHITECTURE.md", text });
        named_tests(&file, &all_tests(&tree))
            .iter()
            .map(|finding| format!("{}: {}", finding.line, finding.reason))
            .collect()
    }

    #[test]
    fn an_invariant_without_a_test_or_with_a_missing_one_is_found() {
        let text = "# A\n\nNo rule here.\n\n## Invariants\n\n**One.** Held.\n(`a_budget_changes_no_number`)\n\n\
                    **Two.** `Pager::begin` and `device_budget` are no tests.\n\n**Three.** (`a_test_that_is_gone`)\n\n## B\n\nX.";
        let found = checked(text);
        assert_eq!(
            found,
            ["10: this invariant names no test that holds it", "12: there is no test `a_test_that_is_gone`",]
        );
    }

    #[test]
    fn a_missing_test_in_parentheses_of_a_head_is_found() {
        let tree = tree();
        let lines = |text: &str| -> Vec<usize> {
            let findings = named_in_head(&File { path: "a/src/a.rs", text }, &all_tests(&tree));
            findings.into_iter().map(|finding| finding.line).collect()
        };
        let none: [usize; 0] = [];
        assert_eq!(lines("//! A (`a_budget_changes_no_number`).\n//!\n//! B (`max_bytes`).\n"), none);
        assert_eq!(lines("//! A.\n//!\n//! B (as `f(x)`, then\n//! `a_test_that_is_gone`).\n"), [3]);
        assert_eq!(lines("//! A (`a_promise_on_every_runtime`).\n"), none);
        assert_eq!(lines("//! A (`a_helper_of_many_words`).\n"), [1], "it is no test");
        assert_eq!(lines("//! A (b) `a_test_that_is_gone`.\n"), none, "it is outside");
        assert_eq!(lines("//! ```\n//! (`a_test_that_is_gone`)\n//! ```\n"), none, "it is an example");
        assert_eq!(lines("//! A.\n\n/// (`a_test_that_is_gone`)\nfn f() {}\n"), none, "it is no head");
    }

    #[test]
    fn a_library_outside_its_adapter_is_found() {
        let found = |path, text| foreign_libraries(&File { path, text }).len();
        assert_eq!(found("backend-offload/src/paging/mod.rs", "use cubecl_core::Runtime;"), 1);
        assert_eq!(found("backend-offload/src/cubecl/io.rs", "use cubecl_core::Runtime;"), 0);
        assert_eq!(found("backend-offload/src/cubecl/io.rs", "use burn_router::Runner;"), 1);
        assert_eq!(found("backend-offload/src/paging/mod.rs", "// unlike cubecl_core"), 0);
        assert_eq!(found("train/src/main.rs", "use cubecl_core::Runtime;"), 0);
    }
}
