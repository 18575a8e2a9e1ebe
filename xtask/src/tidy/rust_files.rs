//! Rules for Rust files: header, length, names of files, modules and tests, muted lints, one path per item.

use std::path::Path;

use super::{File, Finding};

const LONGEST_SOURCE: usize = 500;
const LONGEST_TEST: usize = 800;

const NAMES_WITHOUT_MEANING: [&str; 6] = ["utils", "helpers", "common", "base", "manager", "misc"];

/// Beginnings that postpone a test's subject.
const LATE_SUBJECTS: [&str; 4] = ["of_", "that_", "those_", "there_"];

/// Folders of types with a purpose, not records of a report or a configuration.
const FEW_FIELDS: [&str; 8] = [
    "backend-offload/pager/src/",
    "backend-offload/src/cubecl/",
    "backend-offload/src/flex/",
    "backend-offload/src/paging/",
    "backend-offload/src/tiers/",
    "train/src/optimizer/",
    "train/src/ranks/",
    "train/src/training/",
];
const MOST_FIELDS: usize = 10;

pub(super) fn all(file: &File) -> Vec<Finding> {
    let findings = [header(file), length(file), file_name(file)].into_iter().flatten();
    let findings = findings.chain(module_names(file)).chain(test_names(file));
    let findings = findings.chain(muted_lints(file)).chain(second_paths(file));
    findings.chain(many_fields(file)).collect()
}

fn header(file: &File) -> Option<Finding> {
    let first = file.text.lines().next().unwrap_or_default();
    let says_something = first.strip_prefix("//!").is_some_and(|rest| !rest.trim().is_empty());
    (!says_something).then(|| {
        file.finding(1, "header", "a file opens with `//!` and says what it is for before anything else")
    })
}

fn length(file: &File) -> Option<Finding> {
    let path = Path::new(file.path);
    let is_test = path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs");
    let limit = if is_test { LONGEST_TEST } else { LONGEST_SOURCE };
    let lines = file.text.lines().count();
    (lines > limit).then(|| {
        file.finding(limit + 1, "length", format!("{lines} lines, more than {limit}: split it by concept"))
    })
}

fn file_name(file: &File) -> Option<Finding> {
    let stem = file.path.strip_suffix(".rs").unwrap_or(file.path);
    let name = stem.split('/').find(|part| NAMES_WITHOUT_MEANING.contains(part))?;
    Some(file.finding(1, "name", format!("`{name}` says nothing: name the concept the code is about")))
}

fn module_names(file: &File) -> Vec<Finding> {
    let breach = |(number, line): (usize, &str)| {
        let name = declared_module(line).filter(|name| NAMES_WITHOUT_MEANING.contains(name))?;
        Some(file.finding(number, "name", format!("`mod {name}` says nothing: name the concept")))
    };
    file.lines().filter_map(breach).collect()
}

fn declared_module(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    (words.next()? == "mod").then(|| words.next())?.map(|name| name.trim_end_matches([';', '{']))
}

fn test_names(file: &File) -> Vec<Finding> {
    let breach = |(number, name): (usize, &str)| {
        let word = LATE_SUBJECTS.into_iter().find(|word| name.starts_with(word))?;
        let reason =
            format!("a test's name opens with its subject, not with `{word}`: say what keeps the promise");
        Some(file.finding(number, "test-name", reason))
    };
    tests_in(file.text).filter_map(breach).collect()
}

pub(super) fn tests_in(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_test = false;
    (1..).zip(text.lines()).filter_map(move |(number, line)| {
        let line = line.trim_start();
        is_test |= line == "#[test]" || line.starts_with("#[tokio::test");
        let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?;
        let name = function.split(['(', '<']).next()?;
        std::mem::take(&mut is_test).then_some((number, name))
    })
}

