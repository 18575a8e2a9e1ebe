//! GGUF, `llama.cpp`'s file: network, vocabulary and chat template.
//!
//! A model is writable if `llama.cpp`'s architecture computes the same network.

mod architecture;
mod file;
mod numbers;

use std::path::Path;

use burn::tensor::TensorData;
use burn::tensor::backend::Backend;

use self::architecture::{Architecture, Rows};
pub use self::file::Value;
use self::file::{Entry, Header};
pub use self::numbers::Numbers;
use crate::config::GptConfig;
use crate::gpt::Gpt;
use crate::weights::store::{floats, parameters, transposed};
use crate::weights::writing::{Fetch, Outgoing, WriteError};
use crate::weights::{Stored, WeightsError};

const WIDE: Numbers = Numbers::Plain(Stored::F32);

/// Fails if no architecture of `llama.cpp` computes it.
pub fn check(config: &GptConfig) -> Result<(), WeightsError> {
    Architecture::of(config).map(|_| ())
}

/// Saves a model with its vocabulary's `fields`, replacing `path` once the new file is on disk. Matrices are stored as
/// `numbers`, vectors as f32.
pub fn save<B: Backend>(
    model: &Gpt<B>,
    path: &Path,
    numbers: Numbers,
    fields: Vec<(String, Value)>,
) -> Result<(), WeightsError> {
    let architecture = Architecture::of(&model.config)?;
    let mut all = architecture.fields(&model.config);
    all.push(("general.file_type".to_owned(), Value::U32(numbers.file_type())));
    all.push(("general.quantization_version".to_owned(), Value::U32(2)));
    all.extend(fields);

    let tensors = tensors(model, &architecture, numbers);
    durable::write_with(path, |temporary| write(temporary, &all, &tensors)).map_err(|error| error.at(path))
}

struct Tensor<'m> {
    entry: Entry,
    fetch: Fetch<'m>,
}

/// Attention's projections share a tensor in fused architectures.
fn tensors<B: Backend>(
    model: &Gpt<B>,
    architecture: &Architecture,
    numbers: Numbers,
) -> Vec<Tensor<'static>> {
    let mut parts: Vec<(String, Vec<(Rows, Outgoing<'static>)>)> = Vec::new();
    for (ours, parameter) in parameters(model) {
        let (theirs, rows) = architecture.tensor(&ours);
        match parts.iter_mut().rev().find(|(name, _)| *name == theirs) {
            Some((_, parts)) => parts.push((rows, parameter)),
            None => parts.push((theirs, vec![(rows, parameter)])),
        }
    }

    let mut tensors: Vec<Tensor<'static>> =
        parts.into_iter().map(|(name, parts)| joined(name, parts, numbers)).collect();
    tensors.extend(architecture.frequency_factors(&model.config).map(|factors| {
        let entry = Entry::new("rope_freqs.weight".to_owned(), vec![factors.len()], WIDE);
        let fetch = move || Ok(TensorData::new(factors.clone(), [factors.len()]));
        Tensor { entry, fetch: Box::new(fetch) }
    }));
    tensors
}

fn joined(name: String, parts: Vec<(Rows, Outgoing<'_>)>, numbers: Numbers) -> Tensor<'_> {
    let mut shape = parts[0].0.shape(&parts[0].1.shape);
    shape[0] = parts.iter().map(|(rows, part)| rows.shape(&part.shape)[0]).sum();
    // `llama.cpp` adds positions as f32.
    let wide = shape.len() == 1 || name == "position_embd.weight";
    let columns = shape[shape.len() - 1];
    let stored = if wide { WIDE } else { numbers.for_rows_of(columns) };

    let sides = shape.clone();
    let fetch = move || {
        let mut values = Vec::with_capacity(sides.iter().product());
        for (rows, part) in &parts {
            values.extend(rows.arranged(floats((part.fetch)()?), &part.shape));
        }
        Ok(TensorData::new(values, sides.clone()))
    };
    Tensor { entry: Entry::new(name, shape, stored), fetch: Box::new(fetch) }
}

fn write(path: &Path, fields: &[(String, Value)], tensors: &[Tensor<'_>]) -> Result<(), WriteError> {
    let entries: Vec<&Entry> = tensors.iter().map(|tensor| &tensor.entry).collect();
    let mut file = Header { fields, entries }.write(path)?;
    for Tensor { entry, fetch } in tensors {
        let bytes = fetch().and_then(|values| entry.numbers().bytes(entry.name(), values));
        file.tensor(&bytes.map_err(WriteError::Tensor)?)?;
    }
    file.finish()?;
    Ok(())
}

impl Rows {
    fn shape(self, parameter: &[usize]) -> Vec<usize> {
        let mut shape = parameter.to_vec();
        if self != Self::AsTheyAre {
            shape.reverse();
        }
        shape
    }

    fn arranged(self, values: Vec<f32>, shape: &[usize]) -> Vec<f32> {
        let outputs = shape[shape.len() - 1];
        let inputs = values.len() / outputs;
        let turned = match self {
            Self::AsTheyAre => return values,
            Self::Turned | Self::Interleaved { .. } => transposed(&values, inputs),
        };
        let Self::Interleaved { head_dim } = self else { return turned };

        // Feature `i` of a head rotates with `i + half`; `llama.cpp` pairs them side by side.
        let half = head_dim / 2;
        let source = |row: usize| {
            let (head, feature) = (row / head_dim, row % head_dim);
            head * head_dim + feature / 2 + (feature % 2) * half
        };
        (0..outputs).flat_map(|row| &turned[source(row) * inputs..][..inputs]).copied().collect()
    }
}
