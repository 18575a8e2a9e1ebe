//! Published weights into a native file, in a few copies of the largest tensor's memory
//! (`weights_are_converted_with_a_few_tensors_in_memory`).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::{DType, TensorData};

use super::directory::{config_and_layout, files};
use super::names::{Arrangement, Naming};
use super::store::{Source, checked_views, described};
use super::tensors::{Stored, TensorFile, float_type};
use super::writing::{self, Fetch, Outgoing};
use super::{Layout, WeightsError};
use crate::config::{GptConfig, Positions};
use crate::error::ConfigError;
use crate::parameters::ParameterInfo;

/// A folder of weights in either layout.
#[derive(Debug)]
pub struct Incoming {
    config: GptConfig,
    layout: Layout,
    path: PathBuf,
    files: Vec<TensorFile>,
}

impl Incoming {
    /// Checks names, shapes and types of all tensors. Reads no numbers.
    pub fn open(directory: &Path) -> Result<Self, WeightsError> {
        let (config, layout) = config_and_layout(directory)?;
        let paths = files(directory, layout)?;
        let files = paths.iter().map(|path| TensorFile::open(path)).collect::<Result<Vec<_>, _>>()?;
        let path = paths.into_iter().next().unwrap_or_default();
        checked_views(&config, &path, &files, layout)?;
        Ok(Self { config, layout, path, files })
    }

    /// The model's configuration.
    pub fn config(&self) -> &GptConfig {
        &self.config
    }

    /// Shortens the context of rotary positions, which are no weights.
    pub fn shorten(&mut self, n_positions: usize) -> Result<(), ConfigError> {
        let (has, positions) = (self.config.n_positions, self.config.positions);
        if positions != Positions::Rope || n_positions > has {
            let reason =
                format!("rotary positions of weights can only be fewer, not {n_positions} for {has}");
            return Err(ConfigError::Value { path: "n_positions".to_owned(), reason });
        }
        self.config.n_positions = n_positions;
        self.config.validate()
    }

    /// Bytes of the native file's numbers.
    pub fn bytes(&self) -> Result<u64, WeightsError> {
        let numbers: u64 = self.config.parameters().iter().map(ParameterInfo::elements).sum();
        Ok(numbers.saturating_mul(self.stored()?.bytes() as u64))
    }

    /// The narrowest type that holds all numbers unchanged.
    fn stored(&self) -> Result<Stored, WeightsError> {
        let views = checked_views(&self.config, &self.path, &self.files, self.layout)?;
        let naming = Naming::new(&self.config, self.layout)?;
        let named = self.config.parameters().into_iter().map(|parameter| naming.tensor(&parameter.name));
        let mut kinds = named.map(|(theirs, arrangement)| {
            let kind = float_type(&theirs, views[&theirs].dtype())?;
            // Adding one needs more bits.
            Ok(if arrangement == Arrangement::LessOne { DType::F32 } else { kind })
        });
        let first = kinds.next().transpose()?;
        let all = kinds.try_fold(true, |all, kind| Ok::<_, WeightsError>(all && Some(kind?) == first))?;
        Ok(match first {
            Some(DType::BF16) if all => Stored::Bf16,
            Some(DType::F16) if all => Stored::F16,
            _ => Stored::F32,
        })
    }

    /// Writes a native file with equal numbers. `progress` gets the bytes written. Not synced: for a folder that is
    /// renamed once complete.
    pub fn save(&self, path: &Path, progress: impl Fn(u64)) -> Result<(), WeightsError> {
        let stored = self.stored()?;
        let views = checked_views(&self.config, &self.path, &self.files, self.layout)?;
        let source = Source { naming: Naming::new(&self.config, self.layout)?, views: &views };
        let (source, progress, done) = (&source, &progress, &Cell::new(0));
        let outgoing = self.config.parameters().into_iter().map(|parameter| {
            let (name, shape) = (parameter.name.clone(), parameter.shape.clone());
            let bytes = parameter.elements() * stored.bytes() as u64;
            let fetch: Fetch<'_> = Box::new(move || {
                let numbers = source.values(&name, &shape)?;
                done.set(done.get() + bytes);
                progress(done.get());
                Ok(TensorData::new(numbers, shape.clone()))
            });
            (parameter.name, Outgoing { shape: parameter.shape, fetch })
        });
        let outgoing: BTreeMap<_, _> = outgoing.collect();
        writing::write(path, outgoing, stored, Some(described(&self.config))).map_err(|error| error.at(path))
    }
}
