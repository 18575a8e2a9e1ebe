//! Frozen matrices in fewer bits: bf16, tiles of eight bits, or tiles of four (`QLoRA`'s NF4).
//!
//! The host encodes once, as weights are read: every device and budget holds the same bits. Each use decodes
//! (`a_packed_base_has_the_bits_of_its_decoded_weights`). Embeddings, head and vectors are not packed.

use std::collections::HashMap;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::module::{AutodiffModule, Module, Param, ParamId};
use burn::tensor::{DType, Shape, Tensor, TensorData, backend::Backend};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::block::Block;
use crate::gpt::Gpt;
use crate::layers::Linear;
use crate::precision::Compute;
use crate::tape::{Saved, node};
use crate::tiles::{Code, NF4, NF4_TILE, TILE, Tiles};

/// Form of the frozen matrices under adapters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BaseForm {
    /// The compute type.
    #[default]
    Computed,
    /// Two bytes a number.
    Bf16,
    /// 8-bit integers and an f32 scale per 128.
    Int8,
    /// 4-bit codes of NF4's table and an f32 scale per 64.
    Nf4,
}

impl BaseForm {
    /// Whether each use decodes.
    pub fn is_packed(self, compute: Compute) -> bool {
        match self {
            Self::Computed => false,
            Self::Bf16 => compute != Compute::Bf16,
            Self::Int8 | Self::Nf4 => true,
        }
    }

    /// Bytes of a matrix of `numbers`.
    pub fn bytes(self, numbers: u64, compute: Compute) -> u64 {
        let tiles = |tile: usize, codes: usize| numbers.div_ceil(tile as u64) * (codes as u64 + SCALE);
        match self {
            Self::Computed => numbers.saturating_mul(compute.bytes()),
            Self::Bf16 => numbers.saturating_mul(2),
            Self::Int8 => tiles(TILE, TILE),
            Self::Nf4 => tiles(NF4_TILE, NF4_TILE / 2),
        }
    }

    /// Numbers that a decoding's piece holds in f32, beside the matrix.
    pub fn decoded_at_once(self) -> u64 {
        match self {
            Self::Computed | Self::Bf16 => 0,
            Self::Int8 => (AT_ONCE * TILE) as u64,
            Self::Nf4 => (AT_ONCE * NF4_TILE) as u64,
        }
    }

    /// `numbers` as each use decodes them.
    pub(crate) fn rounded(self, numbers: Vec<f32>) -> Vec<f32> {
        let len = numbers.len();
        let mut decoded = match self {
            Self::Computed => return numbers,
            Self::Bf16 => {
                let narrow = TensorData::new(numbers, [len]).convert_dtype(DType::BF16);
                return narrow.convert_dtype(DType::F32).into_vec().expect("it was converted to f32");
            }
            Self::Int8 => {
                let (codes, scales) = int8(&numbers);
                let value = |(n, code): (usize, &i8)| f32::from(*code) * scales[n / TILE];
                codes.iter().enumerate().map(value).collect::<Vec<_>>()
            }
            Self::Nf4 => {
                let (codes, scales) = nf4(&numbers);
                let each = codes.iter().flat_map(|code| [(*code as u8) >> 4, (*code as u8) & 15]);
                each.enumerate().map(|(n, code)| NF4[usize::from(code)] * scales[n / NF4_TILE]).collect()
            }
        };
        decoded.truncate(len);
        decoded
    }
}

const SCALE: u64 = size_of::<f32>() as u64;

/// Tiles decoded at once. Affects no bits.
const AT_ONCE: usize = 1 << 15;

const TOP: f32 = 127.0;

fn int8(numbers: &[f32]) -> (Vec<i8>, Vec<f32>) {
    let tile = |numbers: &[f32]| {
        let scale = largest(numbers) / TOP;
        let is_tiny = scale < f32::MIN_POSITIVE;
        let code = |number: f32| (number / scale + 0.5).floor().clamp(-TOP, TOP) as i8;
        let mut codes = [0; TILE];
        if !is_tiny {
            codes.iter_mut().zip(numbers).for_each(|(to, number)| *to = code(*number));
        }
        (codes, if is_tiny { 0.0 } else { scale })
    };
    let (codes, scales): (Vec<_>, _) = numbers.par_chunks(TILE).map(tile).unzip();
    (codes.into_flattened(), scales)
}

