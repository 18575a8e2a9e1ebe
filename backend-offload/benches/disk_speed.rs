//! Disk throughput against `fio`, at the same piece size and queue depth: `cargo bench -p backend-offload -p host-optim
//! --bench disk_speed -- FOLDER`. Its namesake in host-optim steps optimizer states.

mod fio;

use fio::{BYTES, fio, folder};

const PIECE: usize = 4 << 20;
const UNDER_WAY: usize = 8;
const ROUNDS: usize = 5;

fn main() -> Result<(), String> {
    let folder = &folder();
    println!("{}: {ROUNDS} rounds of {} MiB, GB/s", folder.display(), BYTES >> 20);
    println!("round,write,fio_write,read,fio_read");
    let mut shares = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        let own = backend_offload::disk_speed(folder, BYTES).map_err(|error| error.to_string())?;
        let (write, read) = (fio(folder, "write", PIECE, UNDER_WAY)?, fio(folder, "read", PIECE, UNDER_WAY)?);
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
