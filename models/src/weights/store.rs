//! Safetensors files: parameters out, one tensor at a time; parameters in, from a memory map.

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::path::Path;
use std::rc::Rc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor, TensorData, backend::Backend};
use memmap2::Mmap;
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, View, serialize_to_file};

use super::names::{Lie, is_no_parameter, place};
use super::{Layout, Report, WeightsError};
use crate::config::GptConfig;
use crate::gpt::Gpt;

/// The type numbers are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stored {
    /// Four bytes, lossless.
    #[default]
    F32,
    /// Two bytes, f32's range.
    Bf16,
    /// Two bytes, finer, but nothing above 65,504.
    F16,
}

const DESCRIPTION: &str = "model";

/// Writes a model's parameters to `path`, replacing what is there only once everything is on disk.
pub fn save<B: Backend>(
    model: &Gpt<B>,
    path: &Path,
    layout: Layout,
    stored: Stored,
) -> Result<(), WeightsError> {
    save_completed(model, path, layout, stored, |_, _, read| read())
}

/// As [`save`], with what `complete` makes of each parameter's name and shape, and of its numbers where it reads them: a model may
/// compute with weights that are less precise than those it is trained by, or have them elsewhere, too.
pub fn save_completed<B: Backend>(
    model: &Gpt<B>,
    path: &Path,
    layout: Layout,
    stored: Stored,
    complete: impl Fn(&str, &[usize], Read<'_>) -> Result<TensorData, WeightsError>,
) -> Result<(), WeightsError> {
    let unread = Rc::new(RefCell::new(None));
    let mut parts: BTreeMap<String, Outgoing<'_>> = BTreeMap::new();
    for (ours, (shape, read)) in parameters(model) {
        let (name, complete) = (ours.clone(), &complete);
        let own = shape.clone();
        let values: Fetch<'_> = (shape, Box::new(move || complete(&name, &own, &*read)));
        let (theirs, lie) = place(&ours, &model.config, layout)?;
        let part = parts.entry(theirs.clone());
        part.or_insert_with(|| Outgoing::new(theirs, lie, stored, &unread)).add(lie, values);
    }
    // One entry each: a file's metadata is written in the order of a hash map, and equal models make equal files.
    let description = HashMap::from([match layout {
        Layout::Native => (DESCRIPTION.to_owned(), model.config.to_value().to_string()),
        // What `transformers` looks for before it trusts a file.
        Layout::HuggingFace => ("format".to_owned(), "pt".to_owned()),
    }]);
    durable::write_with(path, |beside| match serialize_to_file(parts, Some(description), beside) {
        Ok(()) => unread.take().map_or(Ok(()), |unread| Err(Unwritten::Weights(unread))),
        Err(SafeTensorError::IoError(error)) => Err(Unwritten::File(error)),
        Err(source) => Err(Unwritten::Weights(WeightsError::Format { path: beside.to_owned(), source })),
    })
    .map_err(|unwritten| match unwritten {
        Unwritten::Weights(error) => error,
        Unwritten::File(error) => WeightsError::file("write weights to", path)(error),
    })
}

/// Reads a parameter's numbers from its device.
pub type Read<'r> = &'r dyn Fn() -> Result<TensorData, WeightsError>;

/// Why a file of weights was not written.
enum Unwritten {
    Weights(WeightsError),
    File(io::Error),
}

impl From<io::Error> for Unwritten {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

/// Reads a model written in the native layout, shape and all.
pub fn load_native<B: Backend>(path: &Path, device: &B::Device) -> Result<Gpt<B>, WeightsError> {
    load(&native_config(path)?, &[path], Layout::Native, device)
}

/// The shape of a model written in the native layout. No tensor is read.
pub fn native_config(path: &Path) -> Result<GptConfig, WeightsError> {
    let map = map(path)?;
    let format = |source| WeightsError::Format { path: path.to_owned(), source };
    let (_, header) = SafeTensors::read_metadata(&map).map_err(format)?;
    let description = header.metadata().as_ref().and_then(|entries| entries.get(DESCRIPTION));
    let description = description.ok_or_else(|| WeightsError::NoDescription { path: path.to_owned() })?;
    GptConfig::from_json(description).map_err(WeightsError::config(path))
}

/// Reads a model of a known shape from one or more files that together hold its tensors.
pub fn load<B: Backend>(
    config: &GptConfig,
    paths: &[&Path],
    layout: Layout,
    device: &B::Device,
) -> Result<Gpt<B>, WeightsError> {
    let path = paths.first().copied().unwrap_or(Path::new(""));
    config.validate().map_err(WeightsError::config(path))?;
    let maps = paths.iter().map(|path| map(path)).collect::<Result<Vec<_>, _>>()?;
    let views = views(paths, &maps, layout)?;
    let model = outline::<B>(config, path, &views, layout, device)?;
    let mut fill = Fill { path: Vec::new(), config, layout, views: &views, device, error: None };
    let model = model.map(&mut fill);
    fill.error.map_or(Ok(model.with_rotary_tables(device)), Err)
}

/// Whether the file at `path`, in the native layout, holds the tensors of the model `config` describes: their names,
/// shapes and types. No number is read.
pub fn check_native<B: Backend>(
    config: &GptConfig,
    path: &Path,
    device: &B::Device,
) -> Result<(), WeightsError> {
    config.validate().map_err(WeightsError::config(path))?;
    let maps = [map(path)?];
    let views = views(&[path], &maps, Layout::Native)?;
    outline::<B>(config, path, &views, Layout::Native, device).map(|_| ())
}

/// The tensors of all `maps` by name.
fn views<'m>(
    paths: &[&Path],
    maps: &'m [Mmap],
    layout: Layout,
) -> Result<BTreeMap<String, TensorView<'m>>, WeightsError> {
    let mut views = BTreeMap::new();
    for (path, map) in paths.iter().zip(maps) {
        let file = SafeTensors::deserialize(map)
            .map_err(|source| WeightsError::Format { path: path.to_path_buf(), source })?;
        views.extend(file.tensors());
    }
    if layout == Layout::HuggingFace && views.contains_key("wte.weight") {
        // The first published GPT-2 files lack the prefix.
        let full = |name: String| if name == "lm_head.weight" { name } else { format!("transformer.{name}") };
        views = views.into_iter().map(|(name, view)| (full(name), view)).collect();
    }
    Ok(views)
}

