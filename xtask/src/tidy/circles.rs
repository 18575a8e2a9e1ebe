//! Circles of modules stay within one folder.
//!
//! A module with children belongs to its own folder as well: parent and child may name each other. Paths come from
//! `use` items and code, through re-exports. Tests are left out.

use std::collections::{BTreeMap, BTreeSet};

use super::{File, Finding};

const RULE: &str = "circle";

pub(super) fn all(files: &[File]) -> Vec<Finding> {
    let house = House::new(files);
    let arrows: BTreeMap<&str, BTreeSet<&str>> =
        house.modules.values().map(|path| (*path, house.arrows(path))).collect();
    let crosses = |circle: &Vec<&str>| {
        let mut shared = circle.iter().map(|path| house.folders(path));
        let first = shared.next().unwrap_or_default();
        shared.fold(first, |shared, folders| shared.intersection(&folders).cloned().collect()).is_empty()
    };
    let circles = circles(&arrows).into_iter().filter(crosses);
    circles
        .map(|circle| {
            let reason = format!("these files name each other across folders: {}", circle.join(", "));
            File { path: circle[0], text: "" }.finding(1, RULE, reason)
        })
        .collect()
}

/// A crate's source folder, and a module's path in it.
type Module = (String, Vec<String>);

struct House<'a> {
    modules: BTreeMap<Module, &'a str>,
    names: BTreeMap<&'a str, Module>,
    uses: BTreeMap<&'a str, Vec<Use>>,
    folders: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Use {
    is_published: bool,
    path: Vec<String>,
}

impl<'a> House<'a> {
    fn new(files: &[File<'a>]) -> Self {
        let mut house = Self {
            modules: BTreeMap::new(),
            names: BTreeMap::new(),
            uses: BTreeMap::new(),
            folders: BTreeSet::new(),
        };
        for file in files.iter().filter(|file| file.has_extension("rs")) {
            let Some(module) = module(file.path) else { continue };
            let (folder, _) = file.path.rsplit_once('/').unwrap_or_default();
            house.folders.insert(folder.to_owned());
            house.uses.insert(file.path, uses(file.text));
            house.names.insert(file.path, module.clone());
            house.modules.insert(module, file.path);
        }
        house
    }

    /// Folders that the file may count to.
    fn folders(&self, path: &str) -> BTreeSet<String> {
        let (folder, _) = path.rsplit_once('/').unwrap_or_default();
        let own = path.trim_end_matches(".rs");
        [folder, own].into_iter().filter(|at| self.folders.contains(*at)).map(str::to_owned).collect()
    }

    fn arrows(&self, path: &'a str) -> BTreeSet<&'a str> {
        let (root, module) = &self.names[path];
        let to = |used: &Use| {
            let target = self.resolved(root, module, &used.path, 0)?;
            let is_child = self.names[target].1.starts_with(module);
            (target != path && !(used.is_published && is_child)).then_some(target)
        };
        self.uses[path].iter().filter_map(to).collect()
    }

    /// The file that defines `path`, as seen from `module`.
    fn resolved(&self, root: &str, module: &[String], path: &[String], depth: usize) -> Option<&'a str> {
        let known = |at: &[String]| self.modules.get(&(root.to_owned(), at.to_vec()));
        let mut at = module.to_vec();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => (at, rest) = (Vec::new(), &rest[1..]),
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|word| word == "super") {
                    at.pop()?;
                    rest = &rest[1..];
                }
            }
            child => _ = known(&[&at[..], &[child.to_owned()]].concat())?,
        }
        while let Some(child) = rest.first() {
            let below = [&at[..], std::slice::from_ref(child)].concat();
            if known(&below).is_none() {
                break;
            }
            (at, rest) = (below, &rest[1..]);
        }

        let file = *known(&at)?;
        let Some(item) = rest.first().filter(|_| depth < 4) else { return Some(file) };
        let named = self.uses[file].iter().filter(|used| used.path.last() == Some(item) && used.path != rest);
        let mut defined = named.filter_map(|used| self.resolved(root, &at, &used.path, depth + 1));
        Some(defined.find(|found| *found != file).unwrap_or(file))
    }
}

/// `None` for tests and for programs beside a library.
fn module(path: &str) -> Option<Module> {
    let (root, inner) = path.rsplit_once("/src/")?;
    let mut parts: Vec<String> = inner.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.iter().any(|part| part == "tests" || part == "bin") || inner == "main.rs" {
        return None;
    }
    parts.pop_if(|last| last == "mod" || last == "lib");
    Some((root.to_owned(), parts))
}

