//! A run's state on disk: weights, moments, position.
//!
//! Saving fetches one tensor at a time into host memory, and from the device only weights that the host lacks
//! (`a_checkpoint_reads_from_the_device_only_what_the_host_lacks`). Randomness follows from seed and step and is not
//! saved. Files are untrusted (`no_state_however_written_brings_resuming_or_inspecting_down`).

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
};

use anyhow::{Context, ensure};
use backend_offload::Managed;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData, TensorMetadata, backend::Backend, ops::FloatTensor, try_read_sync};
use host_optim::{HostOptimError, HostState};
use models::{
    Gpt, ParameterInfo,
    weights::{self, Begun, Fetch, Outgoing, TensorFile, WeightsError},
};
use runs::BadInput;
use runs::checkpoint::{CONFIG, MOMENTS, STATE, TOKENIZER, WEIGHTS};
use runs::config::{Config, OptimizerKind};
use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use tokenizer::Tokenizer;

use super::Progress;
use super::parts::Parts;
use crate::optimizer::{HostPart, Moments, Optimizer, Owners, Restored};
use crate::parameters::learned;
use crate::ranks::Pairs;
use crate::rule::{MOMENT_NAMES, keeps_second_moment};

const FORMAT: u32 = 1;
const MOMENTS_FAILED: &str = "saving the optimizer's moments";

#[derive(Debug, Serialize, Deserialize)]
struct State {
    format: u32,
    optimizer: OptimizerKind,
    progress: Progress,
    times: BTreeMap<String, usize>,
}

/// What a checkpoint holds.
pub(crate) struct Contents<'c, I: Backend, B: Backend> {
    pub(super) gpt: &'c Gpt<B>,
    pub(super) optimizer: &'c Optimizer<I>,
    pub(super) config: &'c Config,
    pub(super) progress: &'c Progress,
    pub(super) tokenizer: &'c Tokenizer,
}

impl<I: Backend, B: Backend> Contents<'_, I, B> {
    #[cfg(test)]
    pub(super) fn save(&self, folder: &Path) -> anyhow::Result<()> {
        self.save_except(folder, None, |_| Ok(()))
    }

    /// Writes all but the `parts`, which other ranks write once `announce` has sent the places.
    pub(super) fn save_except(
        &self,
        folder: &Path,
        parts: Option<&Parts>,
        announce: impl FnOnce(&[u64]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let Self { gpt, optimizer, config, progress, tokenizer } = *self;
        let mut on_host = optimizer.states_on_host()?;
        let mut table = optimizer.host.as_ref().and_then(HostPart::table);
        if let Some(table) = &mut table {
            let whole = table.whole();
            on_host.insert(whole.name(), whole);
        }

        let complete = |name: &str, shape: &[usize], read: weights::Read<'_>| match on_host.get(name) {
            Some(state) if !state.reads_weights() => {
                let masters = state.own_masters().map_err(|error| unread(name, &error))?;
                Ok(TensorData::new(masters, shape.to_vec()))
            }
            Some(state) => state.complete(read()?).map_err(|error| unread(name, &error)),
            None => read(),
        };
        let weights = folder.join(WEIGHTS);
        let weights = if gpt.has_adapters() {
            weights::save_adapters(gpt, &weights)?;
            None
        } else {
            Some(weights::begin_completed(gpt, &weights, complete)?)
        };

        let moments = self.moments(&on_host, parts);
        let moments = Begun::with(&folder.join(MOMENTS), moments).context(MOMENTS_FAILED)?;
        if let Some(parts) = parts {
            announce(&parts.places(weights.as_ref(), &moments))?;
        }
        let is_elsewhere = |key: &str| parts.is_some_and(|parts| parts.has(key));
        weights.map_or(Ok(()), |weights| weights.finish(is_elsewhere))?;
        moments.finish(is_elsewhere).context(MOMENTS_FAILED)?;

        let remote = parts.map(|parts| parts.times.clone()).unwrap_or_default();
        let state = State {
            format: FORMAT,
            optimizer: config.train.optimizer,
            progress: progress.clone(),
            times: remote.into_iter().chain(times(optimizer, &on_host)).collect(),
        };
        save_beside(folder, &state, config, tokenizer)
    }

    fn moments<'m>(
        &'m self,
        on_host: &HashMap<&'m str, &'m HostState>,
        parts: Option<&Parts>,
    ) -> BTreeMap<String, Outgoing<'m>> {
        let mut moments = BTreeMap::new();
        for (name, kept) in &self.optimizer.moments {
            let tensors = [Some(&kept.first), kept.second.as_ref()];
            for (part, tensor) in MOMENT_NAMES.into_iter().zip(tensors) {
                if let Some(tensor) = tensor {
                    let name = format!("{name}.{part}");
                    let (shape, called) = (tensor.shape().to_vec(), name.clone());
                    let fetch: Fetch<'_> = Box::new(move || read::<I>(&called, tensor));
                    moments.insert(name, Outgoing { shape, fetch });
                }
            }
        }
        for part in parts.iter().flat_map(|parts| parts.moments()) {
            let key = part.key.clone();
            let fetch: Fetch<'_> = Box::new(move || Err(unread(&key, &"another rank has it")));
            moments.insert(part.key.clone(), Outgoing { shape: part.shape.clone(), fetch });
        }

        let reads = [HostState::first_moments, HostState::second_moments];
        for ParameterInfo { name, shape, .. } in learned(self.config) {
            let Some(&state) = on_host.get(name.as_str()) else { continue };
            for (part, read) in MOMENT_NAMES.into_iter().zip(reads).take(state.moments()) {
                let sides = shape.clone();
                let fetch: Fetch<'_> = Box::new(move || {
                    let numbers = read(state).map_err(|error| unread(state.name(), &error))?;
                    Ok(TensorData::new(numbers, sides.clone()))
                });
                moments.insert(format!("{name}.{part}"), Outgoing { shape: shape.clone(), fetch });
            }
        }
        moments
    }
}

