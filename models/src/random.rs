//! Random numbers from a key alone, not from backend, thread or time.
//!
//! Backends' generators are process-wide: threads disturb each other, and bits differ. So the host draws weights, masks
//! and sampled tokens, from keys that name their purpose.

/// A stream of random numbers fixed by its key.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Equal keys give equal streams.
    pub fn new(key: u64) -> Self {
        Self { state: mix(key) }
    }

    /// A stream for `name` under `seed`.
    pub fn named(seed: u64, name: &str) -> Self {
        let folded = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self::new(combine(&[seed, folded]))
    }

    /// The stream after `count` draws of [`bits`](Self::bits), of which [`normal`](Self::normal) takes two.
    #[must_use]
    pub fn after(&self, count: u64) -> Self {
        Self { state: self.state.wrapping_add(count.wrapping_mul(GOLDEN)) }
    }

    /// Sixty-four random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Mean 0, variance 1.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// One key from several, in order.
pub fn combine(parts: &[u64]) -> u64 {
    parts.iter().fold(GOLDEN, |key, part| mix(key.wrapping_mul(3).wrapping_add(*part).wrapping_add(GOLDEN)))
}
