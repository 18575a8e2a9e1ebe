//! A run on disk and back: weights, moments, and the few numbers beside them.
//!
//! Tensors are fetched one at a time, when they are written, so a spilled state is saved with one tensor of extra host
//! memory. Nothing random is saved: everything drawn follows from the seed and the step.

#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::Path,
};

use anyhow::{Context, anyhow, bail, ensure};
use backend_offload::Managed;
use burn::backend::{Flex, flex::FlexDevice};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{
    DType, Tensor, TensorData, TensorMetadata, backend::Backend, ops::FloatTensor, try_read_sync,
};
use host_optim::HostState;
use models::{
    Gpt,
    weights::{self, Layout, Stored, WeightsError},
};
use runs::BadInput;
use runs::checkpoint::{CONFIG, MOMENTS, STATE, TOKENIZER, WEIGHTS};
use runs::config::{Config, OptimizerKind};
use safetensors::{Dtype, View, serialize_to_file, tensor::Metadata};
use serde::{Deserialize, Serialize};
use tokenizer::Tokenizer;

use super::Progress;
use super::lending::Lending;
use crate::optimizer::{HostPart, Moments, Optimizer, Owners, keeps_second_moment};

pub(super) const PARTS: [&str; 2] = ["first", "second"];
const FORMAT: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct State {
    format: u32,
    optimizer: OptimizerKind,
    progress: Progress,
    /// Steps each parameter has taken.
    times: BTreeMap<String, usize>,
}

/// Writes everything a resumed run needs into `folder`. Moments that other ranks keep are fetched from them.
pub(crate) fn save<I: Backend, B: Backend>(
    folder: &Path,
    gpt: &Gpt<B>,
    optimizer: &Optimizer<I>,
    lending: Option<&RefCell<Lending<'_>>>,
    config: &Config,
    progress: &Progress,
    tokenizer: &Tokenizer,
) -> anyhow::Result<()> {
    let on_host = optimizer.host.as_ref().map(HostPart::by_name).transpose()?.unwrap_or_default();
    let complete = |name: &str, shape: &[usize], read: weights::Read<'_>| match on_host.get(name) {
        Some(state) if !state.reads_weights() => Ok(TensorData::new(state.own_masters(), shape.to_vec())),
        Some(state) => state
            .complete(read()?)
            .map_err(|error| WeightsError::Unread { name: name.to_owned(), reason: error.to_string() }),
        None => read(),
    };
    weights::save_completed(gpt, &folder.join(WEIGHTS), Layout::Native, Stored::F32, complete)?;
    let failure = RefCell::new(None);
    let mut moments = BTreeMap::new();
    for (name, kept) in &optimizer.moments {
        let parts = [Some(&kept.first), kept.second.as_ref()];
        for (part, tensor) in PARTS.into_iter().zip(parts) {
            if let Some(tensor) = tensor {
                let (name, shape) = (format!("{name}.{part}"), tensor.shape().to_vec());
                let source = Source::<'_, I>::Device(tensor);
                moments.insert(name.clone(), Moment { name, source, shape, failure: &failure });
            }
        }
    }
    let fetch = |key: &str| lending.context("nothing is lent")?.borrow_mut().fetch(key);
    for lent in lending.iter().flat_map(|lending| lending.borrow().lent().to_vec()) {
        let (name, source) = (lent.key.clone(), Source::Lent(&fetch));
        moments.insert(lent.key, Moment { name, source, shape: lent.shape, failure: &failure });
    }
    gpt.visit(&mut HostMoments {
        on_host: &on_host,
        path: Vec::new(),
        failure: &failure,
        moments: &mut moments,
    });
    serialize_to_file(moments, None, &folder.join(MOMENTS)).context("writing the optimizer's moments")?;
    if let Some(failure) = failure.take() {
        bail!("saving the optimizer's moments: {failure}");
    }
    let on_device = optimizer.moments.iter().map(|(name, moments)| (name.clone(), moments.time));
    let lent = lending.map(|lending| lending.borrow().times.clone()).unwrap_or_default();
    let state = State {
        format: FORMAT,
        optimizer: config.train.optimizer,
        progress: progress.clone(),
        times: lent
            .into_iter()
            .chain(on_device)
            .chain(on_host.values().map(|state| (state.name().to_owned(), state.time() as usize)))
            .collect(),
    };
    fs::write(folder.join(STATE), serde_json::to_vec_pretty(&state)?).context("writing the state")?;
    fs::write(folder.join(CONFIG), config.to_json()).context("writing the configuration")?;
    tokenizer.save(folder.join(TOKENIZER))?;
    Ok(())
}

/// Whether `folder`, whose bytes were checked before, holds the tensors that its configuration and its optimizer ask
/// for: names, shapes and types. No number is read.
pub(crate) fn check(folder: &Path) -> anyhow::Result<()> {
    let config = Config::load(&folder.join(CONFIG).to_string_lossy(), &[])?;
    weights::check_native::<Flex>(&config.model, &folder.join(WEIGHTS), &FlexDevice)?;
    check_moments(&State::read(folder)?, folder, &TensorFile::open(&folder.join(MOMENTS))?)
}

