//! Compiles a kernel with the system's C++ compiler, once per cache.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
    time::Instant,
};

use super::{
    cache::{self, Key},
    object::Image,
    translate::{Translation, translate},
};
use crate::{report, settings::settings};

/// No strict aliasing: kernels access one buffer by different types.
const FLAGS: [&str; 8] = [
    "-std=c++17",
    "-w",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-fno-exceptions",
];
const INCLUDE: &str = "--include-path=";

/// Fails with the compiler's log. Needs no lock.
pub(crate) fn compile(source: &str, options: &[String]) -> Result<Image, String> {
    let headers = Headers::find(options)?;
    let translation = translate(source)?;
    if !settings().device.computes {
        return Ok(Image::Uncompiled(translation.signature));
    }
    let compiler = compiler()?;
    let key = key(&translation, &headers, compiler);
    let folder = &settings().compiler.cache;
    let object = key.path(folder, "so");
    if !object.exists() {
        fs::create_dir_all(folder)
            .and_then(|()| cache::write(&key.path(folder, "cu"), source))
            .and_then(|()| cache::write(&key.path(folder, "cpp"), &translation.text))
            .map_err(|error| format!("error: the folder for kernels, {}: {error}", folder.display()))?;
        build(&key.path(folder, "cpp"), &object, &headers.folder)?;
    }
    Ok(Image::Compiled { object, places: translation.places })
}

fn key(translation: &Translation, headers: &Headers, compiler: &str) -> Key {
    let flags = settings().compiler.flags.iter().map(String::as_str).chain(FLAGS);
    let machine = [compiler, cache::processor(), &translation.text];
    Key::new(flags.chain(machine).chain(headers.texts.iter().map(String::as_str)).map(str::as_bytes))
}

fn build(text: &Path, object: &Path, headers: &Path) -> Result<(), String> {
    let started = Instant::now();
    let part = cache::temporary_path(object);
    let output = Command::new(&settings().compiler.program)
        .args(FLAGS)
        .args(&settings().compiler.flags)
        .arg("-I")
        .arg(headers)
        .arg("-o")
        .arg(&part)
        .arg(text)
        .output()
        .map_err(|error| missing_compiler(&error))?;
    report::count(|counters| {
        counters.kernels.compiled += 1;
        counters.kernels.compile_seconds += started.elapsed().as_secs_f64();
    });
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    fs::rename(&part, object).map_err(|error| format!("error: {}: {error}", object.display()))
}

fn compiler() -> Result<&'static str, String> {
    static VERSION: LazyLock<Result<String, String>> = LazyLock::new(|| {
        let output = Command::new(&settings().compiler.program).arg("--version").output();
        let output = output.map_err(|error| missing_compiler(&error))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    });
    VERSION.as_deref().map_err(Clone::clone)
}

fn missing_compiler(error: &io::Error) -> String {
    format!(
        "error: the C++ compiler `{}` could not be started ({error}): install g++, or name one in STAND_IN_CXX",
        settings().compiler.program
    )
}

struct Headers {
    folder: PathBuf,
    texts: Vec<String>,
}

impl Headers {
    fn find(options: &[String]) -> Result<Self, String> {
        let folders: Vec<&str> = options.iter().filter_map(|option| option.strip_prefix(INCLUDE)).collect();
        let ours = folders.iter().map(Path::new).find(|folder| folder.join("stand_in").is_dir());
        let folder = ours.ok_or_else(|| {
            format!(
                "error: the stand-in's device headers are in none of the folders to include, {folders:?}: set CUDA_PATH \
                 to the folder that `cargo xtask stand-in` prints"
            )
        })?;
        let texts =
            cache::texts_below(folder).map_err(|error| format!("error: {}: {error}", folder.display()))?;
        Ok(Self { folder: folder.to_owned(), texts })
    }
}
