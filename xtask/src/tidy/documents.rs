//! Rules for text that no compiler checks: links resolve, no file names one machine's folders, configurations are JSON
//! objects, and the guide's measurements match their record.

use std::{collections::BTreeMap, path::Path};

use xtask::{readme_table, workspace::Member};

use super::{File, Finding, Tree, fences};
use crate::errors;

const BOOK: &str = "docs/SUMMARY.md";
const GUIDE: &str = "docs/guide/README.md";

/// Records and histories name features of their day.
const DATED: [&str; 3] = ["CHANGELOG.md", "benchmarks/runs/", "docs/LOG.md"];

/// Top level of a machine, never of a checkout.
const MACHINE_FOLDERS: [&str; 4] = ["home", "root", "work", "Users"];

pub(super) fn links(file: &File, tree: &Tree) -> Vec<Finding> {
    let breach = |(number, target): (usize, String)| {
        let reason = dead_end(file, &target, tree)?;
        Some(file.finding(number, "links", format!("`{target}` {reason}")))
    };
    link_targets(file).into_iter().filter_map(breach).collect()
}

/// The book lists all pages, the guide its own.
pub(super) fn chapters(tree: &Tree) -> Vec<Finding> {
    let lists = [(BOOK, "docs/"), (GUIDE, "docs/guide/")];
    lists.into_iter().flat_map(|(list, folder)| unlisted(list, folder, tree)).collect()
}

fn unlisted(path: &str, folder: &str, tree: &Tree) -> Vec<Finding> {
    let list = File { path, text: tree.get(path).map_or("", String::as_str) };
    let listed: Vec<_> =
        link_targets(&list).into_iter().filter_map(|(_, target)| resolve(list.path, &target)).collect();
    let pages = tree.keys().filter(|page| {
        page.starts_with(folder) && File { path: page, text: "" }.has_extension("md") && *page != list.path
    });
    let missing = pages.filter(|page| !listed.contains(page));
    missing.map(|page| list.finding(1, "chapters", format!("lacks {page}"))).collect()
}

/// `--features NAME` of a page names features of members.
pub(super) fn features(file: &File, members: &[Member]) -> Vec<Finding> {
    if DATED.iter().any(|dated| file.path.starts_with(dated)) {
        return Vec::new();
    }
    let exists =
        |name: &str| members.iter().any(|member| member.features.iter().any(|feature| feature == name));
    let ends_list = |c: char| !c.is_ascii_alphanumeric() && !"-_/,".contains(c);
    let breaches = |(number, line): (usize, &str)| {
        let lists = line.split("--features ").skip(1).filter_map(|rest| rest.split(ends_list).next());
        let names = lists.flat_map(|list| list.split(',')).filter_map(|name| name.rsplit('/').next());
        let unknown = names.filter(|name| !name.is_empty() && !exists(name));
        let finding = |name| file.finding(number, "features", format!("no package has the feature `{name}`"));
        unknown.map(finding).collect::<Vec<_>>()
    };
    file.lines().flat_map(breaches).collect()
}

/// The page matches the sources, and each error has a remedy.
pub(super) fn errors(tree: &Tree) -> Vec<Finding> {
    let text = tree.get(errors::PAGE).map_or("", String::as_str);
    let page = File { path: errors::PAGE, text };
    let expected = errors::page(tree.iter().map(|(path, text)| (path.as_str(), text.as_str())), text);
    let differs = (1..).zip(text.lines().chain([""]).zip(expected.lines().chain([""])));
    let stale = differs.filter(|(_, (page, expected))| page != expected).take(1);
    let stale = stale.map(|(n, _)| {
        page.finding(n, "errors", "differs from the sources; `cargo xtask reference` writes it")
    });
    let open = errors::without_remedy(text).into_iter();
    stale.chain(open.map(|(n, error)| page.finding(n, "errors", format!("{error} has no remedy")))).collect()
}

/// Files and folders of the repository that a page links to.
pub(crate) fn linked(path: &str, text: &str) -> Vec<String> {
    let targets = link_targets(&File { path, text }).into_iter().map(|(_, target)| target);
    let inside = targets.filter(|target| !is_foreign(target));
    inside.filter_map(|target| resolve(path, target.split('#').next()?)).collect()
}

/// Rustdoc checks item paths in included pages.
fn is_foreign(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:") || target.contains("::")
}

fn dead_end(file: &File, target: &str, tree: &Tree) -> Option<&'static str> {
    if is_foreign(target) {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let Some(path) = resolve(file.path, path) else { return Some("leads out of the repository") };
    let folder = format!("{path}/");
    if !path.is_empty() && !tree.contains_key(&path) && !tree.keys().any(|known| known.starts_with(&folder)) {
        return Some("leads to no file of the repository");
    }
    let page = tree.get(&path).map(|text| File { path: &path, text })?;
    let misses =
        !anchor.is_empty() && page.has_extension("md") && !anchors(&page).contains(&anchor.to_owned());
    misses.then_some("names no heading of that page")
}