/// Whether `moments` are those of the weights beside them, as the optimizer keeps them.
fn check_moments(state: &State, folder: &Path, moments: &TensorFile) -> anyhow::Result<()> {
    let weights = TensorFile::open(&folder.join(WEIGHTS))?;
    let mut expected = 0;
    for name in state.times.keys() {
        let weight = weights.header.info(name);
        let weight = weight.with_context(|| format!("{STATE} names `{name}`, which is not in {WEIGHTS}"))?;
        let second = keeps_second_moment(state.optimizer, name, weight.shape.len());
        for part in PARTS.into_iter().take(1 + usize::from(second)) {
            let part = format!("{name}.{part}");
            let found = moments.header.info(&part).with_context(|| format!("{MOMENTS} lacks `{part}`"))?;
            ensure!(
                found.dtype == Dtype::F32 && found.shape == weight.shape,
                "{MOMENTS} holds `{part}` as {:?} {:?}, which should be F32 {:?}",
                found.dtype,
                found.shape,
                weight.shape
            );
            expected += 1;
        }
    }
    let found = moments.header.tensors().len();
    ensure!(found == expected, "{MOMENTS} holds {found} tensors and {STATE} accounts for {expected}");
    Ok(())
}

impl State {
    fn read(folder: &Path) -> anyhow::Result<Self> {
        let read = || format!("reading {}", folder.join(STATE).display());
        let state: Self =
            serde_json::from_slice(&fs::read(folder.join(STATE)).with_context(read)?).with_context(read)?;
        ensure!(
            state.format == FORMAT,
            "the checkpoint {} has format {}, this program reads {FORMAT}",
            folder.display(),
            state.format
        );
        Ok(state)
    }
}

/// Where the run in `folder` stood, and its optimizer, with the moments that this process is to keep.
pub(crate) fn restore<I: Managed>(
    folder: &Path,
    config: &Config,
    device: &I::Device,
    owners: Owners,
) -> anyhow::Result<(Progress, Optimizer<I>)> {
    let state = State::read(folder)?;
    let wanted = config.train.optimizer;
    if state.optimizer != wanted && !state.times.is_empty() {
        return Err(BadInput(format!(
            "the checkpoint {} was trained with {:?} and cannot go on with {wanted:?}",
            folder.display(),
            state.optimizer
        ))
        .into());
    }
    let mut optimizer = Optimizer::placed(config, device);
    optimizer.owners = owners;
    let mut stored = TensorFile::open(&folder.join(MOMENTS))?;
    check_moments(&state, folder, &stored)
        .with_context(|| format!("the checkpoint {} cannot be resumed", folder.display()))?;
    for (name, time) in state.times {
        if !optimizer.owners.has(&name) {
            continue;
        }
        let [first, second] = PARTS.map(|part| format!("{name}.{part}"));
        let missing = || format!("{first} is missing");
        let rank = stored.rank(&first);
        if let Some(host) = optimizer.host.as_mut().filter(|host| host.takes(&name, rank)) {
            let firsts = stored.numbers(&first)?.with_context(missing)?;
            let seconds = stored.numbers(&second)?.with_context(|| format!("{second} is missing"))?;
            host.restored.insert(name, (time, [firsts, seconds]));
            continue;
        }
        let first = stored.tensor::<I>(&first, device)?.with_context(missing)?;
        let second = stored.tensor::<I>(&second, device)?;
        optimizer.moments.insert(name, Moments { time, first, second });
    }
    Ok((state.progress, optimizer))
}

/// One tensor of the file to be, fetched when it is written.
struct Moment<'m, I: Backend> {
    name: String,
    source: Source<'m, I>,
    shape: Vec<usize>,
    failure: &'m RefCell<Option<String>>,
}

enum Source<'m, I: Backend> {
    Device(&'m FloatTensor<I>),
    Host(&'m HostState, fn(&HostState) -> Vec<f32>),
    Lent(&'m dyn Fn(&str) -> anyhow::Result<Vec<f32>>),
}

/// Finds the moments on the host, in the shapes of their parameters.
struct HostMoments<'m, 'o, I: Backend> {
    on_host: &'o HashMap<&'m str, &'m HostState>,
    path: Vec<String>,
    failure: &'m RefCell<Option<String>>,
    moments: &'o mut BTreeMap<String, Moment<'m, I>>,
}

impl<I: Backend, B: Backend> ModuleVisitor<B> for HostMoments<'_, '_, I> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let name = self.path.join(".");
        let Some(&state) = self.on_host.get(name.as_str()) else { return };
        let reads: [fn(&HostState) -> Vec<f32>; 2] = [HostState::first_moments, HostState::second_moments];
        for (part, read) in PARTS.into_iter().zip(reads) {
            let (name, shape) = (format!("{name}.{part}"), param.lazy_shape().to_vec());
            let source = Source::Host(state, read);
            self.moments.insert(name.clone(), Moment { name, source, shape, failure: self.failure });
        }
    }
}