/// Two codes a byte, the first in its high half.
fn nf4(numbers: &[f32]) -> (Vec<i8>, Vec<f32>) {
    let borders: [f32; 15] = std::array::from_fn(|n| f32::midpoint(NF4[n], NF4[n + 1]));
    let zero = NF4.iter().position(|value| *value == 0.0).expect("NF4 has a zero");
    let tile = |numbers: &[f32]| {
        let scale = largest(numbers);
        let is_tiny = scale < f32::MIN_POSITIVE;
        let code = |number: Option<&f32>| match number {
            Some(number) if !is_tiny => borders.partition_point(|border| *border < number / scale),
            _ => zero,
        };
        let codes: [i8; NF4_TILE / 2] = std::array::from_fn(|n| {
            (code(numbers.get(2 * n)) << 4 | code(numbers.get(2 * n + 1))) as u8 as i8
        });
        (codes, if is_tiny { 0.0 } else { scale })
    };
    let (codes, scales): (Vec<_>, _) = numbers.par_chunks(NF4_TILE).map(tile).unzip();
    (codes.into_flattened(), scales)
}

fn largest(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0, |most, number| most.max(number.abs()))
}

#[derive(Module, Debug)]
enum Form<B: Backend> {
    Bf16(Tensor<B, 2>),
    Int8(Tiles<B>),
    Nf4(Tiles<B>),
}

/// A frozen matrix, decoded for each use.
#[derive(Module, Debug)]
pub struct Packed<B: Backend> {
    form: Form<B>,
    #[module(skip)]
    shape: [usize; 2],
    #[module(skip)]
    compute: Compute,
}

impl<B: Backend> Packed<B> {
    pub(crate) fn new(
        base: BaseForm,
        numbers: Vec<f32>,
        shape: [usize; 2],
        compute: Compute,
        device: &B::Device,
    ) -> Option<Self> {
        let tiles = |(codes, scales): (Vec<i8>, Vec<f32>)| {
            let tiles = scales.len();
            let width = codes.len() / tiles.max(1);
            Tiles {
                codes: Tensor::from_data(TensorData::new(codes, [tiles, width]), (device, DType::I8)),
                scales: Tensor::from_data(TensorData::new(scales, [tiles, 1]), (device, DType::F32)),
            }
        };
        let form = match base {
            _ if !base.is_packed(compute) => return None,
            BaseForm::Computed => return None,
            BaseForm::Bf16 => {
                let narrow = TensorData::new(numbers, shape).convert_dtype(DType::BF16);
                Form::Bf16(Tensor::from_data(narrow, (device, DType::BF16)))
            }
            BaseForm::Int8 => Form::Int8(tiles(int8(&numbers))),
            BaseForm::Nf4 => Form::Nf4(tiles(nf4(&numbers))),
        };
        Some(Self { form, shape, compute })
    }

    /// The matrix in the compute type.
    pub fn weights(&self) -> Tensor<B, 2> {
        let kind = match self.compute {
            Compute::F32 => DType::F32,
            Compute::Bf16 => DType::BF16,
            Compute::F16 => DType::F16,
        };
        let decoded = |tiles: &Tiles<B>, code| tiles.decode_by(AT_ONCE, code, Shape::new(self.shape), kind);
        match &self.form {
            Form::Bf16(narrow) => narrow.clone().cast(kind),
            Form::Int8(tiles) => decoded(tiles, Code::Int8),
            Form::Nf4(tiles) => decoded(tiles, Code::Nf4),
        }
    }

    pub(crate) fn product(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.compute.product(x, self.weights())
    }
}

/// As the product with stored weights, but the tape keeps none: the backward pass decodes again.
pub(crate) fn product<I: Backend, C: CheckpointStrategy>(
    x: Tensor<Autodiff<I, C>, 2>,
    packed: &Packed<Autodiff<I, C>>,
) -> Tensor<Autodiff<I, C>, 2> {
    let packed = packed.valid();
    node([x], |[x]| (packed.product(x), Product(packed)))
}