/// From the root, without `.` and `..`. A target that starts with `/` is relative to the root.
fn resolve(from: &str, target: &str) -> Option<String> {
    if target.is_empty() {
        return Some(from.to_owned());
    }
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let start = if target.starts_with('/') { "" } else { folder };
    let mut parts = Vec::new();
    for part in start.split('/').chain(target.split('/')) {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop()?,
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// `[text](target)`, `[label]: target`, and `src` and `href` of HTML, outside of code.
fn link_targets(file: &File) -> Vec<(usize, String)> {
    let mut targets = Vec::new();
    for (number, line) in fences::blanked(file.lines()) {
        let line: String = line.split('`').step_by(2).collect();
        let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
        let reference = line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        let reference = reference.and_then(|(_, rest)| rest.split_whitespace().next());
        let attributes = ["src=\"", "href=\""].into_iter().flat_map(|name| line.split(name).skip(1));
        let html = attributes.filter_map(|rest| rest.split('"').next());
        let found = inline.chain(reference).chain(html).map(|target| target.trim_matches(['<', '>']));
        targets.extend(found.filter(|target| !target.is_empty()).map(|target| (number, target.to_owned())));
    }
    targets
}

pub(super) fn code_map(file: &File, tree: &Tree) -> Vec<Finding> {
    let exists = |name: &str| tree.keys().any(|path| path == name || path.ends_with(&format!("/{name}")));
    let is_path = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let is_rust =
        |code: &&str| Path::new(code).extension() == Some("rs".as_ref()) && code.chars().all(is_path);
    let breaches = |(number, line): (usize, &str)| {
        let named = line.split('`').skip(1).step_by(2).filter(is_rust).filter(|name| !exists(name));
        let finding =
            |name| file.finding(number, "code-map", format!("there is no `{name}` in the repository"));
        named.map(finding).collect::<Vec<_>>()
    };
    file.lines().flat_map(breaches).collect()
}

/// Heading anchors, as GitHub derives them.
fn anchors(page: &File) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = Vec::new();
    for (_, line) in fences::blanked(page.lines()) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let anchor = title.trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-");
        let earlier = seen.entry(anchor.clone()).or_default();
        anchors.push(if *earlier == 0 { anchor } else { format!("{anchor}-{earlier}") });
        *earlier += 1;
    }
    anchors
}

pub(super) fn machine_paths(file: &File) -> Vec<Finding> {
    let breach = |(number, line): (usize, &str)| {
        let folder = MACHINE_FOLDERS.iter().find(|folder| names_root_folder(line, folder))?;
        let reason = format!("names the folder /{folder} of one machine; say it relative to the repository");
        Some(file.finding(number, "machine-path", reason))
    };
    file.lines().filter_map(breach).collect()
}

/// `/name/` at a path's start, not within a path or address.
fn names_root_folder(line: &str, name: &str) -> bool {
    let path = format!("/{name}/");
    let inside_a_path = |c: char| c.is_alphanumeric() || "._-~*})]>".contains(c);
    line.match_indices(&path).any(|(at, _)| !line[..at].ends_with(inside_a_path))
}

pub(super) fn measured_table(file: &File, tree: &Tree) -> Option<Finding> {
    let fault = readme_table::fault(file.text, |path| tree.get(path).map(String::as_str));
    fault.map(|(line, reason)| file.finding(line, "bench-vram", reason))
}

