//! Formats of a parameter's state.

use serde::{Deserialize, Serialize};

use crate::codes::{BASES, BLOCK};

/// Memory and precision of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Master weights and moments in f32.
    #[default]
    F32,
    /// Master weights in f32; moments in bf16, rounded at random.
    Bf16Moments,
    /// 16 bits that complete a bf16 weight to an f32 master; moments in 8 bits with a base per block. `Bf16Moments`
    /// replaces it for f32 parameters and velocities.
    Compact,
}

impl Format {
    /// Bytes that a step of `len` elements reads and writes on the host, with gradient and weights, which are bf16 if
    /// `narrow`.
    pub fn step_bytes(self, len: u64, narrow: bool) -> u64 {
        let outside = if narrow { 4 * len } else { 8 * len };
        match self {
            Self::Compact if narrow => outside + 2 * len + 2 * self.host_bytes(len, narrow),
            _ => outside + 2 * self.host_bytes(len, narrow),
        }
    }

    /// Bytes of host memory for `len` elements; `narrow` for bf16 weights. Offsets of large parts add up to 3,200.
    pub fn host_bytes(self, len: u64, narrow: bool) -> u64 {
        match self {
            Self::F32 => 12 * len,
            Self::Compact if narrow => 4 * len + BASES as u64 * len.div_ceil(BLOCK as u64),
            Self::Bf16Moments | Self::Compact => 8 * len,
        }
    }

    /// [`host_bytes`](Self::host_bytes) for [`Sgd`](crate::Sgd).
    pub fn velocity_bytes(self, len: u64) -> u64 {
        match self {
            Self::F32 => 8 * len,
            Self::Bf16Moments | Self::Compact => 6 * len,
        }
    }
}