#[derive(Debug, Clone)]
struct Product<I: Backend>(Packed<I>);

impl<I: Backend> Saved<I, 2, 1> for Product<I> {
    fn gradients(self, grad: Tensor<I, 2>) -> [Tensor<I, 2>; 1] {
        [self.0.compute.narrow(grad).matmul(self.0.weights().transpose())]
    }
}

impl<B: Backend> Linear<B> {
    /// The parameter becomes NaN without memory.
    pub(crate) fn pack(&mut self, base: BaseForm, compute: Compute, numbers: Vec<f32>) {
        let (shape, device) = (self.weight.lazy_shape().dims(), self.weight.lazy_device());
        self.packed = Packed::new(base, numbers, shape, compute, &device);
        if self.packed.is_some() {
            let nothing = Tensor::<B, 2>::full([1, 1], f32::NAN, &device).expand(shape);
            self.weight = Param::initialized(self.weight.id, nothing).set_require_grad(false);
        }
    }
}

impl<B: Backend> Gpt<B> {
    /// For weights that never learn again: packs block projections as `base`, and casts other factors of products to
    /// the compute type. Packed or narrow ones stay.
    #[must_use]
    pub fn frozen(self, base: BaseForm) -> Self {
        self.with_frozen_blocks(base).narrowed()
    }

    /// As [`frozen`](Self::frozen), with a table and a head that stay wide.
    #[must_use]
    pub fn with_frozen_blocks(mut self, base: BaseForm) -> Self {
        let compute = self.config.compute;
        if base.is_packed(compute) {
            for projection in self.blocks.iter_mut().flat_map(Block::projections_mut) {
                if projection.packed.is_none() {
                    let numbers = numbers(&projection.weight);
                    projection.pack(base, compute, numbers);
                }
            }
        }
        self.with_narrow_blocks()
    }

    /// The packed projections.
    pub fn packed(&self) -> HashMap<ParamId, Packed<B>> {
        let projections = self.blocks.iter().flat_map(Block::projections);
        projections
            .filter_map(|projection| Some((projection.weight.id, projection.packed.clone()?)))
            .collect()
    }

    /// Rounds block projections to what [`Gpt::frozen`] decodes.
    #[must_use]
    pub fn rounded(mut self, base: BaseForm) -> Self {
        if base != BaseForm::Computed {
            for projection in self.blocks.iter_mut().flat_map(Block::projections_mut) {
                let rounded = base.rounded(numbers(&projection.weight));
                projection.weight = projection.weight.clone().map(|weight| {
                    let data = TensorData::new(rounded, weight.shape());
                    Tensor::from_data(data, &weight.device()).set_require_grad(weight.is_require_grad())
                });
            }
        }
        self
    }
}

/// A dry run has none.
pub(crate) fn numbers<B: Backend>(weight: &Param<Tensor<B, 2>>) -> Vec<f32> {
    if !weight.is_initialized() {
        return vec![0.0; weight.lazy_shape().num_elements()];
    }
    let data = weight.val().into_data().convert_dtype(DType::F32);
    data.into_vec().expect("the data was just converted to f32")
}

#[cfg(test)]
mod tests {
    use burn::backend::{Flex, flex::FlexDevice};

    use super::*;
    use crate::random::Random;
    use crate::tiles::Rounding;

    const FORMS: [BaseForm; 3] = [BaseForm::Bf16, BaseForm::Int8, BaseForm::Nf4];

    fn drawn(count: usize) -> Vec<f32> {
        let mut random = Random::new(5);
        (0..count).map(|_| random.normal() as f32 * 0.02).collect()
    }

    fn packed(base: BaseForm, numbers: &[f32], compute: Compute) -> Packed<Flex> {
        let shape = [numbers.len() / 7, 7];
        Packed::new(base, numbers.to_vec(), shape, compute, &FlexDevice).expect("it is packed")
    }

    fn decoded(packed: &Packed<Flex>) -> Vec<f32> {
        packed.weights().into_data().iter().collect()
    }

