//! A parameter's tensors on their device.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use backend_offload::{Decoding, HostBuffer, Managed};
use burn::tensor::{
    BasicOps, DType, DataError, Int, Shape, Tensor, TensorData, TensorPrimitive, backend::Backend,
    try_read_sync,
};
use half::bf16;

use crate::adamw::Stride;
use crate::chunks::Pipeline;
use crate::error::HostOptimError;
use crate::format::Format;
use crate::layout::Arrays;
use crate::numbers::{Values, ValuesMut, nearest};
use crate::pieces::convert;
use crate::rule::Rule;
use crate::saved::Saved;
use crate::state::{HostState, check_len};
use crate::storage::StateMemory;
use crate::tiles::{Code, TILE, decode, tile_bytes, tiles};

/// A gradient or share in transfer from the device.
#[derive(Debug)]
pub struct Incoming {
    form: Form,
    bytes: u64,
    /// The sum of `1 << level` shares.
    level: u32,
}

#[derive(Debug)]
enum Form {
    Numbers(Reading),
    Tiles { codes: Reading, scales: Reading, narrow: bool },
}

impl Incoming {
    /// Starts to read a share of the gradient of parameter `name`. With asynchronous copies it returns early; the
    /// transfer's end frees the tensor's memory.
    pub fn begin<B: Backend, const D: usize>(
        name: &str,
        share: Tensor<B, D>,
    ) -> Result<Self, HostOptimError> {
        let bytes = bytes(&share);
        Ok(Self { form: Form::Numbers(Reading::begin(name, share)?), bytes, level: 0 })
    }

    /// Of host memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Marks a sum of `1 << level` neighbouring shares in f32. Their first number must be a multiple of their count.
    #[must_use]
    pub fn at_level(self, level: u32) -> Self {
        Self { level, ..self }
    }

    /// [`begin`](Self::begin) for `Int8` tiles. The gradient is kept as f32, or as bf16 if `narrow`.
    pub fn begin_tiles<B: Backend>(
        name: &str,
        (codes, scales): TileTensors<B>,
        narrow: bool,
    ) -> Result<Self, HostOptimError> {
        let bytes = bytes(&codes) + bytes(&scales);
        let codes = Reading::begin(name, codes)?;
        let scales = Reading::begin(name, scales)?;
        Ok(Self { form: Form::Tiles { codes, scales, narrow }, bytes, level: 0 })
    }
}

fn bytes<B: Backend, const D: usize, K: BasicOps<B>>(tensor: &Tensor<B, D, K>) -> u64 {
    (tensor.shape().num_elements() * tensor.dtype().size()) as u64
}

enum Reading {
    Here(TensorData),
    UnderWay(Pin<Box<dyn Future<Output = Result<TensorData, HostOptimError>> + Send>>),
}

impl Reading {
    fn begin<B: Backend, const D: usize, K: BasicOps<B> + 'static>(
        name: &str,
        tensor: Tensor<B, D, K>,
    ) -> Result<Self, HostOptimError> {
        let (name, kind) = (name.to_owned(), tensor.dtype());
        let mut reading = Box::pin(async move {
            let data = tensor.into_data_async().await;
            let data = data.map_err(|error| unreadable(&name, error.to_string()))?;
            // Burn's router widens tensors to the backend's default type.
            Ok(if data.dtype == kind { data } else { data.convert_dtype(kind) })
        });
        match reading.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(data) => data.map(Self::Here),
            Poll::Pending => Ok(Self::UnderWay(reading)),
        }
    }

    fn wait(self) -> Result<TensorData, HostOptimError> {
        match self {
            Self::Here(data) => Ok(data),
            Self::UnderWay(reading) => try_read_sync(reading).expect("this thread can wait"),
        }
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Here(_) => "Here",
            Self::UnderWay(_) => "UnderWay",
        })
    }
}

