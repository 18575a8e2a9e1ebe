//! `cargo xtask release`: the archive for Linux on x86-64, tried in a root with nothing but a C library.

mod licences;
mod pages;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use xtask::{
    invocation::Invocation,
    workspace::{self, Workspace},
};

const PROGRAMS: [&str; 2] = ["train", "serve"];

/// Folder of the programs in the archive: pages lie in `train` and `serve`, as in the repository.
const BIN: &str = "bin";

const TRIALS: [&[&str]; 4] = [
    &["/train", "doctor"],
    &["/train", "--device", "cpu", "--set", "train.steps=3", "--set", "eval.quiz=0", "--out", "/toy"],
    &["/train", "sample", "--from", "/toy", "--question", "What day comes after Monday?", "--device", "cpu"],
    &["/serve", "--version"],
];

pub(crate) fn run() -> Result<()> {
    let commit = workspace::commit()?;
    let target = Workspace::read()?.target;
    let built = build(&target)?;
    let name = format!("spillway-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    let folder = target.join("archive").join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let bin = folder.join(BIN);
    fs::create_dir_all(&bin)?;

    for program in PROGRAMS {
        fs::copy(built.join(program), bin.join(program))?;
    }
    fs::write(folder.join("commit"), commit + "\n")?;
    let metadata = "metadata --locked --format-version 1 --filter-platform x86_64-unknown-linux-gnu";
    let metadata: Value = serde_json::from_str(&Invocation::cargo(metadata).output(workspace::root())?)?;
    fs::write(folder.join("LICENCES-OF-DEPENDENCIES.txt"), licences::text(&metadata, &PROGRAMS)?)?;
    pages::copy(&folder)?;

    try_in_empty_root(&target, &bin)?;
    let archive = format!("{name}.tar.gz");
    let part = format!("{archive}.part");
    let pack = ["--sort=name", "--owner=0", "--group=0", "-czf", &part, &name];
    let beside = folder.parent().context("a folder")?;
    Invocation::new("tar").arguments(pack).run(beside)?;
    fs::rename(beside.join(&part), beside.join(&archive))?;
    Invocation::new("sha256sum").arguments([archive]).run(beside)
}

/// Builds programs that name no folder of this machine, and returns their folder. Other flags in the usual folder would
/// compile everything there anew.
fn build(target: &Path) -> Result<PathBuf> {
    let cargo = env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo = cargo.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cargo")));
    let cargo = cargo.context("neither CARGO_HOME nor HOME says where cargo keeps its sources")?;
    let folder = target.join("archive-build");
    Invocation::cargo("build --release --locked --package train --package serve")
        .arguments(["--target-dir".to_owned(), folder.display().to_string()])
        .arguments(["--config".to_owned(), without_folders(workspace::root(), &cargo)])
        // They would replace those of the configuration.
        .withhold(&["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_RUSTFLAGS"])
        .run(workspace::root())?;
    Ok(folder.join("release"))
}

/// Cargo joins these flags with those of the repository's configuration. Of two that match, the last counts.
fn without_folders(root: &Path, cargo: &Path) -> String {
    let renamed = [(root, "spillway"), (cargo, "cargo")];
    let flags = renamed.map(|(folder, name)| format!("--remap-path-prefix={}={name}", folder.display()));
    format!("build.rustflags={flags:?}")
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
    fn programs_name_the_checkout_and_cargos_sources_without_their_folders() {
        assert_eq!(
            without_folders(Path::new("/a"), Path::new("/b")),
            "build.rustflags=[\"--remap-path-prefix=/a=spillway\", \"--remap-path-prefix=/b=cargo\"]"
        );
    }

    #[test]
    fn libraries_beyond_c_are_found_in_what_the_linker_says() {
        let ldd = "\tlinux-vdso.so.1 (0x0)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x1)\n\
                   \tlibssl.so.3 => /lib/libssl.so.3 (0x2)\n\t/lib64/ld-linux-x86-64.so.2 (0x3)\n";
        let paths = paths(ldd);
        let foreign: Vec<_> = paths.iter().filter(|path| !is_of_the_c_library(path)).collect();
        assert_eq!((paths.len(), foreign), (3, vec![&PathBuf::from("/lib/libssl.so.3")]));
    }
}