fn uses(text: &str) -> Vec<Use> {
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let code = code.join("\n");
    let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut found = Vec::new();
    for statement in code.split(';') {
        let begins = |word: &str| statement.rfind(word).map(|at| (at, &statement[at + word.len()..]));
        let item = [begins("\nuse "), begins("pub use "), begins(") use ")].into_iter().flatten().max();
        let item =
            item.filter(|(_, tree)| tree.chars().all(|c| c.is_alphanumeric() || "_:{},* \n".contains(c)));
        match item {
            Some((at, tree)) => {
                let is_published = !statement[at..].starts_with('\n');
                let tree: String = tree.split_whitespace().collect::<Vec<_>>().join(" ");
                expand(&[], &tree, &mut |path| found.push(Use { is_published, path }));
            }
            None => found.extend(paths_in(statement)),
        }
    }
    found
}

/// Splits `a::{b, c::d}` into paths. A renamed item keeps its first name.
fn expand(before: &[String], tree: &str, found: &mut impl FnMut(Vec<String>)) {
    let words = |text: &str| -> Vec<String> {
        let text = text.split(" as ").next().unwrap_or_default();
        text.split("::").map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let Some((head, group)) = tree.split_once('{') else {
        let path = [before, &words(tree)].concat();
        if !path.is_empty() {
            found(path);
        }
        return;
    };
    let before = [before, &words(head)].concat();
    let group = group.trim_end().strip_suffix('}').unwrap_or(group);
    let (mut depth, mut start) = (0, 0);
    for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&before, &group[start..at], found);
                start = (at + 1).min(group.len());
            }
            _ => {}
        }
    }
}

/// Paths from `crate`, `self` or `super` in code.
fn paths_in(code: &str) -> Vec<Use> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let candidates = code.split(|c: char| !is_part(c)).filter(|word| word.contains("::"));
    let paths = candidates.map(|word| word.split("::").map(str::to_owned).collect::<Vec<_>>());
    let ours = paths.filter(|path| ["crate", "self", "super"].contains(&path[0].as_str()));
    ours.map(|path| Use { is_published: false, path }).collect()
}

/// Files that reach each other.
fn circles<'a>(arrows: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<Vec<&'a str>> {
    let reached = |from: &'a str| {
        let mut reached = BTreeSet::new();
        let mut open = vec![from];
        while let Some(path) = open.pop() {
            open.extend(arrows[path].iter().copied().filter(|next| reached.insert(*next)));
        }
        reached
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> = arrows.keys().map(|path| (*path, reached(path))).collect();
    let circle = |path: &&'a str| -> Vec<&'a str> {
        reached[path].iter().copied().filter(|other| reached[other].contains(path)).collect()
    };
    arrows.keys().map(circle).filter(|circle| circle.len() > 1).collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<File> = files.iter().map(|(path, text)| File { path, text }).collect();
        all(&files).into_iter().map(|finding| finding.reason).collect()
    }

    #[test]
    fn files_of_two_folders_that_name_each_other_are_a_breach_also_through_a_re_export() {
        let house = [
            ("a/src/lib.rs", "mod copies;\nmod link;\n"),
            ("a/src/copies/mod.rs", "mod copy;\npub(crate) use copy::Copy;\n"),
            ("a/src/copies/copy.rs", "\nuse crate::link::{cable::Cable, Speed};\n"),
            ("a/src/link/mod.rs", "pub(crate) mod cable;\npub(crate) struct Speed;\n"),
            ("a/src/link/cable.rs", "fn f(copy: &crate::copies::Copy) {}\n"),
        ];
        let found = breaches(&house);
        assert_eq!(
            found,
            ["these files name each other across folders: a/src/copies/copy.rs, a/src/link/cable.rs"]
        );

        let mut mended = house;
        mended[4].1 = "// crate::copies::Copy\nfn f() {}\n";
        assert_eq!(breaches(&mended), [""; 0]);
    }

    #[test]
    fn a_parent_and_its_children_and_files_of_one_folder_may_name_each_other() {
        let house = [
            ("a/src/lib.rs", "mod copies;\nmod link;\n"),
            ("a/src/copies.rs", "mod copy;\n\nuse copy::Copy;\n"),
            ("a/src/copies/copy.rs", "\nuse super::Copies;\n"),
            ("a/src/link.rs", "\nuse crate::copies::Copies;\n"),
            ("a/src/copies/tests.rs", "\nuse crate::link::Link;\n"),
        ];
        assert_eq!(breaches(&house), [""; 0]);
    }

    #[test]
    fn nested_lists_of_names_are_paths() {
        let mut found = Vec::new();
        expand(&[], "crate::{a::{B, c::D}, e as f}", &mut |path| found.push(path.join("::")));
        assert_eq!(found, ["crate::a::B", "crate::a::c::D", "crate::e"]);
    }
}
