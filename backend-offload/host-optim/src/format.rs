//! Formats of a parameter's state.

use serde::{Deserialize, Serialize};

use crate::layout::{Layout, Moments};

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
    pub fn step_bytes(self, len: u64, moments: Moments, narrow: bool) -> u64 {
        let outside = if narrow { 4 * len } else { 8 * len };
        let completes = Layout::new(self, moments, narrow).format == Self::Compact;
        let completed = if completes { 2 * len } else { 0 };
        outside + completed + 2 * self.bytes(len, moments, narrow)
    }

    /// Bytes of host memory for `len` elements; `narrow` for bf16 weights. Offsets of large parts add up to 3,200.
    pub fn bytes(self, len: u64, moments: Moments, narrow: bool) -> u64 {
        let parts = Layout::new(self, moments, narrow).bytes(len as usize);
        parts.into_iter().map(|bytes| bytes as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::{BASES, BLOCK};

    #[test]
    fn each_format_takes_its_stated_bytes_a_parameter() {
        let len = 10 * BLOCK as u64 + 1;
        let bases = 11 * BASES as u64;
        for (format, moments, narrow, bytes) in [
            (Format::F32, Moments::Two, false, 12 * len),
            (Format::F32, Moments::Two, true, 12 * len),
            (Format::Bf16Moments, Moments::Two, false, 8 * len),
            (Format::Bf16Moments, Moments::Two, true, 8 * len),
            (Format::Compact, Moments::Two, false, 8 * len),
            (Format::Compact, Moments::Two, true, 4 * len + bases),
            (Format::F32, Moments::Velocity, true, 8 * len),
            (Format::Bf16Moments, Moments::Velocity, false, 6 * len),
            (Format::Compact, Moments::Velocity, true, 6 * len),
            (Format::F32, Moments::None, false, 0),
        ] {
            assert_eq!(format.bytes(len, moments, narrow), bytes, "{format:?} {moments:?} {narrow}");
        }
        // States read and written, gradient and weights; the compact format reads the weights, too.
        let step = |moments| Format::Compact.step_bytes(len, moments, true);
        assert_eq!(step(Moments::Two), 4 * len + 2 * len + 2 * (4 * len + bases));
        assert_eq!(step(Moments::Velocity), 4 * len + 2 * 6 * len);
    }
}