/// The model that `views` hold the tensors of, none of its own allocated yet.
fn outline<B: Backend>(
    config: &GptConfig,
    path: &Path,
    views: &BTreeMap<String, TensorView<'_>>,
    layout: Layout,
    device: &B::Device,
) -> Result<Gpt<B>, WeightsError> {
    // A block has tensors of its own, so a description of more blocks than tensors is wrong. Listing what is missing
    // would take as much memory as the description asks for.
    let (blocks, tensors) = (config.n_layer, views.len());
    if blocks > tensors {
        return Err(WeightsError::Blocks { path: path.to_owned(), blocks, tensors });
    }
    let model = Gpt::<B>::blank(config, device);
    let mut outline = Outline::default();
    model.visit(&mut outline);
    let mut wanted = BTreeMap::new();
    for (ours, shape) in outline.found {
        let (theirs, lie) = place(&ours, config, layout)?;
        wanted.insert(theirs, lie.shape(&shape));
    }
    let found = views.iter().map(|(name, view)| (name.clone(), view.shape().to_vec())).collect();
    let tied = config.tie_word_embeddings;
    let report = Report::compare(&wanted, &found, |name| is_no_parameter(name, tied));
    if !report.is_clean() {
        return Err(WeightsError::Mismatch { path: path.to_owned(), report });
    }
    wanted.keys().try_for_each(|name| float_type(name, &views[name]).map(|_| ()))?;
    Ok(model)
}

fn map(path: &Path) -> Result<Mmap, WeightsError> {
    let file = File::open(path).map_err(WeightsError::file("open weights in", path))?;
    // SAFETY: the map is read-only and private to this call. Our own writer never changes a file in place, it renames
    // a new one over it; a foreign process that truncates the file while it is read is outside any program's control.
    unsafe { Mmap::map(&file) }.map_err(WeightsError::file("map weights in", path))
}

/// One tensor of the file to be: the parameters side by side in it, fetched from the device only when it is written.
struct Outgoing<'m> {
    name: String,
    stored: Stored,
    lie: Lie,
    parts: Vec<Fetch<'m>>,
    shape: Vec<usize>,
    /// The first failure of all tensors: one that cannot be read, or that holds NaN or infinity.
    unread: Rc<RefCell<Option<WeightsError>>>,
    /// The numbers as they are written. Whoever writes the file borrows them, and drops this before it asks for the next.
    fetched: OnceCell<TensorData>,
}

/// A parameter's shape, and its values on demand.
type Fetch<'m> = (Vec<usize>, Box<dyn Fn() -> Result<TensorData, WeightsError> + 'm>);

impl<'m> Outgoing<'m> {
    fn new(name: String, lie: Lie, stored: Stored, unread: &Rc<RefCell<Option<WeightsError>>>) -> Self {
        let (unread, fetched) = (Rc::clone(unread), OnceCell::new());
        Self { name, stored, lie, parts: Vec::new(), shape: Vec::new(), unread, fetched }
    }

    fn add(&mut self, lie: Lie, part: Fetch<'m>) {
        if let Lie::Third(index) = lie {
            assert_eq!(index, self.parts.len(), "thirds are visited in order");
        }
        self.shape = lie.shape(&part.0);
        self.parts.push(part);
    }

    fn numbers(&self) -> Result<TensorData, WeightsError> {
        let fetched = self.parts.iter().map(|(_, fetch)| {
            let data = fetch()?.convert_dtype(DType::F32);
            check_finite(&self.name, slice(&data)).map(|()| data)
        });
        let mut parts: Vec<TensorData> = fetched.collect::<Result<_, _>>()?;
        let whole = |values| TensorData::new(values, self.shape.clone());
        let data = match self.lie {
            Lie::Plain => parts.remove(0),
            Lie::Transposed => whole(transposed(slice(&parts[0]), self.shape[1])),
            Lie::Third(_) => {
                let parts: Vec<&[f32]> = parts.iter().map(slice).collect();
                let columns = self.shape.last().expect("no parameter is a scalar") / 3;
                let rows = parts[0].len() / columns;
                let row =
                    |row: usize| parts.iter().flat_map(move |part| &part[row * columns..(row + 1) * columns]);
                whole((0..rows).flat_map(row).copied().collect())
            }
        };
        Ok(data.convert_dtype(match self.stored {
            Stored::F32 => DType::F32,
            Stored::Bf16 => DType::BF16,
            Stored::F16 => DType::F16,
        }))
    }
}

