//! NVRTC and its headers: installed, or fetched by pip into `target/nvrtc`. Nothing is linked. NVIDIA's licence covers
//! fetched files, which stay below `target`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    str::FromStr,
};

use anyhow::{Context, Result, bail, ensure};

use xtask::{invocation::Invocation, workspace};

#[derive(Debug)]
pub(super) struct Toolkit {
    pub(super) library: PathBuf,
    /// In search order.
    pub(super) headers: Vec<PathBuf>,
}

/// The second, for tensor cores, has its own wheel.
const HEADERS: [&str; 2] = ["cuda_runtime.h", "crt/mma.h"];
const WAYS_OUT: &str = "`cargo xtask kernels --fetch` downloads NVRTC and its headers from PyPI; an installed CUDA is \
                        found through CUDA_PATH";

impl Toolkit {
    /// The first complete one: in `folders`, `CUDA_PATH` or CUDA's default places.
    pub(super) fn find(folders: &[PathBuf]) -> Result<Self> {
        let installed = env::var_os("CUDA_PATH").map(PathBuf::from);
        let usual = ["/usr/local/cuda", "/opt/cuda"].map(PathBuf::from);
        Self::first_of(folders.iter().cloned().chain(installed).chain(usual))
    }

    fn first_of(folders: impl IntoIterator<Item = PathBuf>) -> Result<Self> {
        let mut lacking = Vec::new();
        for folder in folders {
            match Self::in_folder(&folder) {
                Ok(toolkit) => return Ok(toolkit),
                Err(missing) => lacking.push(format!("{} lacks {}", folder.display(), missing.join(", "))),
            }
        }
        bail!("NVRTC is not at hand: {}. {WAYS_OUT}", lacking.join("; "))
    }

    /// An installation, or unpacked wheels with folders below `nvidia`.
    fn in_folder(folder: &Path) -> Result<Self, Vec<&'static str>> {
        let mut roots = vec![folder.to_owned()];
        roots.extend(children(&folder.join("nvidia")));
        let library = roots.iter().flat_map(|root| ["lib64", "lib"].map(|lib| root.join(lib)));
        let library = library.flat_map(|folder| children(&folder)).find(|file| is_nvrtc(file));
        let headers: Vec<_> = roots
            .iter()
            .flat_map(|root| ["include", "include/cccl"].map(|include| root.join(include)))
            .filter(|include| include.is_dir())
            .collect();
        let lacks = |header: &&str| !headers.iter().any(|folder| folder.join(header).is_file());
        let missing: Vec<_> = HEADERS.into_iter().filter(lacks).collect();
        match library {
            Some(library) if missing.is_empty() => Ok(Self { library, headers }),
            Some(_) => Err(missing),
            None => Err([vec!["libnvrtc.so"], missing].concat()),
        }
    }
}

/// Follows links: the stand-in's link of this name leads elsewhere.
fn is_nvrtc(file: &Path) -> bool {
    let named =
        |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libnvrtc.so"));
    named(file) && fs::canonicalize(file).is_ok_and(|behind| named(&behind))
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(folder)
        .map(|entries| entries.filter_map(Result::ok).map(|entry| entry.path()).collect())
        .unwrap_or_default();
    paths.sort();
    paths
}

