//! Saves and loads models: parameters to and from a file's tensors.

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor, TensorData, backend::Backend};
use rayon::prelude::*;
use safetensors::tensor::TensorView;

use super::names::{Arrangement, Naming, is_not_a_parameter};
use super::tensors::{self, Stored, TensorFile, float_type};
use super::writing::{self, Begun, Fetch, Outgoing, WriteError};
use super::{Layout, Report, WeightsError};
use crate::config::GptConfig;
use crate::gpt::Gpt;
use crate::init::Holds;
use crate::packed::BaseForm;
use crate::parameters::ParameterInfo;
use crate::precision::Compute;

const DESCRIPTION: &str = "model";

/// Saves a model, replacing a file at `path` once the new one is on disk.
pub fn save<B: Backend>(
    model: &Gpt<B>,
    path: &Path,
    layout: Layout,
    stored: Stored,
) -> Result<(), WeightsError> {
    let tensors = outgoing(model, layout, |_: &str, _: &[usize], read: Read<'_>| read())?;
    let note = match layout {
        Layout::Native => described(&model.config),
        // Required by `transformers`.
        Layout::HuggingFace => ("format", "pt".to_owned()),
    };
    durable::write_with(path, |temporary| writing::write(temporary, tensors, stored, Some(note)))
        .map_err(|error| error.at(path))
}

/// Begins a native f32 file with the values from `complete`, which gets name, shape and a reader of the model's
/// weights, perhaps less precise.
pub fn begin_completed<'c, B: Backend>(
    model: &Gpt<B>,
    path: &Path,
    complete: impl Fn(&str, &[usize], Read<'_>) -> Result<TensorData, WeightsError> + Clone + 'c,
) -> Result<Begun<'c>, WeightsError> {
    let tensors = outgoing(model, Layout::Native, complete)?;
    let begun = Begun::new(path, tensors, Stored::F32, Some(described(&model.config)));
    begun.map_err(|error| WriteError::from(error).at(path))
}

/// Reads a parameter from its device.
pub type Read<'r> = &'r dyn Fn() -> Result<TensorData, WeightsError>;

pub(super) fn described(config: &GptConfig) -> (&'static str, String) {
    (DESCRIPTION, config.to_value().to_string())
}

/// Loads a model from a native file.
pub fn load_native<B: Backend>(path: &Path, device: &B::Device) -> Result<Gpt<B>, WeightsError> {
    load(&native_config(path)?, &[path], Layout::Native, device)
}

/// A native file's configuration. Reads no tensor.
pub fn native_config(path: &Path) -> Result<GptConfig, WeightsError> {
    let file = TensorFile::open(path)?;
    let description =
        file.note(DESCRIPTION).ok_or_else(|| WeightsError::NoDescription { path: path.to_owned() })?;
    GptConfig::from_json(description).map_err(WeightsError::config(path))
}

/// Loads a model from files that together hold it.
pub fn load<B: Backend>(
    config: &GptConfig,
    paths: &[&Path],
    layout: Layout,
    device: &B::Device,
) -> Result<Gpt<B>, WeightsError> {
    load_as(config, Factors::Wide, paths, layout, device)
}

/// Form of a loaded model's factors of products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Factors {
    /// f32.
    Wide,
    /// f32 with the values that [`Factors::Frozen`] decodes.
    Rounded(BaseForm),
    /// As [`Gpt::frozen`] leaves them. One matrix at a time is wide.
    Frozen(BaseForm),
    /// As [`Gpt::with_frozen_blocks`] leaves them, for a vocabulary that grows before the head is narrow.
    FrozenBlocks(BaseForm),
}

impl Factors {
    /// Brings a model loaded wide to this form.
    pub fn apply<B: Backend>(self, gpt: Gpt<B>) -> Gpt<B> {
        match self {
            Self::Wide => gpt,
            Self::Rounded(base) => gpt.rounded(base),
            Self::Frozen(base) => gpt.frozen(base),
            Self::FrozenBlocks(base) => gpt.with_frozen_blocks(base),
        }
    }
}

/// As [`load`] and [`Factors::apply`].
pub fn load_as<B: Backend>(
    config: &GptConfig,
    factors: Factors,
    paths: &[&Path],
    layout: Layout,
    device: &B::Device,
) -> Result<Gpt<B>, WeightsError> {
    load_part(config, (factors, &|_| true), (paths, layout), device)
}