/// Steps that parameters have taken, by name; `on_host` has their states there.
pub(super) fn times<I: Backend>(
    optimizer: &Optimizer<I>,
    on_host: &HashMap<&str, &HostState>,
) -> impl Iterator<Item = (String, usize)> {
    let on_device = optimizer.moments.iter().map(|(name, moments)| (name.clone(), moments.time));
    let on_host = on_host.values().map(|state| (state.name().to_owned(), state.time() as usize));
    on_device.chain(on_host)
}

pub(crate) fn save_first(
    folder: &Path,
    write: impl FnOnce(&Path) -> Result<(), WeightsError>,
    config: &Config,
    tokenizer: &Tokenizer,
) -> anyhow::Result<()> {
    write(&folder.join(WEIGHTS))?;
    let moments = Begun::with(&folder.join(MOMENTS), BTreeMap::new());
    moments.and_then(|moments| moments.finish(|_| false)).context(MOMENTS_FAILED)?;
    let (optimizer, progress) = (config.train.optimizer, Progress::start(config.train.seed));
    let state = State { format: FORMAT, optimizer, progress, times: BTreeMap::new() };
    save_beside(folder, &state, config, tokenizer)
}

fn save_beside(folder: &Path, state: &State, config: &Config, tokenizer: &Tokenizer) -> anyhow::Result<()> {
    fs::write(folder.join(STATE), serde_json::to_vec_pretty(state)?).context("writing the state")?;
    fs::write(folder.join(CONFIG), config.to_json()).context("writing the configuration")?;
    tokenizer.save(folder.join(TOKENIZER))?;
    Ok(())
}

/// Checks names, shapes and types, without reading numbers.
pub(crate) fn check(folder: &Path) -> anyhow::Result<()> {
    let config = Config::load(&folder.join(CONFIG).to_string_lossy(), &[])?;
    let file = folder.join(WEIGHTS);
    match &config.train.lora {
        Some(lora) => weights::check_adapters(&config.model, lora, &file)?,
        None => weights::check_native(&config.model, &file)?,
    }
    check_moments(&State::read(folder)?, folder, &TensorFile::open(&folder.join(MOMENTS))?)
}

fn check_moments(state: &State, folder: &Path, moments: &TensorFile) -> anyhow::Result<()> {
    let weights = TensorFile::open(&folder.join(WEIGHTS))?;
    let mut expected = 0;
    for name in state.times.keys() {
        let weight = weights.info(name);
        let weight = weight.with_context(|| format!("{STATE} names `{name}`, which is not in {WEIGHTS}"))?;
        let second = keeps_second_moment(state.optimizer, name, weight.shape.len());
        for part in MOMENT_NAMES.into_iter().take(1 + usize::from(second)) {
            let part = format!("{name}.{part}");
            let found = moments.info(&part).with_context(|| format!("{MOMENTS} lacks `{part}`"))?;
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

    let found = moments.count();
    ensure!(found == expected, "{MOMENTS} holds {found} tensors and {STATE} accounts for {expected}");
    Ok(())
}

const MAX_STATE: u64 = 64 << 20;

impl State {
    fn read(folder: &Path) -> anyhow::Result<Self> {
        let read = || format!("reading {}", folder.join(STATE).display());
        let bytes = durable::regular::read(&folder.join(STATE), MAX_STATE).with_context(read)?;
        let state: Self = serde_json::from_slice(&bytes).with_context(read)?;
        ensure!(
            state.format == FORMAT,
            "the checkpoint {} has format {}, this program reads {FORMAT}",
            folder.display(),
            state.format
        );
        Ok(state)
    }
}

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
            "the checkpoint {} was trained with {:?} and cannot resume with {wanted:?}",
            folder.display(),
            state.optimizer
        ))
        .into());
    }

    let mut optimizer = Optimizer::placed(config, device);
    optimizer.owners = owners;
    let stored = TensorFile::open(&folder.join(MOMENTS))?;
    check_moments(&state, folder, &stored)
        .with_context(|| format!("the checkpoint {} cannot be resumed", folder.display()))?;
    let (mut on_host, mut other_times) = (HashMap::new(), HashMap::new());
    for (name, time) in state.times {
        if !optimizer.owners.has(&name) {
            other_times.insert(name, time);
            continue;
        }
        let [first, second] = MOMENT_NAMES.map(|part| format!("{name}.{part}"));
        let numbers = |part: &str| stored.numbers(part).map_err(|error| BadInput(error.to_string()));
        if optimizer.host.as_ref().is_some_and(|host| host.takes(&name)) {
            on_host.insert(name, time);
            continue;
        }
        let tensor = |part: &str| Ok::<_, BadInput>(I::float_from_data(numbers(part)?, device));
        let second = stored.info(&second).map(|_| tensor(&second)).transpose()?;
        let first = tensor(&first)?;
        optimizer.moments.insert(name, Moments { time, first, second });
    }

    if let Some(host) = &mut optimizer.host {
        host.restored = Some(Restored { stored, times: on_host, other_times });
    }
    Ok((state.progress, optimizer))
}