pub(super) fn require_python(python: &str) -> Result<()> {
    Command::new(python)
        .arg("--version")
        .output()
        .map(drop)
        .with_context(|| format!("`{python}`, which calls NVRTC, could not be started: install Python 3"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Release {
    major: u32,
    minor: u32,
}

impl FromStr for Release {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let numbers =
            text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let (major, minor) = numbers.with_context(|| format!("`{text}` is no release such as 12.8"))?;
        ensure!(major >= 12, "PyPI has wheels of CUDA 12 and later in this form, and not of {text}");
        Ok(Self { major, minor })
    }
}

impl Release {
    pub(super) fn folder(self, below: &Path) -> PathBuf {
        below.join(format!("{}.{}", self.major, self.minor))
    }

    pub(super) fn fetch(self, below: &Path) -> Result<()> {
        let folder = self.folder(below);
        if Toolkit::in_folder(&folder).is_ok() {
            return Ok(());
        }
        let part = folder.with_extension(format!("{}.part", self.minor));
        for unfinished in [&part, &folder] {
            if unfinished.exists() {
                fs::remove_dir_all(unfinished)?;
            }
        }
        let wheels = part.join("wheels");
        fs::create_dir_all(&wheels)?;
        self.download(&wheels)
            .run(workspace::root())
            .context("NVRTC could not be fetched: that needs pip and a way to PyPI")?;
        for wheel in children(&wheels) {
            unpack(&wheel, &part).run(workspace::root())?;
        }
        fs::remove_dir_all(&wheels)?;
        fs::rename(&part, &folder)?;
        Ok(())
    }

    fn download(self, to: &Path) -> Invocation {
        Invocation::new("python3")
            .arguments("-m pip download --quiet --no-deps --only-binary=:all: --dest".split_whitespace())
            .arguments([to.display().to_string()])
            .arguments(self.packages())
    }

    fn packages(self) -> [String; 4] {
        let Self { major, minor } = self;
        // Before 13 the release was part of a name, and `crt/` came with the compiler.
        let (suffix, crt) = if major == 12 { ("-cu12", "nvcc") } else { ("", "crt") };
        let exactly = |name| format!("nvidia-cuda-{name}{suffix}=={major}.{minor}.*");
        // These headers share only the major version.
        let cccl = format!("nvidia-cuda-cccl{suffix}=={major}.*");
        [exactly("nvrtc"), exactly("runtime"), exactly(crt), cccl]
    }
}

fn unpack(wheel: &Path, to: &Path) -> Invocation {
    Invocation::new("python3")
        .arguments(["-m", "zipfile", "-e"])
        .arguments([wheel, to].map(|path| path.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_files<T>(name: &str, files: &[&str], check: impl Fn(&Path) -> T) -> T {
        let folder = env::temp_dir().join(format!("nvrtc-{name}-{}", std::process::id()));
        for file in files {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let seen = check(&folder);
        fs::remove_dir_all(&folder).unwrap();
        seen
    }

    #[test]
    fn an_installation_and_wheels_of_both_layouts_are_found() {
        let layouts: [&[&str]; 3] = [
            &["lib64/libnvrtc.so.12", "include/cuda_runtime.h", "include/crt/mma.h"],
            &[
                "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
                "nvidia/r/include/cuda_runtime.h",
                "nvidia/n/include/crt/mma.h",
            ],
            &[
                "nvidia/cu13/lib/libnvrtc.so.13",
                "nvidia/cu13/include/cuda_runtime.h",
                "nvidia/cu13/include/crt/mma.h",
            ],
        ];
        for files in layouts {
            with_files("found", files, |folder| {
                let toolkit = Toolkit::in_folder(folder).unwrap();
                assert_eq!(toolkit.library, folder.join(files[0]));
                assert!(toolkit.headers.iter().all(|headers| headers.ends_with("include")));
            });
        }
    }

    #[test]
    fn every_missing_part_is_named() {
        let missing =
            |files: &[&str]| with_files("lacking", files, |folder| Toolkit::in_folder(folder).unwrap_err());
        assert_eq!(missing(&["include/cuda_runtime.h"]), ["libnvrtc.so", "crt/mma.h"]);
        assert_eq!(missing(&["lib/libnvrtc.so.12", "lib/libnvrtc-builtins.so"]), HEADERS);
    }

    #[cfg(unix)]
    #[test]
    fn the_stand_in_never_passes_for_nvrtc() {
        with_files("stand-in", &["libstand_in.so"], |folder| {
            let link = folder.join("libnvrtc.so.12");
            std::os::unix::fs::symlink(folder.join("libstand_in.so"), &link).unwrap();
            assert!(!is_nvrtc(&link));
        });
    }

    #[test]
    fn a_missing_toolkit_is_an_error_that_names_its_parts_and_how_to_get_them() {
        let error = Toolkit::first_of(["/no-such-folder".into()]).unwrap_err().to_string();
        let said = ["/no-such-folder lacks libnvrtc.so, cuda_runtime.h, crt/mma.h", "--fetch", "CUDA_PATH"];
        assert!(said.iter().all(|said| error.contains(said)), "{error}");
    }

    #[test]
    fn wheels_are_requested_by_the_names_of_their_release() {
        let packages = |release: &str| release.parse::<Release>().unwrap().packages().join(" ");
        assert_eq!(
            packages("12.8"),
            "nvidia-cuda-nvrtc-cu12==12.8.* nvidia-cuda-runtime-cu12==12.8.* nvidia-cuda-nvcc-cu12==12.8.* \
             nvidia-cuda-cccl-cu12==12.*"
        );
        assert_eq!(
            packages("13.0"),
            "nvidia-cuda-nvrtc==13.0.* nvidia-cuda-runtime==13.0.* nvidia-cuda-crt==13.0.* nvidia-cuda-cccl==13.*"
        );
        assert!("11.8".parse::<Release>().is_err() && "12".parse::<Release>().is_err());
    }

    #[test]
    fn a_missing_python_is_an_error_that_says_what_to_install() {
        let error = require_python("no-such-python").unwrap_err().to_string();
        assert!(error.contains("`no-such-python`") && error.contains("install Python 3"), "{error}");
    }
}
