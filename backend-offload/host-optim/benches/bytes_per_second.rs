//! Bytes per second of a step in each format, and of tiles' coding, relative to a copy.
//!
//! Run with `cargo bench -p host-optim`, optionally with `-- PARAMETERS`. Step and copy alternate: other load slows
//! both.

use std::hint::black_box;
use std::time::Instant;

use backend_offload::HostMemory;
use half::bf16;
use host_optim::{
    AdamW, Code, Format, HostState, Moments, Stride, TILE, Values, ValuesMut, decode_tiles, encode_tiles,
    tiles,
};
use rayon::prelude::*;

/// Exceeds the caches, yet takes milliseconds: some rounds run undisturbed.
const LEN: usize = 1 << 23;
const ROUNDS: usize = 60;
const RULE: AdamW = AdamW { betas: [0.9, 0.95], epsilon: 1e-8, weight_decay: 0.1 };

fn main() {
    let len = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(LEN);
    println!("{len} parameters, {} threads", rayon::current_num_threads());
    println!("{:<14} {:>15} {:>12} {:>12} {:>8}", "", "bytes/parameter", "GB/s", "copy GB/s", "ratio");

    let gradient: Vec<bf16> =
        (0..len).map(|n| bf16::from_f32(1e-3 * ((n as f32 * 0.754_877_7).fract() - 0.5))).collect();
    let mut weights = vec![bf16::ONE; len];
    for format in [Format::F32, Format::Bf16Moments, Format::Compact] {
        let bytes = format.step_bytes(len as u64, Moments::Two, true);
        let memory = HostMemory::unlimited();
        let mut state =
            HostState::new(&memory, "w", format, Values::Bf16(&weights)).expect("the machine has memory");
        compare_with_copy(&format!("{format:?}"), (bytes, len), || {
            state.arrive(Values::Bf16(&gradient)).expect("the machine has memory");
            let begun = Instant::now();
            state
                .step(RULE, Stride { lr: 1e-4, scale: 1.0 }, ValuesMut::Bf16(&mut weights))
                .expect("a gradient has arrived");
            begun.elapsed().as_secs_f64()
        });
    }

    drop((gradient, weights));
    let mut numbers: Vec<f32> = (0..len).map(|n| (n as f32 * 0.618).fract() - 0.5).collect();
    let (mut codes, mut scales) = (vec![0; TILE * tiles(len)], vec![0.0; tiles(len)]);
    let bytes = (size_of_val(&numbers[..]) + codes.len() + size_of_val(&scales[..])) as u64;
    for code in [Code::Int8, Code::Fp8] {
        compare_with_copy(&format!("{code:?} made"), (bytes, len), || {
            timed(|| encode_tiles(code, &numbers, &mut codes, &mut scales))
        });
        compare_with_copy(&format!("{code:?} read"), (bytes, len), || {
            timed(|| decode_tiles(code, &codes, &scales, &mut numbers))
        });
    }
}

fn timed(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_secs_f64()
}

/// `work` touches `bytes` for `len` parameters and returns its seconds.
fn compare_with_copy(name: &str, (bytes, len): (u64, usize), mut work: impl FnMut() -> f64) {
    let source = vec![1u8; bytes as usize / 2];
    let mut target = vec![0u8; bytes as usize / 2];
    let mut best = [f64::INFINITY; 2];
    for _ in 0..ROUNDS {
        best[0] = best[0].min(work());
        best[1] = best[1].min(timed(|| {
            let pieces = target.par_chunks_mut(1 << 20).zip(source.par_chunks(1 << 20));
            pieces.for_each(|(to, from)| to.copy_from_slice(from));
            black_box(&target);
        }));
    }
    let [speed, copy] = best.map(|seconds| bytes as f64 / seconds / 1e9);
    let each = bytes as f64 / len as f64;
    println!("{name:<14} {each:>15.2} {speed:>12.1} {copy:>12.1} {:>8.2}", speed / copy);
}