impl<I: Backend> View for Moment<'_, I> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The interface knows no failure: zeros take the place of what could not be read, and the file is thrown away.
    fn data(&self) -> Cow<'_, [u8]> {
        let bytes = match &self.source {
            Source::Host(state, read) => {
                Ok(TensorData::new(read(state), self.shape.clone()).into_bytes().to_vec())
            }
            Source::Lent(fetch) => match fetch(&self.name) {
                Ok(numbers) => Ok(bytemuck::cast_slice(&numbers).to_vec()),
                Err(error) => Err(format!("{error:#}")),
            },
            Source::Device(tensor) => read::<I>(&self.name, tensor).map(|data| data.into_bytes().to_vec()),
        };
        let usable = bytes.and_then(|bytes| finite(&self.name, &bytes).map(|()| bytes));
        Cow::Owned(usable.unwrap_or_else(|failure| {
            self.failure.borrow_mut().get_or_insert(failure);
            vec![0; self.data_len()]
        }))
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * size_of::<f32>()
    }
}

/// One moment of a parameter that this process steps.
pub(super) fn moment<I: Backend>(
    optimizer: &Optimizer<I>,
    parameter: &str,
    part: usize,
) -> anyhow::Result<Vec<f32>> {
    let kept = optimizer.moments.get(parameter);
    let tensor = kept.and_then(|kept| [Some(&kept.first), kept.second.as_ref()][part]);
    let tensor = tensor.with_context(|| format!("the moments of `{parameter}` are not here"))?;
    Ok(read::<I>(parameter, tensor).map_err(|error| anyhow!(error))?.iter::<f32>().collect())
}

fn read<I: Backend>(name: &str, tensor: &FloatTensor<I>) -> Result<TensorData, String> {
    match try_read_sync(I::float_into_data(tensor.clone())) {
        Some(Ok(data)) => Ok(data.convert_dtype(DType::F32)),
        Some(Err(error)) => Err(format!("`{name}` cannot be read from the device: {error}")),
        None => Err(format!("`{name}` cannot be read at once")),
    }
}

/// A moment that is no number makes every later weight none.
fn finite(name: &str, numbers: &[u8]) -> Result<(), String> {
    let (numbers, _) = numbers.as_chunks();
    let whole = numbers.iter().all(|number| f32::from_le_bytes(*number).is_finite());
    if whole { Ok(()) } else { Err(format!("`{name}` holds NaN or infinity")) }
}

/// A file of tensors, read one tensor at a time.
struct TensorFile {
    file: File,
    header: Metadata,
    /// Where the first tensor begins.
    begin: u64,
}

impl TensorFile {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let attempt = || -> anyhow::Result<Self> {
            let mut file = File::open(path)?;
            let mut length = [0; 8];
            file.read_exact(&mut length)?;
            let header = u64::from_le_bytes(length);
            ensure!(header < file.metadata()?.len(), "the header is longer than the file");
            let mut bytes = Vec::new();
            file.by_ref().take(header).read_to_end(&mut bytes)?;
            // Not the library's own reader of headers: it wants the tensors in the same buffer.
            let metadata: Metadata = serde_json::from_slice(&bytes)?;
            let held = file.metadata()?.len() - header;
            for (name, info) in metadata.tensors() {
                let bits =
                    info.shape.iter().try_fold(info.dtype.bitsize(), |all, side| all.checked_mul(*side));
                let (from, to) = info.data_offsets;
                let fits = from <= to && (to as u64).checked_add(8).is_some_and(|to| to <= held);
                ensure!(fits && bits == (to - from).checked_mul(8), "`{name}` does not lie in the file");
            }
            Ok(Self { file, header: metadata, begin: header + 8 })
        };
        attempt().with_context(|| format!("reading {}", path.display()))
    }

    fn tensor<I: Backend>(
        &mut self,
        name: &str,
        device: &I::Device,
    ) -> anyhow::Result<Option<FloatTensor<I>>> {
        Ok(self.data(name)?.map(|data| I::float_from_data(data, device)))
    }

    fn numbers(&mut self, name: &str) -> anyhow::Result<Option<Vec<f32>>> {
        Ok(self.data(name)?.map(|data| data.iter::<f32>().collect()))
    }

    fn data(&mut self, name: &str) -> anyhow::Result<Option<TensorData>> {
        let Some(info) = self.header.info(name) else { return Ok(None) };
        let (from, to) = info.data_offsets;
        let mut bytes = vec![0; to - from];
        self.file.seek(SeekFrom::Start(self.begin + from as u64))?;
        self.file.read_exact(&mut bytes).with_context(|| format!("reading {name}"))?;
        finite(name, &bytes).map_err(BadInput)?;
        Ok(Some(TensorData::from_bytes_vec(bytes, info.shape.clone(), DType::F32)))
    }

    /// Dimensions of a tensor; none where there is none.
    fn rank(&self, name: &str) -> usize {
        self.header.info(name).map_or(0, |info| info.shape.len())
    }
}