fn muted_lints(file: &File) -> Vec<Finding> {
    let lines: Vec<&str> = file.text.lines().collect();
    let breach = |(index, line): (usize, &&str)| {
        let line = line.trim_start();
        if !line.starts_with("#[") && !line.starts_with("#![") {
            return None;
        }
        let attribute = attribute_from(&lines[index..]);
        let reason = if mentions(&attribute, "allow(") {
            "`#[allow]` outlives its cause: use `#[expect(.., reason = \"..\")]`"
        } else if mentions(&attribute, "expect(") && !attribute.contains("reason") {
            "an expected lint needs `reason = \"..\"`"
        } else {
            return None;
        };
        Some(file.finding(index + 1, "muted-lint", reason))
    };
    lines.iter().enumerate().filter_map(breach).collect()
}

/// Re-exports from public modules give items two paths.
fn second_paths(file: &File) -> Vec<Finding> {
    let published: Vec<&str> = file
        .lines()
        .filter(|(_, line)| line.starts_with("pub mod "))
        .filter_map(|(_, line)| declared_module(line))
        .collect();
    let breach = |(number, line): (usize, &str)| {
        let (module, _) = line.strip_prefix("pub use ")?.split_once("::")?;
        published.contains(&module).then(|| {
            let reason = format!("`{module}` is public and so are items from it: make one of them private");
            file.finding(number, "second-path", reason)
        })
    };
    file.lines().filter_map(breach).collect()
}

/// A formatted struct has one field a line and ends with a brace at its own depth.
fn many_fields(file: &File) -> Vec<Finding> {
    let is_test = file.path.contains("/tests/");
    if is_test || !FEW_FIELDS.iter().any(|folder| file.path.starts_with(folder)) {
        return Vec::new();
    }
    let is_field = |line: &str| {
        let line = line.trim_start();
        let private = line.strip_prefix("pub").map(|rest| rest.split_once(' ').map_or("", |(_, rest)| rest));
        let is_name =
            |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        private.unwrap_or(line).split_once(": ").is_some_and(|(name, _)| !name.is_empty() && is_name(name))
    };
    let breach = |(number, line): (usize, &str)| {
        let opens = line.ends_with(" {") && line.split_whitespace().take(3).any(|word| word == "struct");
        let end = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
        let fields = || file.lines().skip(number).take_while(|(_, line)| *line != end);
        let count = if opens { fields().filter(|(_, line)| is_field(line)).count() } else { 0 };
        (count > MOST_FIELDS).then(|| {
            let reason = format!("{count} fields, more than {MOST_FIELDS}: group those that change together");
            file.finding(number, "fields", reason)
        })
    };
    file.lines().filter_map(breach).collect()
}

/// It may span lines.
fn attribute_from(lines: &[&str]) -> String {
    let mut depth = 0_i32;
    let mut attribute = String::new();
    for character in lines.iter().flat_map(|line| line.chars()) {
        attribute.push(character);
        depth += i32::from(character == '[') - i32::from(character == ']');
        if character == ']' && depth == 0 {
            break;
        }
    }
    attribute
}