/// As [`load_as`], without parameters that `holds` refuses.
pub fn load_part<B: Backend>(
    config: &GptConfig,
    (factors, holds): (Factors, Holds<'_>),
    (paths, layout): (&[&Path], Layout),
    device: &B::Device,
) -> Result<Gpt<B>, WeightsError> {
    let path = paths.first().copied().unwrap_or(Path::new(""));
    config.validate().map_err(WeightsError::config(path))?;
    let files = paths.iter().map(|path| TensorFile::open(path)).collect::<Result<Vec<_>, _>>()?;
    let views = checked_views(config, path, &files, layout)?;
    let model = Gpt::<B>::blank(config, device);
    let naming = Naming::new(config, layout)?;
    let source = Source { naming, views: &views };
    let model = match factors {
        Factors::Frozen(base) | Factors::FrozenBlocks(base) if base.is_packed(config.compute) => {
            packed(model, base, &source)?
        }
        _ => model,
    };
    let (path, compute) = (Vec::new(), config.compute);
    let mut fill = Fill { path, source, factors, holds, compute, device, error: None };
    let model = model.map(&mut fill);
    let Fill { error, .. } = fill;
    let model = error.map_or(Ok(model.with_rotary_tables(device)), Err)?;
    Ok(if matches!(factors, Factors::Frozen(_)) { model.narrowed() } else { model })
}

/// Checks names, shapes and types of a native file's tensors, without values.
pub fn check_native(config: &GptConfig, path: &Path) -> Result<(), WeightsError> {
    config.validate().map_err(WeightsError::config(path))?;
    checked_views(config, path, &[TensorFile::open(path)?], Layout::Native).map(|_| ())
}

pub(super) fn views(
    files: &[TensorFile],
    layout: Layout,
) -> Result<BTreeMap<String, TensorView<'_>>, WeightsError> {
    let mut views = BTreeMap::new();
    for file in files {
        views.extend(file.views()?);
    }
    if layout == Layout::HuggingFace && views.contains_key("wte.weight") {
        // The first published GPT-2 files lack the prefix.
        let full = |name: String| if name == "lm_head.weight" { name } else { format!("transformer.{name}") };
        views = views.into_iter().map(|(name, view)| (full(name), view)).collect();
    }
    Ok(views)
}

/// The tensors of `files`, which must be the model's.
pub(super) fn checked_views<'f>(
    config: &GptConfig,
    path: &Path,
    files: &'f [TensorFile],
    layout: Layout,
) -> Result<BTreeMap<String, TensorView<'f>>, WeightsError> {
    let views = views(files, layout)?;
    // Every block has tensors; a list of all missing ones could exhaust memory.
    let (blocks, tensors) = (config.n_layer, views.len());
    if blocks > tensors {
        return Err(WeightsError::Blocks { path: path.to_owned(), blocks, tensors });
    }

    let naming = Naming::new(config, layout)?;
    let mut wanted = BTreeMap::new();
    for ParameterInfo { name, shape, .. } in config.parameters() {
        let (theirs, arrangement) = naming.tensor(&name);
        wanted.insert(theirs, arrangement.shape(&shape));
    }
    let found = views.iter().map(|(name, view)| (name.clone(), view.shape().to_vec())).collect();
    let tied = config.tie_word_embeddings;
    let report = Report::compare(&wanted, &found, |name| is_not_a_parameter(name, tied));
    if !report.is_clean() {
        return Err(WeightsError::Mismatch { path: path.to_owned(), report });
    }
    wanted.keys().try_for_each(|name| float_type(name, views[name].dtype()).map(|_| ()))?;
    Ok(views)
}

