//! Safetensors files of weights and a trainer's tensors, read by name from a memory map.

use std::path::{Path, PathBuf};

use burn::tensor::{DType, TensorData, f16};
use memmap2::Mmap;
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, Metadata, TensorInfo, TensorView};

use super::WeightsError;

const MOST_HEADER_BYTES: u64 = 100_000_000;

/// The type of stored numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stored {
    /// Four bytes, lossless.
    #[default]
    F32,
    /// Two bytes, f32's range.
    Bf16,
    /// Two bytes, finer, up to 65,504.
    F16,
}

impl Stored {
    /// Its name in `transformers`, which otherwise loads f32.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
        }
    }

    pub(super) fn bytes(self) -> usize {
        self.types().0.bitsize() / 8
    }

    /// `numbers` in this type, in which all must be finite.
    pub(super) fn narrowed(self, name: &str, numbers: TensorData) -> Result<TensorData, WeightsError> {
        let numbers = finite(name, numbers)?.convert_dtype(self.types().1);
        if self == Self::F16 {
            let halves = numbers.as_slice::<f16>().expect("the data was just converted to f16");
            if !halves.iter().all(|half| half.is_finite()) {
                return Err(WeightsError::BeyondF16 { name: name.to_owned() });
            }
        }
        Ok(numbers)
    }

    pub(super) fn types(self) -> (Dtype, DType) {
        match self {
            Self::F32 => (Dtype::F32, DType::F32),
            Self::Bf16 => (Dtype::BF16, DType::BF16),
            Self::F16 => (Dtype::F16, DType::F16),
        }
    }
}

/// An open file of tensors.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    map: Mmap,
    header: Metadata,
    /// Offset of the first tensor.
    begin: usize,
}

impl TensorFile {
    /// Opens a file that is complete by its header. Reads no numbers.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let file = durable::regular::open(path)
            .map_err(|error| WeightsError::file("open weights in", path)(error.into()))?;
        // SAFETY: the map is read-only and private. Our writers rename files and never change them in place; foreign
        // truncation cannot be prevented.
        let map = unsafe { Mmap::map(&file) }.map_err(WeightsError::file("map weights in", path))?;
        let (begin, header) =
            header(&map).map_err(|source| WeightsError::Format { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), map, header, begin })
    }

    /// Type and shape of tensor `name`.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.header.info(name)
    }

    /// Number of tensors.
    pub fn count(&self) -> usize {
        self.header.offset_keys().len()
    }

    /// Tensor `name` as f32. Fails if it is missing or holds NaN or infinity.
    pub fn numbers(&self, name: &str) -> Result<TensorData, WeightsError> {
        let missing = || SafeTensorError::TensorNotFound(name.to_owned());
        let view = self.info(name).ok_or_else(missing).and_then(|info| self.view(info));
        numbers(name, &view.map_err(|source| WeightsError::Format { path: self.path.clone(), source })?)
    }

    pub(super) fn note(&self, key: &str) -> Option<&str> {
        self.header.metadata().as_ref()?.get(key).map(String::as_str)
    }

    pub(super) fn views(&self) -> Result<Vec<(String, TensorView<'_>)>, WeightsError> {
        let named = self.header.tensors().into_iter().map(|(name, info)| Ok((name, self.view(info)?)));
        named
            .collect::<Result<_, _>>()
            .map_err(|source| WeightsError::Format { path: self.path.clone(), source })
    }

    fn view(&self, info: &TensorInfo) -> Result<TensorView<'_>, SafeTensorError> {
        let (from, to) = info.data_offsets;
        TensorView::new(info.dtype, info.shape.clone(), &self.map[self.begin..][from..to])
    }
}

/// `SafeTensors::read_metadata` adds sizes without overflow checks.
fn header(file: &[u8]) -> Result<(usize, Metadata), SafeTensorError> {
    let (length, rest) = file.split_first_chunk().ok_or(SafeTensorError::HeaderTooSmall)?;
    let length = u64::from_le_bytes(*length);
    if length > MOST_HEADER_BYTES {
        return Err(SafeTensorError::HeaderTooLarge);
    }
    let (text, tensors) =
        rest.split_at_checked(length as usize).ok_or(SafeTensorError::InvalidHeaderLength)?;
    let header: Metadata =
        serde_json::from_slice(text).map_err(SafeTensorError::InvalidHeaderDeserialization)?;
    if header.data_len() != tensors.len() {
        return Err(SafeTensorError::MetadataIncompleteBuffer);
    }
    Ok((file.len() - tensors.len(), header))
}

pub(super) fn numbers(name: &str, view: &TensorView<'_>) -> Result<TensorData, WeightsError> {
    let dtype = float_type(name, view.dtype())?;
    let data = TensorData::from_bytes_vec(view.data().to_vec(), view.shape().to_vec(), dtype);
    finite(name, data.convert_dtype(DType::F32))
}

pub(super) fn float_type(name: &str, dtype: Dtype) -> Result<DType, WeightsError> {
    Ok(match dtype {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        other => return Err(WeightsError::Dtype { name: name.to_owned(), dtype: format!("{other:?}") }),
    })
}

pub(super) fn finite(name: &str, data: TensorData) -> Result<TensorData, WeightsError> {
    let data = data.convert_dtype(DType::F32);
    let numbers = data.as_slice::<f32>().expect("the data was just converted to f32");
    match numbers.iter().copied().find(|value| !value.is_finite()) {
        Some(value) => Err(WeightsError::NotFinite { name: name.to_owned(), value }),
        None => Ok(data),
    }
}