    #[test]
    fn nf4_rounds_to_the_nearest_published_value_times_the_tiles_largest_magnitude() {
        // QLoRA, appendix E.
        let published = [
            -1.0,
            -0.696_192_800_998_687_7,
            -0.525_073_051_452_636_7,
            -0.394_917_488_098_144_5,
            -0.284_441_381_692_886_35,
            -0.184_773_430_228_233_34,
            -0.091_050_036_251_544_95,
            0.0,
            0.079_580_299_556_255_34,
            0.160_930_201_411_247_25,
            0.246_112_301_945_686_34,
            0.337_915_241_718_292_24,
            0.440_709_829_330_444_34,
            0.562_617_003_917_694_1,
            0.722_956_836_223_602_3,
            1.0_f64,
        ];
        for (ours, theirs) in NF4.iter().zip(published) {
            assert_eq!(ours.to_bits(), (theirs as f32).to_bits());
        }

        let numbers = drawn(7 * 301);
        let back = decoded(&packed(BaseForm::Nf4, &numbers, Compute::F32));
        for (tile, back) in numbers.chunks(NF4_TILE).zip(back.chunks(NF4_TILE)) {
            let scale = tile.iter().fold(0.0_f64, |most, x| most.max(f64::from(*x).abs()));
            for (x, back) in tile.iter().zip(back) {
                let off = |value: &f64| (f64::from(*x) - value * scale).abs();
                let nearest =
                    published.into_iter().min_by(|a, b| off(a).total_cmp(&off(b))).expect("sixteen");
                let apart = (f64::from(*back) - nearest * scale).abs();
                assert!(apart <= 1e-7 * scale, "{x} became {back}, not {}", nearest * scale);
            }
        }
    }

    #[test]
    fn int8_codes_of_the_host_are_those_of_the_device() {
        let numbers = [drawn(7 * 200), vec![0.0; 140], vec![1e-40; 140]].concat();
        let Form::Int8(ours) = packed(BaseForm::Int8, &numbers, Compute::F32).form else { panic!("tiles") };
        let tensor =
            Tensor::<Flex, 1>::from_data(TensorData::new(numbers.clone(), [numbers.len()]), &FlexDevice);
        let theirs = Tiles::encode(tensor, Rounding::Nearest);
        ours.codes.into_data().assert_eq(&theirs.codes.into_data(), true);
        ours.scales.into_data().assert_eq(&theirs.scales.into_data(), true);
    }

    #[test]
    fn the_host_rounds_to_the_bits_that_the_device_decodes() {
        let numbers = drawn(7 * 333);
        for base in FORMS {
            let rounded = base.rounded(numbers.clone());
            assert_eq!(decoded(&packed(base, &numbers, Compute::F32)), rounded, "{base:?}");
            assert_ne!(rounded, numbers, "{base:?}");
            assert_eq!(base.rounded(rounded.clone()), rounded, "{base:?}: rounding twice");
        }
    }

    #[test]
    fn packed_bytes_are_counted_to_the_byte() {
        let numbers = drawn(7 * 333);
        for base in FORMS {
            let bytes = match packed(base, &numbers, Compute::F32).form {
                Form::Bf16(narrow) => narrow.into_data().bytes.len(),
                Form::Int8(tiles) | Form::Nf4(tiles) => {
                    tiles.codes.into_data().bytes.len() + tiles.scales.into_data().bytes.len()
                }
            };
            assert_eq!(base.bytes(numbers.len() as u64, Compute::F32), bytes as u64, "{base:?}");
        }
        assert_eq!(BaseForm::Nf4.bytes(1 << 20, Compute::Bf16), (1 << 20) * 9 / 16);
    }

    #[test]
    fn a_matrix_larger_than_one_piece_is_decoded_whole() {
        let numbers = drawn(AT_ONCE * NF4_TILE + 7 * 10);
        let rounded = BaseForm::Nf4.rounded(numbers[..numbers.len() / 7 * 7].to_vec());
        let packed = packed(BaseForm::Nf4, &numbers[..numbers.len() / 7 * 7], Compute::F32);
        assert!(decoded(&packed) == rounded);
    }
}
