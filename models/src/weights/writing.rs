//! Writes safetensors files, one tensor at a time. Several processes may write one file, each its own tensors.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use burn::tensor::TensorData;
use safetensors::tensor::{Metadata, TensorInfo};

use super::WeightsError;
use super::tensors::Stored;

/// Fetches a tensor's numbers.
pub type Fetch<'w> = Box<dyn Fn() -> Result<TensorData, WeightsError> + 'w>;

/// A tensor to write.
pub struct Outgoing<'w> {
    /// Dimensions in the file.
    pub shape: Vec<usize>,
    /// Called when the file reaches this tensor.
    pub fetch: Fetch<'w>,
}

pub(super) enum WriteError {
    Tensor(WeightsError),
    File(io::Error),
}

impl WriteError {
    pub(super) fn at(self, path: &Path) -> WeightsError {
        match self {
            Self::Tensor(error) => error,
            Self::File(error) => WeightsError::file("write weights to", path)(error),
        }
    }
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

/// Writes a whole file with one note in the header: several would be in hash-map order, and equal models make equal
/// files.
pub(super) fn write(
    path: &Path,
    tensors: BTreeMap<String, Outgoing<'_>>,
    stored: Stored,
    note: Option<(&str, String)>,
) -> Result<(), WriteError> {
    Begun::new(path, tensors, stored, note)?.write_except(|_| false)
}

/// A file with its header and its length, but without numbers. Not synced, and failures leave a partial file: for folders
/// renamed once complete.
#[must_use]
pub struct Begun<'w> {
    path: PathBuf,
    file: File,
    tensors: BTreeMap<String, Outgoing<'w>>,
    header: Metadata,
    /// Where the first tensor begins.
    first: u64,
    stored: Stored,
}

impl<'w> Begun<'w> {
    pub(super) fn new(
        path: &Path,
        tensors: BTreeMap<String, Outgoing<'w>>,
        stored: Stored,
        note: Option<(&str, String)>,
    ) -> io::Result<Self> {
        let (dtype, _) = stored.types();
        let mut end = 0;
        let infos = tensors.iter().map(|(name, tensor)| {
            let begin = end;
            end += tensor.shape.iter().product::<usize>() * stored.bytes();
            (name.clone(), TensorInfo { dtype, shape: tensor.shape.clone(), data_offsets: (begin, end) })
        });

        let notes = note.map(|(key, text)| HashMap::from([(key.to_owned(), text)]));
        let header =
            Metadata::new(notes, infos.collect()).expect("each tensor begins where the one before ends");
        let mut text = serde_json::to_vec(&header).expect("names and numbers are JSON");
        // Aligned: readers map numbers in place.
        text.resize(text.len().next_multiple_of(8), b' ');

        let mut file = File::create(path)?;
        file.write_all(&(text.len() as u64).to_le_bytes())?;
        file.write_all(&text)?;
        let first = file.stream_position()?;
        file.set_len(first + end as u64)?;
        Ok(Self { path: path.to_owned(), file, tensors, header, first, stored })
    }

    /// Begins a file of f32.
    pub fn with(path: &Path, tensors: BTreeMap<String, Outgoing<'w>>) -> Result<Self, WeightsError> {
        Self::new(path, tensors, Stored::F32, None).map_err(|error| WriteError::from(error).at(path))
    }

    /// Where in the file tensor `name` begins.
    pub fn place(&self, name: &str) -> Option<u64> {
        self.header.info(name).map(|info| self.first + info.data_offsets.0 as u64)
    }

    /// Writes the numbers of all tensors but those that another process writes, as [`Joined`].
    pub fn finish(self, is_elsewhere: impl Fn(&str) -> bool) -> Result<(), WeightsError> {
        let path = self.path.clone();
        self.write_except(is_elsewhere).map_err(|error| error.at(&path))
    }

    fn write_except(mut self, is_elsewhere: impl Fn(&str) -> bool) -> Result<(), WriteError> {
        for (name, tensor) in self.tensors.iter().filter(|(name, _)| !is_elsewhere(name)) {
            let place = self.place(name).expect("the header has all tensors");
            let numbers = (tensor.fetch)().map_err(WriteError::Tensor)?;
            put(&mut self.file, (name, place), self.stored, numbers)?;
        }
        Ok(())
    }
}

fn put(
    file: &mut File,
    (name, place): (&str, u64),
    stored: Stored,
    numbers: TensorData,
) -> Result<(), WriteError> {
    let numbers = stored.narrowed(name, numbers).map_err(WriteError::Tensor)?;
    file.seek(SeekFrom::Start(place))?;
    Ok(file.write_all(numbers.as_bytes())?)
}

/// A file of f32 that another process has [begun](Begun).
pub struct Joined {
    path: PathBuf,
    file: File,
}

impl Joined {
    /// Opens the file.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let opened = OpenOptions::new().write(true).open(path);
        let file = opened.map_err(WeightsError::file("write weights to", path))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Writes the numbers of tensor `name`, which begins at `place`.
    pub fn write(&mut self, name: &str, place: u64, numbers: TensorData) -> Result<(), WeightsError> {
        put(&mut self.file, (name, place), Stored::F32, numbers).map_err(|error| error.at(&self.path))
    }

    /// Waits until the numbers are on the disk.
    pub fn sync(self) -> Result<(), WeightsError> {
        self.file.sync_all().map_err(WeightsError::file("write weights to", &self.path))
    }
}
