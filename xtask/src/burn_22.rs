//! `cargo xtask burn-0.22`: the facade crate `cubecl` with `cubecl.patch`, and the tests of the adapter for Burn 0.22.
//!
//! The repository holds only the patch. Cargo fetches the crate (MIT or Apache-2.0, with both texts in it).

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

/// Versions of `cubecl` and `burn` that the adapter is tested with, and newer ones that it must compile with.
const STABLE: [&str; 2] = ["0.11.3", "0.22.1"];
const NEXT: [&str; 2] = ["0.12.0-pre.1", "0.23.0-pre.1"];

/// Errors of a build whose manifest lacks the patch.
const MISSING: [&str; 2] = ["[patch.crates-io]\n", "cubecl = { path = \"FOLDER\" }\n"];

/// Parts of the crate that a build needs, and its licences.
const PARTS: [&str; 5] = ["Cargo.toml", "build.rs", "src", "LICENSE-APACHE", "LICENSE-MIT"];

#[derive(Args)]
pub(crate) struct Burn22 {
    /// Only make the patched crate in this folder, for the workspace of another program
    #[arg(long, value_name = "FOLDER", conflicts_with = "next")]
    facade: Option<PathBuf>,
    /// Only compile the same library, programs and tests with the next release of Burn
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
            return Invocation::cargo("check --release --workspace --all-targets").run(&copy);
        }
        prepare()?;
        for line in [
            "fmt --all --check",
            "clippy --release --workspace --all-targets -- -D warnings",
            "test --release --workspace --no-fail-fast",
        ] {
            Invocation::cargo(line).run(&nested)?;
        }
        refuse_without_patch(&nested)?;
        let deny = Invocation::cargo("deny check bans licenses sources");
        deny.run(&nested).context("`.ci/run` installs the cargo-deny that it needs")
    }
}

/// Makes the patched crate where the nested workspace expects it.
pub(crate) fn prepare() -> Result<()> {
    facade(STABLE[0], &workspace::root().join(FOLDER).join("cubecl"))
}

/// Leaves a folder that is up to date untouched: cargo would compile Burn anew.
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
    // Out of a repository's sight, git applies a patch to plain files.
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
    let copied = copy_workspace(nested, "next", renamed)?;
    facade(NEXT[0], &copied.join("cubecl"))?;
    Ok(copied)
}

/// Compiles a program whose manifest lacks the patch, and expects the two lines to add.
fn refuse_without_patch(nested: &Path) -> Result<()> {
    let copied = copy_workspace(nested, "unpatched", unpatched)?;
    fs::copy(nested.join("Cargo.lock"), copied.join("Cargo.lock"))?;
    let shared = nested.join("target").display().to_string();
    let check = Invocation::cargo("check --release --package proof --target-dir").arguments([shared]);
    println!("$ {check}");
    let output =
        check.command(&copied).output().with_context(|| format!("`{check}` could not be started"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() || !MISSING.iter().all(|line| said.contains(line)) {
        bail!("a program without the patch was not refused with the lines to add:\n{said}");
    }
    Ok(())
}

fn copy_workspace(nested: &Path, name: &str, edit: impl Fn(&str) -> String) -> Result<PathBuf> {
    let copied = Workspace::read()?.target.join("burn-0.22").join(name);
    for part in ["build.rs", "src", "examples", "tests", "proof"] {
        copy(&nested.join(part), &copied.join(part))?;
    }
    let manifest = fs::read_to_string(nested.join("Cargo.toml"))?;
    fs::write(copied.join("Cargo.toml"), edit(&rooted(&manifest, workspace::root())))?;
    Ok(copied)
}

fn rooted(manifest: &str, root: &Path) -> String {
    let root = root.display();
    manifest
        .replace("path = \"..\"", &format!("path = \"{root}/backend-offload\""))
        .replace("path = \"../../", &format!("path = \"{root}/"))
}

fn renamed(manifest: &str) -> String {
    STABLE.iter().zip(NEXT).fold(manifest.to_owned(), |text, (stable, next)| {
        text.replace(&format!("\"={stable}\""), &format!("\"={next}\""))
    })
}

fn unpatched(manifest: &str) -> String {
    manifest.replace("[patch.crates-io]\ncubecl = { path = \"cubecl\" }\n", "")
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
    fn the_patch_for_upstream_is_the_part_that_changes_the_device() {
        let folder = workspace::root().join(FOLDER);
        let [all, part] = ["cubecl.patch", "upstream/provider.patch"]
            .map(|file| fs::read_to_string(folder.join(file)).unwrap());
        assert!(part.starts_with("--- a/src/device.rs\n") && all.ends_with(&part));
    }

    #[test]
    fn the_next_release_is_compiled_from_the_same_sources_under_other_versions() {
        let manifest = "burn = { version = \"=0.22.1\" }\nbackend-offload = { path = \"..\" }\n\
                        suite = { path = \"../../xtask/suite\" }\n";
        assert_eq!(
            renamed(&rooted(manifest, Path::new("/r"))),
            "burn = { version = \"=0.23.0-pre.1\" }\nbackend-offload = { path = \"/r/backend-offload\" }\n\
             suite = { path = \"/r/xtask/suite\" }\n"
        );
    }

    #[test]
    fn the_manifest_without_the_patch_lacks_its_two_lines_alone() {
        let manifest = fs::read_to_string(workspace::root().join(FOLDER).join("Cargo.toml")).unwrap();
        assert_eq!(unpatched(&manifest).lines().count() + 2, manifest.lines().count());
    }

    #[test]
    fn the_source_of_a_crate_is_the_folder_of_its_manifest() {
        let metadata = r#"{"packages": [{"name": "a", "manifest_path": "/s/a-1/Cargo.toml"}]}"#;
        assert_eq!(source_of("a", metadata).unwrap(), Path::new("/s/a-1"));
        assert!(source_of("b", metadata).is_err());
    }
}
