//! `cargo xtask release`: the archive for Linux on x86-64, tried in a root with nothing but a C library.

mod licences;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use xtask::{
    invocation::Invocation,
    workspace::{self, Workspace},
};

const PROGRAMS: [&str; 2] = ["train", "serve"];

const PAGES: [&str; 5] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "CHANGELOG.md", "docs"];

const TRIALS: [&[&str]; 4] = [
    &["/train", "doctor"],
    &["/train", "--device", "cpu", "--set", "train.steps=3", "--set", "eval.quiz=0", "--out", "/toy"],
    &["/train", "sample", "--from", "/toy", "--question", "What day comes after Monday?", "--device", "cpu"],
    &["/serve", "--version"],
];

pub(crate) fn run() -> Result<()> {
    let build = ["--package", "train", "--package", "serve"];
    Invocation::cargo("build --release --locked").arguments(build).run(workspace::root())?;
    let target = Workspace::read()?.target;
    let name = format!("spillway-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    let folder = target.join("archive").join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;

    for program in PROGRAMS {
        fs::copy(target.join("release").join(program), folder.join(program))?;
    }
    let metadata = "metadata --locked --format-version 1 --filter-platform x86_64-unknown-linux-gnu";
    let metadata: Value = serde_json::from_str(&Invocation::cargo(metadata).output(workspace::root())?)?;
    fs::write(folder.join("LICENCES-OF-DEPENDENCIES.txt"), licences::text(&metadata, &PROGRAMS)?)?;
    let pages = PAGES.map(|page| workspace::root().join(page).display().to_string());
    let copy = Invocation::new("cp").arguments(["-r"]).arguments(pages);
    copy.arguments([folder.display().to_string()]).run(workspace::root())?;

    try_in_empty_root(&target, &folder)?;
    let archive = format!("{name}.tar.gz");
    let pack = ["--sort=name", "--owner=0", "--group=0", "-czf", &archive, &name];
    let beside = folder.parent().context("a folder")?;
    Invocation::new("tar").arguments(pack).run(beside)?;
    Invocation::new("sha256sum").arguments([archive]).run(beside)
}

fn try_in_empty_root(target: &Path, folder: &Path) -> Result<()> {
    let root = target.join("empty-root");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    fs::create_dir_all(root.join("tmp"))?;
    let mut libraries = BTreeSet::new();
    for program in PROGRAMS {
        fs::copy(folder.join(program), root.join(program))?;
        let needed = Invocation::new("ldd").arguments([folder.join(program).display().to_string()]);
        libraries.extend(paths(&needed.output(folder)?));
    }
    ensure!(
        libraries.iter().all(|path| is_of_the_c_library(path)),
        "more than a C library is needed: {libraries:?}"
    );
    for library in libraries {
        let to = root.join(library.strip_prefix("/")?);
        fs::create_dir_all(to.parent().context("a folder")?)?;
        fs::copy(&library, to)?;
    }

    for trial in TRIALS {
        let enter = ["--map-root-user", "--fork", "chroot"].map(str::to_owned);
        let inside = enter
            .into_iter()
            .chain([root.display().to_string()])
            .chain(trial.iter().map(ToString::to_string));
        Invocation::new("unshare")
            .arguments(inside)
            .withhold(&["LD_PRELOAD", "XDG_CACHE_HOME"])
            .run(&root)?;
    }
    if !root.join("toy/report.html").is_file() {
        bail!("the run in {} has left no report", root.display());
    }
    Ok(())
}

fn paths(ldd: &str) -> Vec<PathBuf> {
    let words = ldd.lines().flat_map(str::split_whitespace);
    words.filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

/// Includes GCC's runtime for unwinding.
fn is_of_the_c_library(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let known = ["libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libgcc_s.so", "ld-linux"];
    known.iter().any(|known| name.starts_with(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_beyond_c_are_found_in_what_the_linker_says() {
        let ldd = "\tlinux-vdso.so.1 (0x0)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x1)\n\
                   \tlibssl.so.3 => /lib/libssl.so.3 (0x2)\n\t/lib64/ld-linux-x86-64.so.2 (0x3)\n";
        let paths = paths(ldd);
        let foreign: Vec<_> = paths.iter().filter(|path| !is_of_the_c_library(path)).collect();
        assert_eq!((paths.len(), foreign), (3, vec![&PathBuf::from("/lib/libssl.so.3")]));
    }
}
