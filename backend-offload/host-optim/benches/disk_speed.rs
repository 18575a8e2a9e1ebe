//! Bytes per second of steps with states on disk, against `fio` in the same folder, with chunk-sized blocks, one read
//! and one write at a time.
//!
//! Run with `cargo bench -p backend-offload -p host-optim --bench disk_speed -- FOLDER`.

#[path = "../../benches/fio/mod.rs"]
mod fio;

use std::path::Path;
use std::time::Instant;

use backend_offload::HostMemory;
use half::bf16;
use host_optim::{AdamW, Format, HostState, Moments, Stride, Values, ValuesMut};

use fio::{fio, folder};

const LEN: usize = 1 << 26;

const CHUNK: usize = 1 << 19;
const UNDER_WAY: usize = 2;
const ROUNDS: usize = 5;
const RULE: AdamW = AdamW { betas: [0.9, 0.95], epsilon: 1e-8, weight_decay: 0.1 };

fn main() -> Result<(), String> {
    let folder = &folder();
    println!("{}: {ROUNDS} rounds of a step of {LEN} parameters, GB/s", folder.display());
    println!("format,round,step,fio");
    for format in [Format::F32, Format::Bf16Moments, Format::Compact] {
        let mut shares = steps(folder, format)?;
        shares.sort_by(f64::total_cmp);
        println!("{format:?}: median of fio's bytes per second: {:.2}", shares[ROUNDS / 2]);
    }
    Ok(())
}

fn steps(folder: &Path, format: Format) -> Result<Vec<f64>, String> {
    let bytes = format.disk_bytes(LEN as u64, Moments::Two, true).on_disk();
    let message = |error: &dyn std::error::Error| error.to_string();
    let memory = HostMemory::above_disk(folder, bytes).map_err(|error| message(&error))?;
    let disk = memory.disk().expect("it was named");
    let gradient: Vec<_> =
        (0..LEN).map(|n| bf16::from_f32(1e-3 * ((n as f32 * 0.754_877_7).fract() - 0.5))).collect();
    let mut weights = vec![bf16::ONE; LEN];

    let mut state =
        HostState::new(&disk, "w", format, Values::Bf16(&weights)).map_err(|error| message(&error))?;
    let mut shares = Vec::new();
    for round in 0..ROUNDS {
        state.arrive(Values::Bf16(&gradient)).map_err(|error| message(&error))?;
        let begun = Instant::now();
        let stepped = state.step(RULE, Stride { lr: 1e-4, scale: 1.0 }, ValuesMut::Bf16(&mut weights));
        let own = 2.0 * bytes as f64 / begun.elapsed().as_secs_f64();
        stepped.map_err(|error| message(&error))?;
        let fio = fio(folder, "rw", bytes as usize / (LEN / CHUNK), UNDER_WAY)?;
        println!("{format:?},{round},{:.3},{:.3}", own / 1e9, fio / 1e9);
        shares.push(own / fio);
    }
    Ok(shares)
}