impl View for Outgoing<'_> {
    fn dtype(&self) -> Dtype {
        match self.stored {
            Stored::F32 => Dtype::F32,
            Stored::Bf16 => Dtype::BF16,
            Stored::F16 => Dtype::F16,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The interface knows no failure: zeros stand for what could not be read, and the file is thrown away.
    fn data(&self) -> Cow<'_, [u8]> {
        let fetched = self.fetched.get_or_init(|| {
            self.numbers().unwrap_or_else(|error| {
                self.unread.borrow_mut().get_or_insert(error);
                TensorData::from_bytes_vec(vec![0; self.data_len()], [self.data_len()], DType::U8)
            })
        });
        Cow::Borrowed(fetched.as_bytes())
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype().bitsize() / 8
    }
}

fn float_type(name: &str, view: &TensorView<'_>) -> Result<DType, WeightsError> {
    Ok(match view.dtype() {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        other => return Err(WeightsError::Dtype { name: name.to_owned(), dtype: format!("{other:?}") }),
    })
}

fn floats(data: TensorData) -> Vec<f32> {
    data.convert_dtype(DType::F32).into_vec().expect("the data was just converted to f32")
}

/// The numbers of data in f32.
fn slice(data: &TensorData) -> &[f32] {
    data.as_slice().expect("the data was converted to f32")
}

fn check_finite(name: &str, values: &[f32]) -> Result<(), WeightsError> {
    match values.iter().copied().find(|value| !value.is_finite()) {
        Some(value) => Err(WeightsError::NotFinite { name: name.to_owned(), value }),
        None => Ok(()),
    }
}

/// A matrix of `columns` columns, rows and columns exchanged.
fn transposed(values: &[f32], columns_out: usize) -> Vec<f32> {
    let columns_in = values.len() / columns_out;
    (0..columns_in).flat_map(|column| values.iter().skip(column).step_by(columns_in)).copied().collect()
}

/// Every parameter's dotted name, shape and values on demand, in the order of the struct.
fn parameters<B: Backend>(model: &Gpt<B>) -> Vec<(String, Fetch<'static>)> {
    let mut collect = Collect { path: Vec::new(), found: Vec::new() };
    model.visit(&mut collect);
    collect.found
}

struct Collect {
    path: Vec<String>,
    found: Vec<(String, Fetch<'static>)>,
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
        self.found.push((name, (shape, Box::new(fetch))));
    }
}

/// Every parameter's dotted name and shape, in the order of the struct. No parameter is allocated.
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

/// Puts the file's numbers into the model.
struct Fill<'a, B: Backend> {
    path: Vec<String>,
    config: &'a GptConfig,
    layout: Layout,
    views: &'a BTreeMap<String, TensorView<'a>>,
    device: &'a B::Device,
    error: Option<WeightsError>,
}

impl<B: Backend> Fill<'_, B> {
    fn values(&self, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let (name, lie) = place(&self.path.join("."), self.config, self.layout)?;
        let view = &self.views[&name];
        let dtype = float_type(&name, view)?;
        let values = floats(TensorData::from_bytes_vec(view.data().to_vec(), view.shape().to_vec(), dtype));
        check_finite(&name, &values)?;
        Ok(match lie {
            Lie::Plain => values,
            Lie::Transposed => transposed(&values, shape[1]),
            Lie::Third(index) => {
                let columns = shape.last().copied().expect("no parameter is a scalar");
                values
                    .chunks(3 * columns)
                    .flat_map(|row| &row[index * columns..][..columns])
                    .copied()
                    .collect()
            }
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
            Ok(values) => Tensor::from_data(TensorData::new(values, shape), self.device),
            Err(error) => {
                self.error = Some(error);
                old.clone()
            }
        };
        Param::from_mapped_value(id, tensor.set_require_grad(old.is_require_grad()), mapper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_is_written_from_where_it_was_fetched_to() {
        let unread = Rc::new(RefCell::new(None));
        let mut tensor = Outgoing::new("some".to_owned(), Lie::Plain, Stored::F32, &unread);
        let read = || Ok(TensorData::new(vec![2.5_f32; 12], [3, 4]));
        tensor.add(Lie::Plain, (vec![3, 4], Box::new(read)));
        let (first, again) = (tensor.data(), tensor.data());
        assert!(matches!(first, Cow::Borrowed(_)), "it is copied to be written");
        assert_eq!(first.as_ptr(), again.as_ptr(), "it is fetched twice");
        assert_eq!(*first, *2.5_f32.to_le_bytes().repeat(12));
    }
}
