//! Types of numbers in a GGUF file.

use burn::tensor::{TensorData, f16};

use crate::weights::tensors::finite;
use crate::weights::{Stored, WeightsError};

/// The type of a file's matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// Each number by itself.
    Plain(Stored),
    /// 34 bytes for 32 numbers: eight bits each, and one f16 scale.
    Q8_0,
}

/// Numbers that share a scale.
const BLOCK: usize = 32;

impl Numbers {
    pub(super) fn file_type(self) -> u32 {
        match self {
            Self::Plain(Stored::F32) => 0,
            Self::Plain(Stored::F16) => 1,
            Self::Plain(Stored::Bf16) => 32,
            Self::Q8_0 => 7,
        }
    }

    pub(super) fn tensor_type(self) -> u32 {
        match self {
            Self::Plain(Stored::F32) => 0,
            Self::Plain(Stored::F16) => 1,
            Self::Plain(Stored::Bf16) => 30,
            Self::Q8_0 => 8,
        }
    }

    pub(super) fn size(self, numbers: usize) -> usize {
        match self {
            Self::Plain(Stored::F32) => 4 * numbers,
            Self::Plain(Stored::F16 | Stored::Bf16) => 2 * numbers,
            Self::Q8_0 => numbers / BLOCK * (BLOCK + 2),
        }
    }

    /// A block of eight-bit numbers lies in one row; else f16.
    pub(super) fn for_rows_of(self, columns: usize) -> Self {
        let is_cut = self == Self::Q8_0 && !columns.is_multiple_of(BLOCK);
        if is_cut { Self::Plain(Stored::F16) } else { self }
    }

    pub(super) fn bytes(self, name: &str, values: TensorData) -> Result<Vec<u8>, WeightsError> {
        match self {
            Self::Plain(stored) => Ok(stored.narrowed(name, values)?.as_bytes().to_vec()),
            Self::Q8_0 => eight_bits(name, &finite(name, values)?),
        }
    }
}

fn eight_bits(name: &str, values: &TensorData) -> Result<Vec<u8>, WeightsError> {
    let values = values.as_slice::<f32>().expect("weights are f32");
    let mut bytes = Vec::with_capacity(Numbers::Q8_0.size(values.len()));
    for block in values.chunks_exact(BLOCK) {
        let largest = block.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let scale = largest / 127.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let stored = f16::from_f32(scale);
        if !stored.is_finite() {
            return Err(WeightsError::BeyondF16 { name: name.to_owned() });
        }
        bytes.extend(stored.to_le_bytes());
        bytes.extend(block.iter().map(|value| (value * inverse).round() as i8 as u8));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bits_are_off_by_at_most_half_a_step_of_their_block() {
        let values: Vec<f32> = (0..64).map(|at| (at as f32 * 0.37).sin() * (at / 32 + 1) as f32).collect();
        let bytes = Numbers::Q8_0.bytes("w", TensorData::new(values.clone(), [2, 32])).unwrap();
        assert_eq!(bytes.len(), Numbers::Q8_0.size(64));

        for (block, bytes) in values.chunks(32).zip(bytes.chunks(34)) {
            let scale = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
            for (value, byte) in block.iter().zip(&bytes[2..]) {
                let back = scale * f32::from(*byte as i8);
                // The scale is off by up to 2⁻¹¹: 0.06 of a step at 127 steps.
                assert!((value - back).abs() <= 0.57 * scale, "{value} became {back}");
            }
        }
    }

    #[test]
    fn a_block_of_zeros_and_one_below_every_scale_stay_finite() {
        let values = [vec![0.0_f32; 32], vec![1e-40; 32]].concat();
        let bytes = Numbers::Q8_0.bytes("w", TensorData::new(values, [64])).unwrap();
        assert_eq!(bytes[..34], [0; 34]);
        assert_eq!(bytes[34..36], [0, 0]);
    }

    #[test]
    fn a_number_beyond_f16_is_refused_where_the_type_cannot_hold_it() {
        let values = TensorData::new(vec![70_000.0_f32; 32], [32]);
        let refused = Numbers::Plain(Stored::F16).bytes("w", values.clone()).unwrap_err();
        assert!(matches!(refused, WeightsError::BeyondF16 { name } if name == "w"));
        assert!(Numbers::Plain(Stored::Bf16).bytes("w", values.clone()).is_ok());
        assert!(Numbers::Q8_0.bytes("w", values).is_ok());
    }
}
