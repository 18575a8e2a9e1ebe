//! Licences of what is compiled into the programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

const HEAD: &str = "The programs contain the packages below. Equal texts stand once, under all packages that bring them.\n\
                    A package without a text of its own is under the licence that it names, whose text is beside this file.\n";

const NAMES: [&str; 5] = ["licen", "copying", "notice", "unlicense", "copyright"];

pub(super) fn text(metadata: &Value, programs: &[&str]) -> Result<String> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut list = String::new();
    for package in dependencies(metadata, programs)? {
        let name = format!("{} {}", string(package, "name")?, string(package, "version")?);
        let licence = package["license"].as_str().unwrap_or("see its text");
        writeln!(list, "{name}: {licence}")?;
        let manifest = Path::new(string(package, "manifest_path")?);
        let found = files(manifest.parent().context("a folder")?)?;
        if found.is_empty() {
            let ours = ["MIT", "Apache-2.0"].iter().any(|known| licence.contains(known));
            anyhow::ensure!(
                ours || OTHERS.contains(&licence),
                "{name} has no text of its licence, {licence}"
            );
        }
        for text in found {
            texts.entry(text).or_default().push(name.clone());
        }
    }

    let mut page = format!("{HEAD}\n{list}");
    for (text, packages) in texts {
        write!(page, "\n{}\n{}:\n\n{}\n", "=".repeat(80), packages.join(", "), text.trim_end())?;
    }
    Ok(page)
}

/// Licences of packages without a text whose name says everything.
const OTHERS: [&str; 1] = ["CC0-1.0"];

fn dependencies<'m>(metadata: &'m Value, programs: &[&str]) -> Result<Vec<&'m Value>> {
    let packages = metadata["packages"].as_array().context("packages")?;
    let nodes = metadata["resolve"]["nodes"].as_array().context("nodes")?;
    let by_id: BTreeMap<_, _> = nodes.iter().filter_map(|node| Some((node["id"].as_str()?, node))).collect();
    let roots = packages.iter().filter(|package| {
        package["source"].is_null() && package["name"].as_str().is_some_and(|name| programs.contains(&name))
    });
    let mut open: Vec<&str> = roots.filter_map(|package| package["id"].as_str()).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !seen.insert(id) {
            continue;
        }
        for dependency in by_id.get(id).and_then(|node| node["deps"].as_array()).into_iter().flatten() {
            let mut kinds = dependency["dep_kinds"].as_array().into_iter().flatten();
            if kinds.any(|kind| kind["kind"].is_null()) {
                open.extend(dependency["pkg"].as_str());
            }
        }
    }
    let foreign = |package: &&Value| !package["source"].is_null();
    let is_seen = |package: &&Value| package["id"].as_str().is_some_and(|id| seen.contains(id));
    Ok(packages.iter().filter(is_seen).filter(foreign).collect())
}

fn files(folder: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    let mut entries: Vec<_> =
        fs::read_dir(folder).with_context(|| folder.display().to_string())?.flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().to_lowercase();
        if NAMES.iter().any(|known| name.starts_with(known)) && entry.path().is_file() {
            texts.push(String::from_utf8_lossy(&fs::read(entry.path())?).replace("\r\n", "\n"));
        }
    }
    Ok(texts)
}

fn string<'v>(package: &'v Value, key: &str) -> Result<&'v str> {
    package[key].as_str().with_context(|| format!("a package without `{key}`"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use xtask::workspace;

    use super::*;

    fn metadata(licence: &str) -> Value {
        let manifest = |name: &str| workspace::root().join(name).join("Cargo.toml");
        let package = |name: &str, source: Option<&str>, folder: &str| {
            json!({ "name": name, "version": "1.0.0", "id": name, "source": source, "license": licence,
                    "manifest_path": manifest(folder) })
        };
        let node = |name: &str, deps: &[(&str, Option<&str>)]| {
            let dep =
                |(name, kind): &(&str, Option<&str>)| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
            json!({ "id": name, "deps": deps.iter().map(dep).collect::<Vec<_>>() })
        };
        json!({
            "packages": [package("train", None, "train"), package("a", Some("registry"), "."),
                         package("b", Some("registry"), "train"), package("tests", Some("registry"), "train")],
            "resolve": { "nodes": [node("train", &[("a", None), ("tests", Some("dev"))]), node("a", &[("b", None)]),
                                   node("b", &[]), node("tests", &[])] }
        })
    }

    #[test]
    fn every_compiled_package_is_listed_with_its_licence_and_its_text() {
        let text = text(&metadata("MIT OR Apache-2.0"), &["train"]).unwrap();
        assert!(text.contains("a 1.0.0: MIT OR Apache-2.0\nb 1.0.0: MIT"), "{text}");
        assert!(text.contains("Permission is hereby granted") && !text.contains("tests 1.0.0"));
    }

    #[test]
    fn a_package_without_a_text_is_refused_unless_its_licence_is_beside() {
        let error = text(&metadata("Zlib"), &["train"]).unwrap_err().to_string();
        assert_eq!(error, "b 1.0.0 has no text of its licence, Zlib");
    }
}