/// Parameters that share a tensor are fetched together.
fn outgoing<'m, B: Backend>(
    model: &Gpt<B>,
    layout: Layout,
    complete: impl Fn(&str, &[usize], Read<'_>) -> Result<TensorData, WeightsError> + Clone + 'm,
) -> Result<BTreeMap<String, Outgoing<'m>>, WeightsError> {
    let naming = Naming::new(&model.config, layout)?;
    let mut parts: BTreeMap<String, (Arrangement, Vec<Outgoing<'m>>)> = BTreeMap::new();
    for (ours, Outgoing { shape, fetch }) in parameters(model) {
        let (theirs, arrangement) = naming.tensor(&ours);
        let (complete, own) = (complete.clone(), shape.clone());
        let fetch: Fetch<'m> = Box::new(move || complete(&ours, &own, &*fetch));
        let (_, parts) = parts.entry(theirs).or_insert((arrangement, Vec::new()));
        if let Some(index) = arrangement.third() {
            assert_eq!(index, parts.len(), "thirds are visited in order");
        }
        parts.push(Outgoing { shape, fetch });
    }
    Ok(parts.into_iter().map(|(name, (arrangement, parts))| (name, arranged(arrangement, parts))).collect())
}

fn arranged(arrangement: Arrangement, mut parts: Vec<Outgoing<'_>>) -> Outgoing<'_> {
    let shape = arrangement.shape(&parts[0].shape);
    let sides = shape.clone();
    let numbers = |part: &Outgoing<'_>| Ok::<_, WeightsError>(floats((part.fetch)()?));

    let fetch: Fetch<'_> = match arrangement {
        Arrangement::Plain => parts.remove(0).fetch,
        Arrangement::Transposed => Box::new(move || {
            let turned = transposed(&numbers(&parts[0])?, sides[1]);
            Ok(TensorData::new(turned, sides.clone()))
        }),
        Arrangement::Third(_) => Box::new(move || {
            let thirds = parts.iter().map(numbers).collect::<Result<Vec<_>, _>>()?;
            let columns = sides.last().expect("no parameter is a scalar") / 3;
            let rows = thirds[0].len() / columns;
            let row = |row: usize| thirds.iter().flat_map(move |third| &third[row * columns..][..columns]);
            Ok(TensorData::new((0..rows).flat_map(row).copied().collect::<Vec<f32>>(), sides.clone()))
        }),
        Arrangement::ThirdOfHeads { head_dim, .. } => Box::new(move || {
            let inputs = sides.get(1).copied().unwrap_or(1);
            let turned = |part| Ok::<_, WeightsError>(transposed(&numbers(part)?, inputs));
            let thirds = parts.iter().map(turned).collect::<Result<Vec<_>, _>>()?;
            let rows = head_dim * inputs;
            let heads = thirds[0].len() / rows;
            let head = |head: usize| thirds.iter().flat_map(move |third| &third[head * rows..][..rows]);
            Ok(TensorData::new((0..heads).flat_map(head).copied().collect::<Vec<f32>>(), sides.clone()))
        }),
        Arrangement::LessOne => Box::new(move || {
            let less = numbers(&parts[0])?.into_iter().map(|scale| scale - 1.0).collect::<Vec<f32>>();
            Ok(TensorData::new(less, sides.clone()))
        }),
    };

    Outgoing { shape, fetch }
}

pub(super) fn floats(data: TensorData) -> Vec<f32> {
    data.convert_dtype(DType::F32).into_vec().expect("the data was just converted to f32")
}

/// The transpose has `columns_out` rows.
pub(super) fn transposed(values: &[f32], columns_out: usize) -> Vec<f32> {
    let columns_in = values.len() / columns_out;
    let mut turned = vec![0.0; values.len()];
    // Squares stay in the cache.
    turned.par_chunks_mut(SQUARE * columns_out).enumerate().for_each(|(n, turned)| {
        let columns = n * SQUARE..columns_in.min((n + 1) * SQUARE);
        for (m, rows) in values.chunks(SQUARE * columns_in).enumerate() {
            for (row, values) in rows.chunks(columns_in).enumerate() {
                let values = &values[columns.clone()];
                values.iter().enumerate().for_each(|(column, value)| {
                    turned[column * columns_out + m * SQUARE + row] = *value;
                });
            }
        }
    });
    turned
}

const SQUARE: usize = 64;

pub(super) fn parameters<B: Backend>(model: &Gpt<B>) -> Vec<(String, Outgoing<'static>)> {
    let mut collect = Collect { path: Vec::new(), found: Vec::new() };
    model.visit(&mut collect);
    collect.found
}

