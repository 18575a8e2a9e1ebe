//! `cargo xtask kernels`: NVRTC compiles kernels that programs left on the stand-in.
//!
//! NVRTC needs no GPU, but is stricter than the stand-in's C++ compiler.

mod toolkit;
mod verdicts;

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use xtask::{
    invocation::Invocation,
    workspace::{self, Workspace},
};

use toolkit::{Release, Toolkit};
use verdicts::{Compiler, Verdicts};

#[derive(Args)]
pub(crate) struct Kernels {
    /// Folder of `.cu` files; by default the stand-in's
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Download NVRTC and its headers by pip (about 130 MB) if they are missing
    #[arg(long)]
    fetch: bool,
    /// Release of CUDA to fetch and to prefer
    #[arg(long, value_name = "VERSION", default_value = "12.8")]
    cuda: Release,
    /// Compute capabilities to compile for
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "80,89,90,120")]
    architectures: Vec<u32>,
}

/// Relative to the root.
const SCRIPT: &str = "xtask/src/kernels/compile.py";

impl Kernels {
    pub(crate) fn run(self) -> Result<()> {
        let target = Workspace::read()?.target;
        let folder = self.from.unwrap_or_else(|| target.join("stand-in/kernels"));
        let folder = fs::canonicalize(&folder).unwrap_or(folder);
        let kernels = count_kernels(&folder)?;
        toolkit::require_python("python3")?;
        if self.fetch {
            self.cuda.fetch(&target.join("nvrtc"))?;
        }
        let toolkit = Toolkit::find(&[self.cuda.folder(&target.join("nvrtc"))])?;

        let compiler = Compiler::parse(&script(&toolkit, &[]).output(workspace::root())?)?;
        println!("NVRTC {} in {}", compiler.version, toolkit.library.display());
        println!("{kernels} kernels in {}", folder.display());
        for architecture in &self.architectures {
            compiler.require(*architecture)?;
        }
        let all = compile(&toolkit, &folder, &self.architectures)?;
        for verdicts in &all {
            print!("{verdicts}");
        }
        let refused: usize = all.iter().map(|verdicts| verdicts.refused.len()).sum();
        ensure!(refused == 0, "NVRTC refused kernels, {refused} over all architectures");
        Ok(())
    }
}

fn count_kernels(folder: &Path) -> Result<usize> {
    const ADVICE: &str = "`cargo xtask stand-in PROGRAM` leaves them when it runs a program on CUDA";
    let files = fs::read_dir(folder)
        .with_context(|| format!("there is no folder of kernels {}: {ADVICE}", folder.display()))?;
    let kernels =
        files.filter_map(Result::ok).filter(|file| file.path().extension().is_some_and(|name| name == "cu"));
    match kernels.count() {
        0 => bail!("no kernel lies in {}: {ADVICE}", folder.display()),
        count => Ok(count),
    }
}

/// All architectures at once. Results keep their order.
fn compile(toolkit: &Toolkit, folder: &Path, architectures: &[u32]) -> Result<Vec<Verdicts>> {
    let one = |architecture| {
        let started = Instant::now();
        let arguments = arguments(folder, architecture, &toolkit.headers);
        let lines = script(toolkit, &arguments).output(workspace::root())?;
        Verdicts::parse(target_name(architecture), &lines, started.elapsed())
    };
    thread::scope(|scope| {
        let running: Vec<_> =
            architectures.iter().map(|architecture| scope.spawn(move || one(*architecture))).collect();
        running.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    })
}

fn script(toolkit: &Toolkit, arguments: &[String]) -> Invocation {
    Invocation::new("python3")
        .arguments([SCRIPT.to_owned(), toolkit.library.display().to_string()])
        .arguments(arguments.iter().cloned())
}

/// The folder, then CubeCL's options (`compile_kernel` of `cubecl-cuda`).
fn arguments(folder: &Path, architecture: u32, headers: &[PathBuf]) -> Vec<String> {
    let mut arguments = vec![
        folder.display().to_string(),
        format!("--gpu-architecture={}", target_name(architecture)),
        "-lineinfo".to_owned(),
    ];
    arguments.extend(headers.iter().map(|folder| format!("--include-path={}", folder.display())));
    arguments
}

/// From 90 on, CubeCL's inline PTX needs the exact GPU.
fn target_name(architecture: u32) -> String {
    format!("sm_{architecture}{}", if architecture >= 90 { "a" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_compiled_with_the_options_of_cubecl() {
        let options =
            |architecture| arguments(Path::new("/k"), architecture, &["/c/include".into()]).join(" ");
        assert_eq!(options(80), "/k --gpu-architecture=sm_80 -lineinfo --include-path=/c/include");
        assert_eq!(options(90), "/k --gpu-architecture=sm_90a -lineinfo --include-path=/c/include");
        assert_eq!(options(120), "/k --gpu-architecture=sm_120a -lineinfo --include-path=/c/include");
    }

    #[test]
    fn the_script_exists_at_its_path() {
        assert!(workspace::root().join(SCRIPT).is_file());
    }

    #[test]
    fn a_folder_without_kernels_is_an_error_that_says_what_makes_them() {
        for folder in [workspace::root().join("xtask"), workspace::root().join("no-such-folder")] {
            let error = count_kernels(&folder).unwrap_err().to_string();
            assert!(error.contains("`cargo xtask stand-in PROGRAM`"), "{error}");
        }
    }
}
