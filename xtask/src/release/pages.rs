//! Files of the archive beside the programs: licences, the guide, and all that its pages link to.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use xtask::{invocation::Invocation, workspace};

use crate::tidy;

const FIRST: [&str; 5] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "CHANGELOG.md", "docs"];

/// Only files that git tracks.
pub(super) fn copy(to: &Path) -> Result<()> {
    let listing = Invocation::new("git").arguments(["ls-files", "-z"]).output(workspace::root())?;
    let tracked = listing.split_terminator('\0').map(str::to_owned).collect();
    let read = |path: &str| {
        fs::read_to_string(workspace::root().join(path)).with_context(|| format!("`{path}` is unreadable"))
    };
    for path in chosen(&tracked, read)? {
        let copy = to.join(&path);
        fs::create_dir_all(copy.parent().context("a folder")?)?;
        fs::copy(workspace::root().join(&path), copy)
            .with_context(|| format!("`{path}` cannot be copied"))?;
    }
    Ok(())
}

/// Follows links from page to page among `known` files. A link to a folder leads to all files in it.
fn chosen(known: &BTreeSet<String>, read: impl Fn(&str) -> Result<String>) -> Result<BTreeSet<String>> {
    let mut chosen = BTreeSet::new();
    let mut open: Vec<String> = FIRST.iter().map(ToString::to_string).collect();
    while let Some(place) = open.pop() {
        let found: Vec<&String> = known.iter().filter(|path| is_at(path, &place)).collect();
        ensure!(!found.is_empty(), "the archive's pages need `{place}`, which git does not track");
        for path in found {
            if chosen.insert(path.clone()) && is_page(path) {
                open.extend(tidy::linked(path, &read(path)?));
            }
        }
    }
    Ok(chosen)
}

fn is_at(path: &str, place: &str) -> bool {
    path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn is_page(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "md")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn chosen_of(files: &BTreeMap<String, String>) -> Result<BTreeSet<String>> {
        let known = files.keys().cloned().collect();
        chosen(&known, |path| Ok(files[path].clone()))
    }

    #[test]
    fn pages_bring_what_they_link_to_and_nothing_else() {
        let texts = [
            ("LICENSE-APACHE", ""),
            ("LICENSE-MIT", ""),
            ("CHANGELOG.md", ""),
            ("README.md", "[crate](models/README.md#use) [out](https://a.b) [item](a::B) `[code](none.md)`"),
            ("docs/guide/a.md", "[up](../../README.md) [sizes](/train/configs) [here](#a)"),
            ("docs/draft.svg", ""),
            ("models/README.md", "[more](more.txt)"),
            ("models/more.txt", "[not a page](none.md)"),
            ("models/src/lib.rs", ""),
            ("train/configs/toy.json", ""),
            ("train/configs-of-old/toy.json", ""),
        ];
        let mut files: BTreeMap<_, _> =
            texts.map(|(path, text)| (path.to_owned(), text.to_owned())).into_iter().collect();
        let left_out = ["models/src/lib.rs", "train/configs-of-old/toy.json"];
        let expected = files.keys().filter(|path| !left_out.contains(&path.as_str())).cloned();
        assert_eq!(chosen_of(&files).unwrap(), expected.collect::<BTreeSet<_>>());

        files.remove("models/more.txt");
        let error = chosen_of(&files).unwrap_err().to_string();
        assert_eq!(error, "the archive's pages need `models/more.txt`, which git does not track");
    }

    #[test]
    fn every_relative_link_of_the_archives_pages_resolves_inside_it() {
        let tree = tidy::read_tree().unwrap();
        let inside = chosen_of(&tree).unwrap();
        for page in inside.iter().filter(|path| is_page(path)) {
            for target in tidy::linked(page, &tree[page]) {
                assert!(inside.iter().any(|path| is_at(path, &target)), "{page} leads to {target}");
            }
        }
        let named =
            ["docs/guide/install.md", "serve/proxies/nginx.conf", "train/README.md", "ARCHITECTURE.md"];
        let missing: Vec<_> = named.into_iter().filter(|path| !inside.contains(*path)).collect();
        assert_eq!(missing, [""; 0]);
        assert!(inside.iter().any(|path| is_at(path, "train/runs/configs")));
    }
}
