//! `cargo xtask stand-in`: runs a program on a CUDA driver that needs no GPU.
//!
//! It builds package `stand-in`, lays it out as a CUDA installation and points the program there. Without a program it
//! prints the folder, for tests that start processes.

use std::{
    env,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use clap::Args;

use xtask::{
    invocation::Invocation,
    workspace::{self, Workspace},
};

#[derive(Args, Default)]
pub(crate) struct StandIn {
    /// When queued work runs
    #[arg(long, value_parser = ["eager", "lazy", "random"])]
    mode: Option<String>,
    /// Seed of `--mode random`
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Detect accesses to device memory that nothing orders
    #[arg(long)]
    races: bool,
    /// End the program at the first finding of any kind
    #[arg(long)]
    strict: bool,
    /// Memory of each device, such as 64M
    #[arg(long, value_name = "SIZE")]
    vram: Option<String>,
    #[arg(long, value_name = "N")]
    devices: Option<u32>,
    /// File for one line of JSON when the program ends; `-` is standard error
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Program to run, with its arguments; without one, the driver's folder is printed
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// One object serves as all.
const LIBRARIES: [&str; 5] =
    ["libcuda.so", "libcuda.so.1", "libnvrtc.so", "libnvrtc.so.12", "libnvrtc.so.13"];

impl StandIn {
    pub(crate) fn run(self) -> Result<()> {
        let folder = installation()?;
        let Some((program, arguments)) = self.program.split_first() else {
            println!("{}", folder.display());
            return Ok(());
        };
        let mut command = Command::new(program);
        command.args(arguments).envs(self.environment(&folder, |name| env::var_os(name)));
        replace_this_process(&mut command)
            .with_context(|| format!("`{}` could not be started", program.display()))
    }

    /// `ours`: our own environment.
    fn environment(
        &self,
        folder: &Path,
        ours: impl Fn(&str) -> Option<OsString>,
    ) -> Vec<(&'static str, OsString)> {
        let mut libraries = folder.join("lib").into_os_string();
        if let Some(before) = ours("LD_LIBRARY_PATH").filter(|before| !before.is_empty()) {
            libraries.push(":");
            libraries.push(before);
        }
        let cache = ours("STAND_IN_CACHE").unwrap_or_else(|| folder.join("kernels").into());
        let mut variables =
            vec![("CUDA_PATH", folder.into()), ("LD_LIBRARY_PATH", libraries), ("STAND_IN_CACHE", cache)];
        let mut option = |name, value: Option<OsString>| variables.extend(value.map(|value| (name, value)));
        option("STAND_IN_MODE", self.mode.as_ref().map(Into::into));
        option("STAND_IN_SEED", self.seed.map(|seed| seed.to_string().into()));
        option("STAND_IN_RACES", self.races.then(|| "1".into()));
        option("STAND_IN_STRICT", self.strict.then(|| "1".into()));
        option("STAND_IN_VRAM", self.vram.as_ref().map(Into::into));
        option("STAND_IN_DEVICES", self.devices.map(|devices| devices.to_string().into()));
        option("STAND_IN_REPORT", self.report.as_ref().map(Into::into));
        variables
    }
}

fn require_compiler(compiler: &str) -> Result<()> {
    let found = Command::new(compiler).arg("--version").output();
    found.map(drop).with_context(|| {
        format!(
            "the C++ compiler `{compiler}`, which compiles kernels, could not be started: install g++ (on Debian and \
             Ubuntu `apt-get install g++`), or name another one in STAND_IN_CXX"
        )
    })
}

/// Builds the driver; returns the folder of the installation.
pub(crate) fn installation() -> Result<PathBuf> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!("the stand-in for CUDA runs on x86-64 Linux only");
    }
    require_compiler(&env::var("STAND_IN_CXX").unwrap_or_else(|_| "g++".to_owned()))?;
    let root = workspace::root();
    // Our standard output may hold only the folder.
    Invocation::cargo("build --release --package stand-in").output(root)?;
    let target = Workspace::read()?.target;
    let folder = target.join("stand-in");
    lay_out(&folder, &target.join("release/libstand_in.so"), &root.join("backend-offload/stand-in/include"))
        .with_context(|| format!("the stand-in could not be laid out in {}", folder.display()))?;
    Ok(folder)
}

