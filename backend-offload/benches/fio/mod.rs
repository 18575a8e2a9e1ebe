//! Bytes per second that `fio` reaches on the disk of a folder.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of the file that it reads and writes.
pub const BYTES: usize = 1 << 30;

/// The folder that the command line names, or that of temporary files.
pub fn folder() -> PathBuf {
    // Cargo adds `--bench` of its own.
    let named = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    named.map_or_else(std::env::temp_dir, PathBuf::from)
}

/// Bytes per second around the system's cache, in pieces of so many bytes with so many under way. `direction` is "write", "read" of what
/// was written, or "rw": half of it each.
pub fn fio(folder: &Path, direction: &str, piece: usize, under_way: usize) -> Result<f64, String> {
    let file = folder.join("disk-speed.fio");
    let output = Command::new("fio")
        .args(["--name=pieces", "--direct=1", "--ioengine=io_uring", "--output-format=terse"])
        .args([format!("--iodepth={under_way}"), format!("--bs={piece}")])
        .args([format!("--size={BYTES}"), format!("--rw={direction}")])
        .arg(format!("--filename={}", file.display()))
        .output()
        .map_err(|error| format!("starting fio: {error}; install it"))?;
    if direction != "write" {
        _ = std::fs::remove_file(&file);
    }
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    // KiB per second of reads and of writes in the third version of fio's terse lines.
    let speed = |field| told.split(';').nth(field).and_then(|text| text.parse::<f64>().ok());
    let both = speed(6).zip(speed(47)).map(|(read, write)| (read + write) * 1024.0);
    both.filter(|speed| *speed > 0.0).ok_or_else(|| format!("fio said {told:?}"))
}