pub(super) fn json_object(file: &File) -> Option<Finding> {
    match serde_json::from_str::<serde_json::Value>(file.text) {
        Ok(value) if value.is_object() => None,
        Ok(_) => Some(file.finding(1, "config", "a configuration is a JSON object")),
        Err(error) => Some(file.finding(error.line(), "config", format!("is no JSON: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask::{invocation::Invocation, workspace};

    fn broken_links(path: &str, text: &str) -> Vec<usize> {
        let known =
            [("README.md", "# Spillway\n\n## What does *not* fit\n\n## Run\n## Run\n"), ("docs/LOG.md", "")];
        let tree = known.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        links(&File { path, text }, &tree).into_iter().map(|finding| finding.line).collect()
    }

    const NONE: [usize; 0] = [];

    #[test]
    fn links_to_files_folders_and_the_outside_pass() {
        let text =
            "[a](docs/LOG.md) [b](docs) ![c](./README.md \"title\")\n[d](https://x.y/z)\n[e]: docs/LOG.md\n";
        assert_eq!(broken_links("README.md", text), NONE);
        assert_eq!(broken_links("docs/LOG.md", "[up](../README.md) [root](/docs/LOG.md)"), NONE);
    }

    #[test]
    fn dead_links_are_found_with_their_line() {
        assert_eq!(broken_links("README.md", "fine\n[a](docs/NONE.md)\n[b]: gone.md\n"), [2, 3]);
        assert_eq!(broken_links("README.md", "[out](../elsewhere.md)"), [1]);
        assert_eq!(broken_links("docs/LOG.md", "[not from here](docs/LOG.md)"), [1]);
    }

    #[test]
    fn anchors_must_name_a_heading() {
        assert_eq!(
            broken_links("docs/LOG.md", "[a](../README.md#what-does-not-fit) [b](../README.md#run-1)"),
            NONE
        );
        assert_eq!(broken_links("README.md", "[a](#run)\n[b](#walk)\n[c](#run-2)"), [2, 3]);
    }

    #[test]
    fn sources_and_links_of_html_lead_somewhere() {
        let text = "<img src=\"docs/LOG.md\"> <a href=\"https://x.y\">b</a> `<img src=\"gone.svg\">`\n\
                    <a href=\"#walk\"><img alt=\"c\" src=\"docs/none.svg\"></a>\n";
        assert_eq!(broken_links("README.md", text), [2, 2]);
    }

    #[test]
    fn links_in_code_are_ignored() {
        assert_eq!(broken_links("README.md", "`[a](none.md)`\n```md\n[b](none.md)\n```\n"), NONE);
    }

    #[test]
    fn a_code_map_names_files_that_exist() {
        let tree = Tree::from([("models/src/gpt.rs".to_owned(), String::new())]);
        let check = |text| code_map(&File { path: "ARCHITECTURE.md", text }, &tree).len();
        assert_eq!(
            check("`gpt.rs`, `src/gpt.rs` and `models/src/gpt.rs`; any `.rs` and `{a,b}.rs`; gone.rs"),
            0
        );
        assert_eq!(check("`t.rs` and `models/gpt.rs`"), 2);
    }

    fn names_a_machine(text: &str) -> bool {
        !machine_paths(&File { path: "a.md", text }).is_empty()
    }

    #[test]
    fn folders_of_one_machine_are_found_wherever_a_path_starts() {
        for folder in MACHINE_FOLDERS {
            assert!(names_a_machine(&format!("see /{folder}/notes")), "{folder}");
            assert!(names_a_machine(&format!("PATH=\"/{folder}/bin\" file:///{folder}/x")), "{folder}");
        }
    }

    #[test]
    fn parts_of_relative_paths_and_addresses_name_no_machine() {
        for folder in MACHINE_FOLDERS {
            for before in ["target/", "../", "https://example.org/", "$ROOT/", ""] {
                let text = format!("{before}{folder}/x");
                assert!(!names_a_machine(&text), "{text}");
            }
        }
        assert!(!names_a_machine("homework"));
    }

    #[test]
    fn configurations_are_json_objects() {
        let check =
            |text| json_object(&File { path: "train/runs/configs/a.json", text }).map(|finding| finding.line);
        assert_eq!(check("{\"steps\": 1}"), None);
        assert_eq!(check("[1]"), Some(1));
        assert_eq!(check("{\n\"steps\": ,\n}"), Some(2));
    }

    #[test]
    fn a_page_that_the_book_or_the_guide_lacks_is_named() {
        let pages = [
            ("docs/SUMMARY.md", "[guide](guide/README.md) [a](guide/a.md)"),
            ("docs/guide/README.md", "[b](b.md)"),
            ("docs/guide/a.md", ""),
            ("docs/guide/b.md", ""),
            ("docs/reference/README.md", ""),
            ("b.md", ""),
        ];
        let tree: Tree = pages.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        let found = chapters(&tree).into_iter().map(|finding| format!("{} {}", finding.path, finding.reason));
        let expected = [
            "docs/SUMMARY.md lacks docs/guide/b.md",
            "docs/SUMMARY.md lacks docs/reference/README.md",
            "docs/guide/README.md lacks docs/guide/a.md",
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_feature_that_no_package_has_is_named() {
        let features = vec!["cuda".to_owned(), "parquet-zstd".to_owned()];
        let members = [Member { features, ..Member::default() }];
        let named = |path, text| super::features(&File { path, text }, &members).len();
        let known = "`--features train/cuda,parquet-zstd` or --features cuda, vulkan";
        assert_eq!(named("a.md", known), 0);
        assert_eq!(named("a.md", "fine\nbuild with `--features parquet`."), 1);
        assert_eq!(named("docs/LOG.md", "built with `--features parquet`"), 0);
    }

    mod full {
        use super::*;

        #[test]
        #[ignore = "full: mdbook builds the guide"]
        fn the_guide_is_built_as_a_book() {
            let found = Invocation::new("mdbook").arguments(["--version"]).output(workspace::root());
            if suite::Need::MdBook.found(found).is_none() {
                return;
            }
            let built = Invocation::new("mdbook")
                .arguments(["build", "docs"])
                .command(workspace::root())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&built.stderr);
            assert!(built.status.success() && !said.contains("ERROR"), "{said}");
            assert!(workspace::root().join("target/book/guide/install.html").is_file());
        }
    }
}
