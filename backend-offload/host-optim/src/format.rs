//! Formats in which a parameter's state is kept.

use serde::{Deserialize, Serialize};

use crate::chunks::{CHUNK, DiskBytes};
use crate::layout::{Layout, Moments};

/// Trade of memory against precision of the optimizer's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Master weights and moments in f32.
    #[default]
    F32,
    /// Master weights in f32, moments in bf16, rounded at random.
    Bf16Moments,
    /// The 16 bits that complete a bf16 weight to its f32 master; moments in 8 bits, counted from a base per block. The weights
    /// themselves are only in the tensor the device computes with. A parameter in f32, or one with a velocity, is kept as by
    /// `Bf16Moments`.
    Compact,
}

/// Elements whose 8-bit moments are counted from the same bases.
pub(crate) const BLOCK: usize = 256;
/// Bytes of a block's bases.
pub(crate) const BASES: usize = size_of::<[u16; 2]>();

impl Format {
    /// Bytes of host memory that one step of a parameter of `len` elements reads and writes: its gradient and its weights, in
    /// bf16 where it is `narrow`, and its state.
    pub fn step_bytes(self, len: u64, narrow: bool) -> u64 {
        let outside = if narrow { 4 * len } else { 8 * len };
        match self {
            // The weights are read, too, and the bases are next to nothing.
            Self::Compact if narrow => outside + 2 * len + 2 * self.host_bytes(len, narrow),
            _ => outside + 2 * self.host_bytes(len, narrow),
        }
    }

    /// Bytes of host memory for a parameter of `len` elements, `narrow` where the device computes with bf16 weights. Large states take
    /// up to 3,200 more, by which their parts begin apart.
    pub fn host_bytes(self, len: u64, narrow: bool) -> u64 {
        match self {
            Self::F32 => 12 * len,
            Self::Compact if narrow => 4 * len + BASES as u64 * len.div_ceil(BLOCK as u64),
            Self::Bf16Moments | Self::Compact => 8 * len,
        }
    }

    /// Bytes that a parameter's state takes on the disk. It has a `velocity` where it is stepped by [`Sgd`](crate::Sgd).
    pub fn disk_bytes(self, len: u64, narrow: bool, velocity: bool) -> DiskBytes {
        let moments = if velocity { Moments::Velocity } else { Moments::Two };
        DiskBytes::of(Layout::of(self, moments, narrow), len as usize, CHUNK)
    }

    /// [`host_bytes`](Self::host_bytes) of a parameter that is stepped by [`Sgd`](crate::Sgd).
    pub fn velocity_bytes(self, len: u64) -> u64 {
        match self {
            Self::F32 => 8 * len,
            Self::Bf16Moments | Self::Compact => 6 * len,
        }
    }
}