struct Collect {
    path: Vec<String>,
    found: Vec<(String, Outgoing<'static>)>,
}

impl<B: Backend> ModuleVisitor<B> for Collect {
    crate::keeps_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let tensor = param.val();
        let shape = tensor.dims().to_vec();
        let name = self.path.join(".");
        let unread = name.clone();
        let fetch = move || {
            let read = tensor.clone().try_into_data();
            read.map_err(|error| WeightsError::Unread { name: unread.clone(), reason: error.to_string() })
        };
        self.found.push((name, Outgoing { shape, fetch: Box::new(fetch) }));
    }
}

pub(super) struct Source<'a> {
    pub(super) naming: Naming,
    pub(super) views: &'a BTreeMap<String, TensorView<'a>>,
}

impl Source<'_> {
    pub(super) fn values(&self, ours: &str, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let (name, arrangement) = self.naming.tensor(ours);
        let view = &self.views[&name];
        let values = floats(tensors::numbers(&name, view)?);

        Ok(match arrangement {
            Arrangement::Plain => values,
            Arrangement::Transposed => transposed(&values, shape[1]),
            Arrangement::Third(index) => {
                let columns = shape.last().copied().expect("no parameter is a scalar");
                values
                    .chunks(3 * columns)
                    .flat_map(|row| &row[index * columns..][..columns])
                    .copied()
                    .collect()
            }
            Arrangement::ThirdOfHeads { index, head_dim } => {
                let outputs = shape.last().copied().expect("no parameter is a scalar");
                let rows = head_dim * shape.iter().product::<usize>() / outputs;
                let own = values.chunks(3 * rows).flat_map(|head| &head[index * rows..][..rows]);
                transposed(&own.copied().collect::<Vec<_>>(), outputs)
            }
            Arrangement::LessOne => values.into_iter().map(|less| less + 1.0).collect(),
        })
    }
}

/// Packs the projections of an unallocated model, one at a time.
fn packed<B: Backend>(
    mut model: Gpt<B>,
    base: BaseForm,
    source: &Source<'_>,
) -> Result<Gpt<B>, WeightsError> {
    let compute = model.config.compute;
    for (layer, block) in model.blocks.iter_mut().enumerate() {
        for (projection, linear) in block.named_projections_mut() {
            let name = format!("blocks.{layer}.{}.weight", projection.path());
            let numbers = source.values(&name, &linear.weight.lazy_shape())?;
            linear.pack(base, compute, numbers);
        }
    }
    Ok(model)
}

struct Fill<'a, B: Backend> {
    path: Vec<String>,
    source: Source<'a>,
    factors: Factors,
    holds: Holds<'a>,
    compute: Compute,
    device: &'a B::Device,
    error: Option<WeightsError>,
}

impl<B: Backend> Fill<'_, B> {
    fn stored<const D: usize>(&self, wide: Tensor<B, D>) -> Tensor<B, D> {
        let field = self.path.first().map_or("", String::as_str);
        let narrow: &[&str] = match self.factors {
            Factors::Frozen(_) => &["blocks", "lm_head"],
            Factors::FrozenBlocks(_) => &["blocks"],
            Factors::Wide | Factors::Rounded(_) => &[],
        };
        if D == 2 && narrow.contains(&field) { self.compute.narrow(wide) } else { wide }
    }

    fn values(&self, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let values = self.source.values(&self.path.join("."), shape)?;
        let is_projection = shape.len() == 2 && self.path[0] == "blocks";
        Ok(match self.factors {
            Factors::Rounded(base) if is_projection => base.rounded(values),
            _ => values,
        })
    }
}

impl<B: Backend> ModuleMapper<B> for Fill<'_, B> {
    crate::keeps_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        // Only packed weights are initialised.
        if param.is_initialized() || !(self.holds)(&self.path.join(".")) {
            return param;
        }
        let (id, old, mapper) = param.consume();
        let shape = old.dims();
        let tensor = match self.values(&shape) {
            Ok(values) => self.stored(Tensor::from_data(TensorData::new(values, shape), self.device)),
            Err(error) => {
                self.error = Some(error);
                old.clone()
            }
        };
        Param::from_mapped_value(id, tensor.set_require_grad(old.is_require_grad()), mapper)
    }
}
