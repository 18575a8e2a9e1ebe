//! Saves and loads models: parameters to and from a file's tensors.

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor, TensorData, backend::Backend};
use safetensors::tensor::TensorView;

use super::names::{Arrangement, Naming, is_not_a_parameter};
use super::tensors::{self, Fetch, Outgoing, Stored, TensorFile, float_type};
use super::{Layout, Report, WeightsError};
use crate::config::GptConfig;
use crate::gpt::Gpt;
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
        Layout::Native => description_note(model),
        // Required by `transformers`.
        Layout::HuggingFace => ("format", "pt".to_owned()),
    };
    durable::write_with(path, |temporary| tensors::write(temporary, &tensors, stored, Some(note)))
        .map_err(|error| error.at(path))
}

/// Saves the values from `complete` as a native f32 file. `complete` gets name, shape and a reader of the model's
/// weights, perhaps less precise. Not synced: for folders renamed once complete.
pub fn save_completed<B: Backend>(
    model: &Gpt<B>,
    path: &Path,
    complete: impl Fn(&str, &[usize], Read<'_>) -> Result<TensorData, WeightsError>,
) -> Result<(), WeightsError> {
    let tensors = outgoing(model, Layout::Native, &complete)?;
    tensors::write(path, &tensors, Stored::F32, Some(description_note(model))).map_err(|error| error.at(path))
}

/// Reads a parameter from its device.
pub type Read<'r> = &'r dyn Fn() -> Result<TensorData, WeightsError>;

pub(super) fn description_note<B: Backend>(model: &Gpt<B>) -> (&'static str, String) {
    (DESCRIPTION, model.config.to_value().to_string())
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
    load_with(config, Compute::F32, paths, layout, device)
}

/// As [`load`] and [`Gpt::narrowed`], for weights that never change. One factor of products at a time is wide.
pub fn load_narrowed<B: Backend>(
    config: &GptConfig,
    paths: &[&Path],
    layout: Layout,
    device: &B::Device,
) -> Result<Gpt<B>, WeightsError> {
    load_with(config, config.compute, paths, layout, device).map(Gpt::narrowed)
}

fn load_with<B: Backend>(
    config: &GptConfig,
    factors: Compute,
    paths: &[&Path],
    layout: Layout,
    device: &B::Device,
) -> Result<Gpt<B>, WeightsError> {
    let path = paths.first().copied().unwrap_or(Path::new(""));
    config.validate().map_err(WeightsError::config(path))?;
    let files = paths.iter().map(|path| TensorFile::open(path)).collect::<Result<Vec<_>, _>>()?;
    let views = views(&files, layout)?;
    let model = outline::<B>(config, path, &views, layout, device)?;
    let naming = Naming::new(config, layout)?;
    let mut fill = Fill { path: Vec::new(), naming, views: &views, factors, device, error: None };
    let model = model.map(&mut fill);
    fill.error.map_or(Ok(model.with_rotary_tables(device)), Err)
}

/// Checks names, shapes and types of a native file's tensors, without values.
pub fn check_native<B: Backend>(
    config: &GptConfig,
    path: &Path,
    device: &B::Device,
) -> Result<(), WeightsError> {
    config.validate().map_err(WeightsError::config(path))?;
    let files = [TensorFile::open(path)?];
    let views = views(&files, Layout::Native)?;
    outline::<B>(config, path, &views, Layout::Native, device).map(|_| ())
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

/// An unallocated model, if `views` holds its tensors.
fn outline<B: Backend>(
    config: &GptConfig,
    path: &Path,
    views: &BTreeMap<String, TensorView<'_>>,
    layout: Layout,
    device: &B::Device,
) -> Result<Gpt<B>, WeightsError> {
    // Every block has tensors; a list of all missing ones could exhaust memory.
    let (blocks, tensors) = (config.n_layer, views.len());
    if blocks > tensors {
        return Err(WeightsError::Blocks { path: path.to_owned(), blocks, tensors });
    }
    let model = Gpt::<B>::blank(config, device);
    let mut outline = Outline::default();
    model.visit(&mut outline);

    let naming = Naming::new(config, layout)?;
    let mut wanted = BTreeMap::new();
    for (ours, shape) in outline.found {
        let (theirs, arrangement) = naming.tensor(&ours);
        wanted.insert(theirs, arrangement.shape(&shape));
    }
    let found = views.iter().map(|(name, view)| (name.clone(), view.shape().to_vec())).collect();
    let tied = config.tie_word_embeddings;
    let report = Report::compare(&wanted, &found, |name| is_not_a_parameter(name, tied));
    if !report.is_clean() {
        return Err(WeightsError::Mismatch { path: path.to_owned(), report });
    }
    wanted.keys().try_for_each(|name| float_type(name, views[name].dtype()).map(|_| ()))?;
    Ok(model)
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

pub(super) fn transposed(values: &[f32], columns_out: usize) -> Vec<f32> {
    let columns_in = values.len() / columns_out;
    (0..columns_in).flat_map(|column| values.iter().skip(column).step_by(columns_in)).copied().collect()
}

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
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

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

/// Allocates no parameter.
#[derive(Default)]
struct Outline {
    path: Vec<String>,
    found: Vec<(String, Vec<usize>)>,
}

impl<B: Backend> ModuleVisitor<B> for Outline {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.found.push((self.path.join("."), param.lazy_shape().to_vec()));
    }
}

struct Fill<'a, B: Backend> {
    path: Vec<String>,
    naming: Naming,
    views: &'a BTreeMap<String, TensorView<'a>>,
    factors: Compute,
    device: &'a B::Device,
    error: Option<WeightsError>,
}

impl<B: Backend> Fill<'_, B> {
    fn stored<const D: usize>(&self, wide: Tensor<B, D>) -> Tensor<B, D> {
        let field = self.path.first().map_or("", String::as_str);
        let is_factor = D == 2 && ["blocks", "lm_head"].contains(&field);
        if is_factor { self.factors.narrow(wide) } else { wide }
    }

    fn values(&self, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let (name, arrangement) = self.naming.tensor(&self.path.join("."));
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

impl<B: Backend> ModuleMapper<B> for Fill<'_, B> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
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