fn mentions(attribute: &str, call: &str) -> bool {
    let starts_a_word = |at: usize| !attribute[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    attribute.match_indices(call).any(|(at, _)| starts_a_word(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_struct_of_eleven_fields_in_the_pager_is_a_breach_and_ten_are_none() {
        let text = |fields: usize| {
            let fields = (0..fields).map(|n| format!("    /// A use: of it.\n    pub(crate) f{n}: u64,\n"));
            let fields = fields.collect::<Vec<_>>().concat();
            format!(
                "//! A head.\n\npub(crate) struct Many {{\n{fields}}}\n\nstruct Few {{\n    one: u8,\n}}\n"
            )
        };
        let found = |path: &str, fields: usize| {
            let text = text(fields);
            many_fields(&File { path, text: &text })
                .into_iter()
                .map(|finding| finding.line)
                .collect::<Vec<_>>()
        };
        assert_eq!(found("backend-offload/pager/src/a.rs", 11), [3]);
        assert_eq!(found("backend-offload/pager/src/a.rs", 10), [0; 0]);
        assert_eq!(found("train/src/plan/a.rs", 11), [0; 0]);
    }

    fn rules_broken(path: &str, text: &str) -> Vec<(&'static str, usize)> {
        all(&File { path, text }).into_iter().map(|finding| (finding.rule, finding.line)).collect()
    }

    #[test]
    fn a_file_with_a_header_and_a_name_passes() {
        assert_eq!(rules_broken("a/src/pager.rs", "//! Decides who leaves.\nmod ledger;\n"), []);
    }

    #[test]
    fn a_file_must_open_with_a_header_that_says_something() {
        for text in ["", "use std::fs;\n", "// plain\n", "//!\n//! too late\n"] {
            assert_eq!(rules_broken("a/src/pager.rs", text), [("header", 1)], "{text:?}");
        }
    }

    #[test]
    fn a_public_item_has_one_path() {
        let two =
            "//! The door.\npub mod ledger;\nmod block;\npub use block::Block;\npub use ledger::Ledger;\n";
        assert_eq!(rules_broken("a/src/lib.rs", two), [("second-path", 5)]);
        let one = two.replace("pub mod", "mod");
        assert_eq!(rules_broken("a/src/lib.rs", &one), []);
    }

    #[test]
    fn tests_may_be_longer_than_sources() {
        let lines = |count: usize| "//! Long.\n".repeat(count);
        assert_eq!(rules_broken("a/src/pager.rs", &lines(500)), []);
        assert_eq!(rules_broken("a/src/pager.rs", &lines(501)), [("length", 501)]);
        for path in ["a/tests/it/pager.rs", "a/src/pager/tests.rs"] {
            assert_eq!(rules_broken(path, &lines(800)), []);
            assert_eq!(rules_broken(path, &lines(801)), [("length", 801)]);
        }
    }

    #[test]
    fn meaningless_names_are_refused_for_files_folders_and_modules() {
        assert_eq!(rules_broken("a/src/utils.rs", "//! A.\n"), [("name", 1)]);
        assert_eq!(rules_broken("a/tests/common/mod.rs", "//! A.\n"), [("name", 1)]);
        assert_eq!(rules_broken("a/src/a.rs", "//! A.\npub(crate) mod helpers {\n}\nmod misc;\n").len(), 2);
        assert_eq!(rules_broken("a/src/database.rs", "//! A.\nmod baseline;\n"), []);
    }

    #[test]
    fn a_tests_name_opens_with_its_subject() {
        let named = |attribute: &str, name: &str| {
            rules_broken("a/src/a.rs", &format!("//! A.\n{attribute}\n#[cfg(unix)]\n{name}() {{}}\n"))
        };
        for name in ["of_two_blocks_one_leaves", "that_it_leaves", "those_leave", "there_is_room"] {
            let (function, sleeps) = (format!("fn {name}"), format!("async fn {name}"));
            assert_eq!(named("    #[test]", &function), [("test-name", 4)], "{name}");
            assert_eq!(named("#[tokio::test(start_paused = true)]", &sleeps), [("test-name", 4)], "{name}");
            assert_eq!(named("#[inline]", &function), [], "{name}");
        }
        assert_eq!(named("#[test]", "fn offers_are_taken"), []);
    }

    #[test]
    fn lints_are_never_allowed_only_expected_with_a_reason() {
        let broken =
            |attribute: &str| rules_broken("a/src/a.rs", &format!("//! A.\n{attribute}\nfn f() {{}}\n"));
        for attribute in [
            "#[allow(dead_code)]",
            "#![allow(dead_code)]",
            "#[cfg_attr(test, allow(dead_code))]",
            "#[expect(dead_code)]",
        ] {
            assert_eq!(broken(attribute), [("muted-lint", 2)], "{attribute}");
        }
        assert_eq!(broken("#[expect(dead_code, reason = \"kept for the door\")]"), []);
        assert_eq!(broken("#[expect(\n    dead_code,\n    reason = \"kept\"\n)]"), []);
        assert_eq!(broken("#[disallow(x)]"), []);
    }
}
