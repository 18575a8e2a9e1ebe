//! Rules that keep ARCHITECTURE.md true: an invariant names the tests that hold it, and the doors keep their
//! libraries to themselves.

use std::collections::{BTreeMap, BTreeSet};

use super::{File, Finding};

const NAMED: &str = "invariant-names-its-test";
const HOMES: &str = "library-stays-in-its-room";

/// Every invariant names at least one test, and every test it names is there.
pub(super) fn named_tests(architecture: &File, tree: &BTreeMap<String, String>) -> Vec<Finding> {
    let functions = functions(tree);
    let section = architecture.lines().skip_while(|(_, line)| *line != "## Invariants").skip(1);
    let section: Vec<_> = section.take_while(|(_, line)| !line.starts_with("## ")).collect();
    let mut findings = Vec::new();
    for paragraph in section.split(|(_, line)| line.is_empty()).filter(|lines| !lines.is_empty()) {
        let (number, _) = paragraph[0];
        let text = paragraph.iter().map(|(_, line)| *line).collect::<Vec<_>>().join(" ");
        let names = test_names(&text);
        if names.is_empty() {
            findings.push(architecture.finding(number, NAMED, "this invariant names no test that holds it"));
        }
        for name in names.into_iter().filter(|name| !functions.contains(name)) {
            findings.push(architecture.finding(number, NAMED, format!("there is no test `{name}`")));
        }
    }
    findings
}

/// Code in backticks that is written as names of tests are: many words, no path.
fn test_names(text: &str) -> Vec<&str> {
    let code = text.split('`').skip(1).step_by(2);
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    code.filter(|code| code.matches('_').count() >= 3 && code.chars().all(is_word)).collect()
}

fn functions(tree: &BTreeMap<String, String>) -> BTreeSet<&str> {
    let sources = tree.iter().filter(|(path, text)| File { path, text }.has_extension("rs"));
    let after_fn = sources.flat_map(|(_, text)| text.split("fn ").skip(1));
    after_fn.filter_map(|rest| rest.split(['(', '<']).next()).collect()
}

/// A door's library is named in the door's folder and nowhere else in the crate that spills.
pub(super) fn homes(file: &File) -> Vec<Finding> {
    let Some(path) = file.path.strip_prefix("backend-offload/src/") else { return Vec::new() };
    let guests = [
        ("cubecl_", "cube/"),
        ("burn_cubecl", "cube/"),
        ("burn_fusion", "cube/"),
        ("burn_router", "router/"),
    ];
    let strangers: Vec<_> = guests.into_iter().filter(|(_, home)| !path.starts_with(home)).collect();
    let mut findings = Vec::new();
    for (number, line) in file.lines().filter(|(_, line)| !line.trim_start().starts_with("//")) {
        for (library, home) in strangers.iter().filter(|(library, _)| line.contains(library)) {
            let reason = format!("`{library}` is named outside backend-offload/src/{home}");
            findings.push(file.finding(number, HOMES, reason));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Vec<String> {
        let source = "#[test]\nfn a_budget_changes_no_number() {}".to_owned();
        let tree = BTreeMap::from([("models/tests/it/main.rs".to_owned(), source)]);
        let file = File { path: "ARCHITECTURE.md", text };
        named_tests(&file, &tree)
            .iter()
            .map(|finding| format!("{}: {}", finding.line, finding.reason))
            .collect()
    }

    #[test]
    fn an_invariant_without_a_test_is_found_and_so_is_a_test_that_is_gone() {
        let text = "# A\n\nNo rule here.\n\n## Invariants\n\n**One.** Held.\n(`a_budget_changes_no_number`)\n\n\
                    **Two.** `Pager::begin` and `device_budget` are no tests.\n\n**Three.** (`a_test_that_is_gone`)\n\n## B\n\nX.";
        let found = checked(text);
        assert_eq!(
            found,
            ["10: this invariant names no test that holds it", "12: there is no test `a_test_that_is_gone`",]
        );
    }

    #[test]
    fn a_library_outside_its_room_is_found() {
        let found = |path, text| homes(&File { path, text }).len();
        assert_eq!(found("backend-offload/src/drive.rs", "use cubecl_core::Runtime;"), 1);
        assert_eq!(found("backend-offload/src/cube/io.rs", "use cubecl_core::Runtime;"), 0);
        assert_eq!(found("backend-offload/src/cube/io.rs", "use burn_router::Runner;"), 1);
        assert_eq!(found("backend-offload/src/drive.rs", "// unlike cubecl_core"), 0);
        assert_eq!(found("train/src/main.rs", "use cubecl_core::Runtime;"), 0);
    }
}
