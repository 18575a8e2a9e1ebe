//! Rules for random tests: proptest reads each case that it kept, and `suite` says how many cases run.

use super::{File, Finding, Tree};

const KEPT: &str = "/proptest-regressions/";
const ROOTS: [&str; 2] = ["lib.rs", "main.rs"];

/// Proptest keeps failures beside the folder of the nearest `lib.rs` or `main.rs`: for `a/src/b.rs` in
/// `a/proptest-regressions/b.txt`, for `a/tests/it/b.rs` in `a/tests/proptest-regressions/b.txt`.
pub(super) fn kept_cases(tree: &Tree) -> Vec<Finding> {
    let is_root = |folder: &str| ROOTS.iter().any(|name| tree.contains_key(&format!("{folder}/{name}")));
    let breach = |path: &String| {
        let (beside, case) = path.split_once(KEPT)?;
        let source = format!("/{}.rs", case.strip_suffix(".txt")?);
        let roots = tree.keys().filter_map(|path| path.strip_suffix(source.as_str()));
        let mut roots = roots.filter(|root| root.rsplit_once('/').is_some_and(|(above, _)| above == beside));
        let reason = format!("proptest reads it for `{beside}/*{source}`, which is gone: move it along");
        (!roots.any(is_root)).then(|| File { path, text: "" }.finding(1, "kept-case", reason))
    };
    tree.keys().filter_map(breach).collect()
}

/// Without `suite`, the full suite draws as few cases as the quick one. `PROPTEST_CASES` cannot help: it replaces the
/// numbers of all tests.
pub(super) fn numbers_of_cases(file: &File) -> Vec<Finding> {
    let lines: Vec<&str> = file.text.lines().collect();
    let breach = |(index, line): (usize, &&str)| {
        let opens = line.trim_start().starts_with("proptest!");
        let asks = lines[index..].iter().take(2).any(|line| line.contains("suite::"));
        let reason = "a random test takes its number of cases from `suite::cases` or `suite::size`";
        (opens && !asks).then(|| file.finding(index + 1, "cases", reason))
    };
    lines.iter().enumerate().filter_map(breach).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_case_whose_source_has_moved_is_found() {
        let found = |paths: &[&str]| {
            let tree = paths.iter().map(|path| ((*path).to_owned(), String::new())).collect();
            kept_cases(&tree).into_iter().map(|finding| finding.path).collect::<Vec<_>>()
        };
        let unit = "a/proptest-regressions/b/tests.txt";
        assert_eq!(found(&[unit, "a/src/lib.rs", "a/src/b/tests.rs"]), [""; 0]);
        assert_eq!(found(&[unit, "a/src/lib.rs", "a/src/c/tests.rs"]), [unit]);
        assert_eq!(found(&[unit, "a/src/lib.rs", "a/src/b/b/tests.rs"]), [unit]);
        assert_eq!(found(&[unit, "a/src/lib.rs", "a/tests/b/tests.rs"]), [unit], "it has no root");
        let integration = "a/tests/proptest-regressions/b.txt";
        assert_eq!(found(&[integration, "a/tests/it/main.rs", "a/tests/it/b.rs"]), [""; 0]);
        let beside_tests = "a/proptest-regressions/b.txt";
        assert_eq!(found(&[beside_tests, "a/tests/it/main.rs", "a/tests/it/b.rs"]), [beside_tests]);
    }

    #[test]
    fn a_random_test_without_a_number_of_cases_from_the_suite_is_found() {
        let found = |text| {
            let findings = numbers_of_cases(&File { path: "a/src/a.rs", text });
            findings.into_iter().map(|finding| finding.line).collect::<Vec<_>>()
        };
        assert_eq!(found("proptest! {\n    #![proptest_config(with_cases(suite::cases(4)))]\n"), [0; 0]);
        assert_eq!(found("//! A.\nproptest! {\n    #[test]\n    fn a(b in suite::c()) {}\n}\n"), [2]);
        assert_eq!(found("    proptest!(with_cases(suite::cases(4)), |(a in 0..1)| {"), [0; 0]);
        assert_eq!(found("\n    proptest!(|(a in 0..1)| {"), [2]);
    }
}