impl HostState {
    /// Before the first step of `weights`, in f32 or bf16.
    pub fn from_tensor<B: Backend, const D: usize>(
        memory: impl Into<StateMemory>,
        name: &str,
        format: Format,
        weights: &Tensor<B, D>,
    ) -> Result<Self, HostOptimError> {
        let data = read(name, weights.clone())?;
        Self::new(memory, name, format, values(name, &data)?)
    }

    /// Master weights of a parameter with these `weights`.
    pub fn complete(&self, weights: TensorData) -> Result<TensorData, HostOptimError> {
        // They may have been read in a wider type.
        let weights = if self.reads_weights() { weights.convert_dtype(DType::BF16) } else { weights };
        let masters = self.masters(values(self.name(), &weights)?)?;
        Ok(TensorData::new(masters, weights.shape))
    }

    /// The saved state, and its parameter as a tensor of type `kind`. Only shape and device of `weights` matter.
    pub fn restore_tensor<B: Backend, const D: usize>(
        memory: impl Into<StateMemory>,
        name: &str,
        format: Format,
        saved: &Saved,
        weights: Tensor<B, D>,
        kind: DType,
    ) -> Result<(Self, Tensor<B, D>), HostOptimError> {
        let device = weights.device();
        let mut data = zeroed_data(name, weights, kind)?;
        let state = Self::restore(memory, name, format, saved, &mut values_mut(name, &mut data)?)?;
        let weights = state.memory.first(|| tensor_from_data(data, &device));
        Ok((state, weights))
    }

    /// Replaces the master weights, if there are any. Moments and gradient stay.
    pub(crate) fn replace_masters<B: Backend, const D: usize>(
        &mut self,
        weights: Tensor<B, D>,
    ) -> Result<(), HostOptimError> {
        if self.reads_weights() || self.memory.computes_nothing() {
            return Ok(());
        }
        let data = read(self.name(), weights)?;
        let weights = values(self.name(), &data)?;
        check_len(self.name(), "the parameter", self.len(), weights.len())?;
        self.with_own_pipeline(|state, pipeline| {
            state.storage.change(pipeline, state.layout, state.len, |range, arrays| {
                if let Arrays::F32 { masters, .. } | Arrays::Bf16Moments { masters, .. } = arrays {
                    replace(masters, weights.part(range));
                }
            })
        })
    }

    /// Receives a gradient, or a further share.
    pub fn arrive_tensor<B: Backend, const D: usize>(
        &mut self,
        share: Tensor<B, D>,
    ) -> Result<(), HostOptimError> {
        let share = Incoming::begin(self.name(), share)?;
        self.take_in(share)
    }

    /// [`arrive_tensor`](Self::arrive_tensor) for a transfer already begun.
    pub fn take_in(&mut self, share: Incoming) -> Result<(), HostOptimError> {
        match share.form {
            Form::Numbers(reading) => {
                let data = reading.wait()?;
                let data = if data.dtype == DType::BF16 { data } else { data.convert_dtype(DType::F32) };
                let numbers = values(self.name(), &data)?;
                self.arrive_sum(numbers, share.level)
            }
            Form::Tiles { codes, scales, narrow } => self.arrive_tiles(codes.wait()?, scales.wait()?, narrow),
        }
    }

    fn arrive_tiles(
        &mut self,
        codes: TensorData,
        scales: TensorData,
        narrow: bool,
    ) -> Result<(), HostOptimError> {
        let unusable = |error: DataError| unreadable(self.name(), format!("{error:?}"));
        let codes = codes.convert_dtype(DType::I8).into_vec::<i8>().map_err(unusable)?;
        let scales = scales.into_vec::<f32>().map_err(unusable)?;
        check_len(self.name(), "the gradient", TILE * tiles(self.len()), codes.len())?;
        check_len(self.name(), "the gradient's scales", tiles(self.len()), scales.len())?;
        let mut numbers = vec![0.0; self.len()];
        decode(Code::Int8, bytemuck::cast_slice(&codes), &scales, &mut numbers);
        if !narrow {
            return self.arrive(Values::F32(&numbers));
        }
        let mut rounded = vec![bf16::ZERO; numbers.len()];
        convert(&mut rounded, &numbers, nearest);
        self.arrive(Values::Bf16(&rounded))
    }

