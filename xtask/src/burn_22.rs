//! `cargo xtask burn-0.22`: the facade crate `cubecl` with `cubecl.patch`, and tests of the adapter for Burn 0.22.
//!
//! Cargo fetches the crate (MIT or Apache-2.0); the repository holds the patch.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use xtask::{
    invocation::Invocation,
    workspace::{self, Workspace},
};

/// Relative to the repository's root.
pub(crate) const FOLDER: &str = "backend-offload/burn-0.22";

/// Tested versions of `cubecl` and `burn`, and newer ones that must compile.
const STABLE: [&str; 2] = ["0.11.3", "0.22.1"];
const NEXT: [&str; 2] = ["0.12.0-pre.1", "0.23.0-pre.1"];

/// Parts that a build needs, and licences.
const PARTS: [&str; 5] = ["Cargo.toml", "build.rs", "src", "LICENSE-APACHE", "LICENSE-MIT"];

#[derive(Args)]
pub(crate) struct Burn22 {
    /// Only make the patched crate in this folder, for the workspace of another program
    #[arg(long, value_name = "FOLDER", conflicts_with = "next")]
    facade: Option<PathBuf>,
    /// Only compile the same sources with the next release of Burn
    #[arg(long)]
    next: bool,
}

impl Burn22 {
    pub(crate) fn run(self) -> Result<()> {
        if let Some(folder) = self.facade {
            return facade(STABLE[0], &folder);
        }
        let nested = workspace::root().join(FOLDER);
        if self.next {
            let copy = next_release(&nested)?;
            return Invocation::cargo("check --release --package offload-burn-22 --lib").run(&copy);
        }
        prepare()?;
        for line in [
            "fmt --all --check",
            "clippy --release --workspace --all-targets -- -D warnings",
            "test --release --workspace --no-fail-fast",
        ] {
            Invocation::cargo(line).run(&nested)?;
        }
        let deny = Invocation::cargo("deny check bans licenses sources");
        deny.run(&nested).context("`.ci/run` installs the cargo-deny that it needs")
    }
}

/// Makes the patched crate where the nested workspace expects it.
pub(crate) fn prepare() -> Result<()> {
    facade(STABLE[0], &workspace::root().join(FOLDER).join("cubecl"))
}

/// An up-to-date folder stays untouched: cargo would compile Burn anew.
fn facade(version: &str, folder: &Path) -> Result<()> {
    let patch_file = workspace::root().join(FOLDER).join("cubecl.patch");
    let patch = fs::read_to_string(&patch_file).with_context(|| patch_file.display().to_string())?;
    let (stamp, made) = (folder.join("made-from"), format!("cubecl {version}\n{patch}"));
    if fs::read_to_string(&stamp).is_ok_and(|before| before == made) {
        return Ok(());
    }

    let source = fetched(version)?;
    if folder.exists() {
        if !stamp.exists() {
            bail!("{} exists and was not made by this command: name another folder", folder.display());
        }
        fs::remove_dir_all(folder)?;
    }
    for part in PARTS {
        copy(&source.join(part), &folder.join(part))?;
    }
    // Out of a repository's sight, git patches plain files.
    let absolute = fs::canonicalize(folder)?;
    let parent = absolute.parent().context("a folder of its own")?.display().to_string();
    Invocation::new("git")
        .arguments(["apply", "--whitespace=nowarn", "-p1", &patch_file.display().to_string()])
        .environment("GIT_CEILING_DIRECTORIES", parent)
        .run(&absolute)
        .context("the crate differs from the one that the patch is for")?;
    fs::write(stamp, made)?;
    Ok(())
}

fn fetched(version: &str) -> Result<PathBuf> {
    let asking = Workspace::read()?.target.join("burn-0.22").join(version);
    fs::create_dir_all(asking.join("src"))?;
    fs::write(asking.join("src/lib.rs"), "")?;
    let manifest = format!(
        "[package]\nname = \"asking\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
         cubecl = {{ version = \"={version}\", default-features = false }}\n"
    );
    fs::write(asking.join("Cargo.toml"), manifest)?;
    let metadata = Invocation::cargo("metadata --format-version 1").output(&asking)?;
    source_of("cubecl", &metadata)
}

fn source_of(name: &str, metadata: &str) -> Result<PathBuf> {
    let metadata: Value = serde_json::from_str(metadata).context("cargo metadata printed no JSON")?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let package = packages.iter().find(|package| package["name"] == name);
    let manifest = package.and_then(|package| package["manifest_path"].as_str());
    let manifest = manifest.with_context(|| format!("cargo metadata lacks `{name}`"))?;
    Ok(Path::new(manifest).parent().context("a manifest lies in a folder")?.to_owned())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_file() {
        fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
        fs::copy(from, to).with_context(|| format!("{} cannot be copied", from.display()))?;
        return Ok(());
    }
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

/// A copy of the nested workspace that names the next release.
fn next_release(nested: &Path) -> Result<PathBuf> {
    let target = Workspace::read()?.target.join("burn-0.22/next");
    for part in ["Cargo.toml", "build.rs", "src", "examples", "proof"] {
        copy(&nested.join(part), &target.join(part))?;
    }
    facade(NEXT[0], &target.join("cubecl"))?;
    let manifest = target.join("Cargo.toml");
    let text = renamed(&fs::read_to_string(&manifest)?, workspace::root());
    fs::write(manifest, text)?;
    Ok(target)
}

/// Replaces versions, and paths that lead out of the workspace.
fn renamed(manifest: &str, root: &Path) -> String {
    let root = root.display();
    let mut text = manifest.to_owned();
    for (stable, next) in STABLE.iter().zip(NEXT) {
        text = text.replace(&format!("\"={stable}\""), &format!("\"={next}\""));
    }
    text.replace("path = \"..\"", &format!("path = \"{root}/backend-offload\""))
        .replace("path = \"../../", &format!("path = \"{root}/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patch_changes_at_most_three_files_and_150_lines() {
        let patch = fs::read_to_string(workspace::root().join(FOLDER).join("cubecl.patch")).unwrap();
        assert!(patch.lines().count() <= 150);
        assert!(patch.lines().filter(|line| line.starts_with("+++ ")).count() <= 3);
    }

    #[test]
    fn the_next_release_is_compiled_from_the_same_sources_under_other_versions() {
        let manifest = "burn = { version = \"=0.22.1\" }\nbackend-offload = { path = \"..\" }\n\
                        suite = { path = \"../../xtask/suite\" }\n";
        assert_eq!(
            renamed(manifest, Path::new("/r")),
            "burn = { version = \"=0.23.0-pre.1\" }\nbackend-offload = { path = \"/r/backend-offload\" }\n\
             suite = { path = \"/r/xtask/suite\" }\n"
        );
    }

    #[test]
    fn the_source_of_a_crate_is_the_folder_of_its_manifest() {
        let metadata = r#"{"packages": [{"name": "a", "manifest_path": "/s/a-1/Cargo.toml"}]}"#;
        assert_eq!(source_of("a", metadata).unwrap(), Path::new("/s/a-1"));
        assert!(source_of("b", metadata).is_err());
    }
}