/// The driver, and the headers that kernels are compiled with.
pub(crate) fn files(installation: &Path) -> Result<Vec<PathBuf>> {
    let mut files = vec![installation.join("lib").join(LIBRARIES[0])];
    let mut folders = vec![installation.join("include")];
    while let Some(folder) = folders.pop() {
        let unreadable = || format!("{} cannot be read", folder.display());
        for entry in fs::read_dir(&folder).with_context(unreadable)? {
            let path = entry.with_context(unreadable)?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

fn lay_out(folder: &Path, library: &Path, headers: &Path) -> Result<()> {
    fs::create_dir_all(folder.join("lib"))?;
    fs::create_dir_all(folder.join("kernels"))?;
    link(headers, &folder.join("include"))?;
    for name in LIBRARIES {
        link(library, &folder.join("lib").join(name))?;
    }
    Ok(())
}

/// Other processes may use the folder: a correct link stays, others are replaced atomically.
fn link(to: &Path, at: &Path) -> Result<()> {
    if fs::read_link(at).is_ok_and(|found| found == to) {
        return Ok(());
    }
    let mut aside = at.as_os_str().to_owned();
    aside.push(format!(".{}", std::process::id()));
    symbolic_link(to, Path::new(&aside))?;
    fs::rename(aside, at)?;
    Ok(())
}

#[cfg(unix)]
fn symbolic_link(to: &Path, at: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(to, at)
}

#[cfg(not(unix))]
fn symbolic_link(_to: &Path, _at: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The program's exit code or signal becomes ours.
#[cfg(unix)]
fn replace_this_process(command: &mut Command) -> io::Result<()> {
    Err(std::os::unix::process::CommandExt::exec(command))
}

#[cfg(not(unix))]
fn replace_this_process(_command: &mut Command) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(options: &StandIn, ours: &[(&str, &str)]) -> Vec<String> {
        let ours = |name: &str| ours.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        let variables = options.environment(Path::new("/t/stand-in"), ours);
        variables.into_iter().map(|(name, value)| format!("{name}={}", value.display())).collect()
    }

    #[test]
    fn a_program_finds_driver_headers_and_kernels_in_one_folder() {
        assert_eq!(
            environment(&StandIn::default(), &[]),
            [
                "CUDA_PATH=/t/stand-in",
                "LD_LIBRARY_PATH=/t/stand-in/lib",
                "STAND_IN_CACHE=/t/stand-in/kernels"
            ]
        );
    }

    #[test]
    fn the_driver_comes_before_all_other_libraries_and_a_given_cache_is_kept() {
        let environment =
            environment(&StandIn::default(), &[("LD_LIBRARY_PATH", "/a:/b"), ("STAND_IN_CACHE", "/c")]);
        assert_eq!(environment[1..], ["LD_LIBRARY_PATH=/t/stand-in/lib:/a:/b", "STAND_IN_CACHE=/c"]);
    }

    #[test]
    fn options_become_the_variables_that_the_driver_reads() {
        let options = StandIn {
            mode: Some("random".to_owned()),
            seed: Some(7),
            races: true,
            strict: true,
            vram: Some("64M".to_owned()),
            devices: Some(2),
            report: Some("r.json".into()),
            program: Vec::new(),
        };
        assert_eq!(
            environment(&options, &[])[3..],
            [
                "STAND_IN_MODE=random",
                "STAND_IN_SEED=7",
                "STAND_IN_RACES=1",
                "STAND_IN_STRICT=1",
                "STAND_IN_VRAM=64M",
                "STAND_IN_DEVICES=2",
                "STAND_IN_REPORT=r.json"
            ]
        );
    }

    #[test]
    fn a_missing_compiler_is_an_error_that_says_what_to_install() {
        let error = require_compiler("no-such-compiler").unwrap_err().to_string();
        assert!(error.contains("`no-such-compiler`") && error.contains("apt-get install g++"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn the_files_are_the_driver_and_every_header() {
        let folder = env::temp_dir().join(format!("stand-in-files-{}", std::process::id()));
        let headers = folder.join("headers");
        fs::create_dir_all(headers.join("crt")).unwrap();
        for header in ["cuda.h", "crt/mma.h"] {
            fs::write(headers.join(header), "").unwrap();
        }
        let laid_out = folder.join("stand-in");
        lay_out(&laid_out, &folder.join("libstand_in.so"), &headers).unwrap();
        let files = files(&laid_out).unwrap();
        let names: Vec<_> = files.iter().map(|file| file.strip_prefix(&laid_out).unwrap()).collect();
        assert_eq!(names, ["include/crt/mma.h", "include/cuda.h", "lib/libcuda.so"].map(Path::new));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_can_be_laid_out_again_and_follows_its_library() {
        let folder = env::temp_dir().join(format!("stand-in-laid-{}", std::process::id()));
        for library in ["/first.so", "/second.so", "/second.so"] {
            lay_out(&folder, Path::new(library), Path::new("/headers")).unwrap();
            for name in LIBRARIES {
                assert_eq!(fs::read_link(folder.join("lib").join(name)).unwrap(), Path::new(library));
            }
        }
        let links = fs::read_dir(folder.join("lib")).unwrap().count();
        let headers = fs::read_link(folder.join("include")).unwrap();
        let cache = folder.join("kernels").is_dir();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!((links, headers.as_path(), cache), (LIBRARIES.len(), Path::new("/headers"), true));
    }
}