pub(super) fn moment_on_device<I: Backend>(
    optimizer: &Optimizer<I>,
    parameter: &str,
    part: usize,
) -> anyhow::Result<Vec<f32>> {
    let kept = optimizer.moments.get(parameter);
    let tensor = kept.and_then(|kept| [Some(&kept.first), kept.second.as_ref()][part]);
    let tensor = tensor.with_context(|| format!("the moments of `{parameter}` are not here"))?;
    Ok(read::<I>(parameter, tensor)?.iter::<f32>().collect())
}

/// As [`Optimizer::replace_moments`] takes them.
pub(super) fn moments<I: Managed>(optimizer: &Optimizer<I>) -> Pairs<'_> {
    let names: Vec<&String> = optimizer.moments.keys().collect();
    let mut lengths: Vec<[usize; 2]> = optimizer.moments.values().map(Moments::lengths).collect();
    lengths.push([names.len(); 2]);
    let of_pair = lengths.clone();
    let fetch = move |n: usize| {
        if n == names.len() {
            let (low, high) =
                optimizer.moments.values().map(Moments::time_in_two).map(<(f32, f32)>::from).unzip();
            return Ok([low, high]);
        }
        let part = |part: usize| match of_pair[n][part] {
            0 => Ok(Vec::new()),
            _ => moment_on_device(optimizer, names[n], part),
        };
        Ok([part(0)?, part(1)?])
    };
    Pairs { lengths, fetch: Box::new(fetch) }
}

/// States and moments of this process, read one at a time.
pub(super) struct Own<'o, I: Backend> {
    optimizer: &'o Optimizer<I>,
    on_host: HashMap<&'o str, &'o HostState>,
}

impl<'o, I: Backend> Own<'o, I> {
    pub(super) fn of(optimizer: &'o Optimizer<I>) -> anyhow::Result<Self> {
        Ok(Self { optimizer, on_host: optimizer.states_on_host()? })
    }

    pub(super) fn moment(&self, parameter: &str, part: usize) -> anyhow::Result<Vec<f32>> {
        if let Some(state) = self.on_host.get(parameter) {
            return Ok([HostState::first_moments, HostState::second_moments][part](state)?);
        }
        moment_on_device(self.optimizer, parameter, part)
    }

    pub(super) fn masters<B: Backend>(&self, gpt: &Gpt<B>, parameter: &str) -> anyhow::Result<Vec<f32>> {
        let state = self.on_host.get(parameter);
        if let Some(state) = state.filter(|state| !state.reads_weights()) {
            return Ok(state.own_masters()?);
        }
        let mut named = Named { parameter, path: Vec::new(), read: None };
        gpt.visit(&mut named);
        let read = named.read.with_context(|| format!("`{parameter}` is no parameter"))??;
        let masters = state.map_or(Ok(read.clone()), |state| state.complete(read))?;
        Ok(masters.iter::<f32>().collect())
    }
}

struct Named<'n> {
    parameter: &'n str,
    path: Vec<String>,
    read: Option<Result<TensorData, HostOptimError>>,
}

impl<B: Backend> ModuleVisitor<B> for Named<'_> {
    models::keeps_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if self.path.join(".") == self.parameter {
            self.read = Some(host_optim::read(self.parameter, param.val()));
        }
    }
}

fn read<I: Backend>(name: &str, tensor: &FloatTensor<I>) -> Result<TensorData, WeightsError> {
    match try_read_sync(I::float_into_data(tensor.clone())) {
        Some(Ok(data)) => Ok(data),
        Some(Err(error)) => Err(unread(name, &error)),
        None => Err(unread(name, &"it cannot be read at once")),
    }
}

fn unread(name: &str, reason: &dyn ToString) -> WeightsError {
    WeightsError::Unread { name: name.to_owned(), reason: reason.to_string() }
}