    /// Master weights in tiles. Fails if the format has none on the host.
    pub fn tiles<B: Managed>(
        &self,
        code: Code,
        device: &B::Device,
    ) -> Result<TileTensors<B>, HostOptimError> {
        self.check_has_masters()?;
        let mut encoded =
            self.memory.take(tile_bytes(self.len()), format_args!("the weights of {}", self.name()))?;
        if !self.memory.computes_nothing() {
            self.encode_masters(code, &mut encoded)?;
        }
        Ok(self.memory.first(|| new_tile_tensors(encoded, self.len(), device)))
    }

    /// [`HostState::step`] on tensors. Keeps the type of `weights`.
    pub fn step_tensor<B: Backend, const D: usize>(
        &mut self,
        rule: impl Into<Rule>,
        stride: Stride,
        weights: Tensor<B, D>,
    ) -> Result<Tensor<B, D>, HostOptimError> {
        self.change_tensor(weights, |state, weights| state.step(rule, stride, weights))
    }

    /// [`step_tensor`](Self::step_tensor) in `pipeline`: the state is stored once that ends.
    pub(crate) fn step_tensor_in<B: Backend, const D: usize>(
        &mut self,
        pipeline: &mut Pipeline,
        rule: &Rule,
        stride: Stride,
        weights: Tensor<B, D>,
    ) -> Result<Tensor<B, D>, HostOptimError> {
        self.change_tensor(weights, |state, weights| {
            state.step_in(pipeline, rule, stride, weights)?;
            state.storage.when_written(pipeline, || {});
            Ok(())
        })
    }

