//! Bytes per second between host memory and the disk below it, against what `fio` reaches there with pieces of the
//! same size and as many under way: `cargo bench -p backend-offload --bench disk_speed -- FOLDER`.

use std::path::Path;
use std::process::Command;

/// As the disk tier transfers them.
const PIECE: &str = "4M";
const UNDER_WAY: &str = "8";
const BYTES: usize = 1 << 30;
const ROUNDS: usize = 5;

fn main() -> Result<(), String> {
    // Cargo adds `--bench` of its own.
    let folder = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let folder = folder.unwrap_or_else(|| std::env::temp_dir().display().to_string());
    let folder = Path::new(&folder);
    println!("{}: {ROUNDS} rounds of {} MiB, GB/s", folder.display(), BYTES >> 20);
    println!("round,write,fio_write,read,fio_read");
    let mut shares = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        let own = backend_offload::disk_speed(folder, BYTES).map_err(|error| error.to_string())?;
        let (write, read) = (fio(folder, "write")?, fio(folder, "read")?);
        println!("{round},{:.3},{:.3},{:.3},{:.3}", own.write / 1e9, write / 1e9, own.read / 1e9, read / 1e9);
        shares[0].push(own.write / write);
        shares[1].push(own.read / read);
    }
    let [write, read] = shares.map(|mut shares| {
        shares.sort_by(f64::total_cmp);
        shares[ROUNDS / 2]
    });
    println!("median of fio's bytes per second: writing {write:.2}, reading {read:.2}");
    Ok(())
}

/// Bytes per second in one direction, around the system's cache.
fn fio(folder: &Path, direction: &str) -> Result<f64, String> {
    let file = folder.join("disk-speed.fio");
    let output = Command::new("fio")
        .args(["--name=pieces", "--direct=1", "--ioengine=io_uring", "--output-format=terse"])
        .args([format!("--iodepth={UNDER_WAY}"), format!("--bs={PIECE}")])
        .args([format!("--size={BYTES}"), format!("--rw={direction}")])
        .arg(format!("--filename={}", file.display()))
        .output()
        .map_err(|error| format!("starting fio: {error}; install it"))?;
    if direction == "read" {
        _ = std::fs::remove_file(&file);
    }
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    // KiB per second; the third version of fio's terse lines has reads before writes.
    let field = if direction == "read" { 6 } else { 47 };
    let speed = told.split(';').nth(field).and_then(|text| text.parse::<f64>().ok());
    speed.map(|kib| kib * 1024.0).ok_or_else(|| format!("fio said {told:?}"))
}
