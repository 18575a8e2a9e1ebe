//! Disk throughput of `fio` in a folder.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of fio's file.
pub const BYTES: usize = 1 << 30;

/// The folder on the command line, or the temporary one.
pub fn folder() -> PathBuf {
    // Cargo adds `--bench`.
    let named = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    named.map_or_else(std::env::temp_dir, PathBuf::from)
}

/// Bytes per second with `O_DIRECT`, at queue depth `under_way`. `direction`: "write", "read" (of the file that a
/// "write" left) or "rw" (half each).
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
    let terse = String::from_utf8_lossy(&output.stdout).into_owned();
    // fio's terse output, version 3: KiB/s of reads and writes.
    let speed = |field| terse.split(';').nth(field).and_then(|text| text.parse::<f64>().ok());
    let both = speed(6).zip(speed(47)).map(|(read, write)| (read + write) * 1024.0);
    both.filter(|speed| *speed > 0.0).ok_or_else(|| format!("fio said {terse:?}"))
}