    fn change_tensor<B: Backend, const D: usize>(
        &mut self,
        weights: Tensor<B, D>,
        change: impl FnOnce(&mut Self, ValuesMut<'_>) -> Result<(), HostOptimError>,
    ) -> Result<Tensor<B, D>, HostOptimError> {
        let (device, kind) = (weights.device(), weights.dtype());
        let mut data = if self.reads_weights() {
            read(self.name(), weights)?
        } else {
            zeroed_data(self.name(), weights, kind)?
        };
        let name = self.name().to_owned();
        change(self, values_mut(&name, &mut data)?)?;
        Ok(self.memory.first(|| tensor_from_data(data, &device)))
    }
}

/// A bf16 weight that its master rounds to has not changed: the master keeps its lower half.
fn replace(masters: &mut [f32], weights: Values<'_>) {
    match weights {
        Values::F32(weights) => masters.copy_from_slice(weights),
        Values::Bf16(weights) => {
            for (master, weight) in masters.iter_mut().zip(weights) {
                if nearest(*master) != *weight {
                    *master = weight.to_f32();
                }
            }
        }
    }
}

/// Reads a tensor; an error names the parameter.
pub fn read<B: Backend, const D: usize>(
    name: &str,
    tensor: Tensor<B, D>,
) -> Result<TensorData, HostOptimError> {
    Reading::begin(name, tensor)?.wait()
}

/// Frees the tensor's memory.
fn zeroed_data<B: Backend, const D: usize>(
    name: &str,
    tensor: Tensor<B, D>,
    kind: DType,
) -> Result<TensorData, HostOptimError> {
    let shape = tensor.shape();
    drop(tensor);
    let len = shape.num_elements();
    match kind {
        DType::F32 => Ok(TensorData::new(vec![0.0f32; len], shape)),
        DType::BF16 => Ok(TensorData::new(bytemuck::zeroed_vec::<bf16>(len), shape)),
        other => Err(unreadable(name, unsupported(other))),
    }
}

/// Codes, `[tiles, 128]` of a byte each, and scales, `[tiles, 1]`.
pub type TileTensors<B> = (Tensor<B, 2, Int>, Tensor<B, 2>);

/// Decodes tiles with one kernel and no extra memory; `None` unless the backend is based on CubeCL. The product is
/// rounded to f32, then to `kind`.
pub fn decoded_by_kernel<B: Managed, const D: usize>(
    (codes, scales): TileTensors<B>,
    code: Code,
    shape: Shape,
    kind: DType,
) -> Option<Tensor<B, D>> {
    let decoding = Decoding { tile: TILE, floating: code == Code::Fp8, shape, kind };
    let numbers = B::decode_tiles(codes.into_primitive(), scales.into_primitive().tensor(), &decoding)?;
    Some(Tensor::from_primitive(TensorPrimitive::Float(numbers)))
}

/// Tensors from bytes: all codes, then all scales.
///
/// # Panics
/// If the number of bytes is not [`tile_bytes`] of `len`.
pub fn tile_tensors<B: Managed>(encoded: &[u8], len: usize, device: &B::Device) -> TileTensors<B> {
    assert_eq!(encoded.len(), tile_bytes(len), "the bytes of {len} numbers");
    let (codes, scales) = encoded.split_at(TILE * tiles(len));
    let (codes, scales): (Vec<i8>, Vec<f32>) =
        (bytemuck::cast_slice(codes).to_vec(), bytemuck::pod_collect_to_vec(scales));
    let count = scales.len();
    tiled(TensorData::new(codes, [count, TILE]), TensorData::new(scales, [count, 1]), device)
}

/// [`tile_tensors`] of a buffer whose memory goes along, if it can.
pub(crate) fn new_tile_tensors<B: Managed>(
    encoded: HostBuffer,
    len: usize,
    device: &B::Device,
) -> TileTensors<B> {
    let bytes = match encoded.into_bytes() {
        Ok(bytes) => bytes,
        Err(encoded) => return tile_tensors(&encoded, len, device),
    };
    let count = tiles(len);
    match bytes.split(TILE * count) {
        Ok((codes, scales)) => tiled(
            TensorData::from_bytes(codes, [count, TILE], DType::I8),
            TensorData::from_bytes(scales, [count, 1], DType::F32),
            device,
        ),
        Err((bytes, _)) => tile_tensors(&bytes, len, device),
    }
}

fn tiled<B: Managed>(codes: TensorData, scales: TensorData, device: &B::Device) -> TileTensors<B> {
    (Tensor::from_primitive(B::int_without_copy(codes, device)), new_tensor(scales, device))
}

pub(crate) fn tensor_from_data<B: Backend, const D: usize>(
    data: TensorData,
    device: &B::Device,
) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(B::float_from_data(data, device)))
}

/// [`tensor_from_data`] of data whose memory goes along.
pub(crate) fn new_tensor<B: Managed, const D: usize>(data: TensorData, device: &B::Device) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(B::float_without_copy(data, device)))
}

fn values<'d>(name: &str, data: &'d TensorData) -> Result<Values<'d>, HostOptimError> {
    let read = match data.dtype {
        DType::F32 => data.as_slice().map(Values::F32),
        DType::BF16 => data.as_slice().map(Values::Bf16),
        other => return Err(unreadable(name, unsupported(other))),
    };
    read.map_err(|error| unreadable(name, format!("{error:?}")))
}

fn values_mut<'d>(name: &str, data: &'d mut TensorData) -> Result<ValuesMut<'d>, HostOptimError> {
    let read = match data.dtype {
        DType::F32 => data.as_mut_slice().map(ValuesMut::F32),
        DType::BF16 => data.as_mut_slice().map(ValuesMut::Bf16),
        other => return Err(unreadable(name, unsupported(other))),
    };
    read.map_err(|error| unreadable(name, format!("{error:?}")))
}

pub(crate) fn check_dtype(name: &str, kind: DType) -> Result<(), HostOptimError> {
    match kind {
        DType::F32 | DType::BF16 => Ok(()),
        other => Err(unreadable(name, unsupported(other))),
    }
}

fn unsupported(kind: DType) -> String {
    format!("its elements are {kind:?}; the host optimizer keeps parameters in f32 or bf16")
}

fn unreadable(name: &str, reason: String) -> HostOptimError {
    HostOptimError::Unreadable { name: name.to_owned(), reason }
}
