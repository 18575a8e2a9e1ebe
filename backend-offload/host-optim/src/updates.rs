//! Steps on a background thread, one after another (`background_steps_have_the_bits_of_steps_in_the_foreground`). A
//! caller waits where it needs a result.
//!
//! A failed step leaves NaN weights (`a_step_that_cannot_be_taken_is_reported_and_leaves_nan_for_its_parameter`).

use std::fmt;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use backend_offload::{HostBuffer, Managed};
use burn::tensor::{DType, Element, Shape, Tensor, TensorData, backend::Backend};
use bytemuck::Pod;
use half::bf16;

use crate::adamw::Stride;
use crate::chunks::Pipeline;
use crate::error::HostOptimError;
use crate::numbers::ValuesMut;
use crate::pieces::copy;
use crate::rule::Rule;
use crate::state::{HostState, check_len};
use crate::storage::Storage;
use crate::tensors::{TileTensors, check_dtype, new_tensor, new_tile_tensors, read, tile_tensors};
use crate::tiles::{Code, nan_tiles, tile_bytes};

/// A step prepared by [`HostState::begin_tensor`] or [`HostState::begin_tiles`].
#[derive(Debug)]
pub struct Update {
    state: HostState,
    rule: Rule,
    stride: Stride,
    /// Old weights, if the step reads them.
    weights: Option<HostBuffer>,
    form: Form,
    done: SyncSender<HostBuffer>,
}

#[derive(Debug, Clone, Copy)]
enum Form {
    Numbers(DType),
    /// All codes, then all scales.
    Tiles(Code),
}

impl Update {
    /// Sends weights once the state is stored.
    fn run(self, pipeline: &mut Pipeline) -> Result<HostState, HostOptimError> {
        let Self { mut state, rule, stride, weights, form, done } = self;
        #[cfg(feature = "test-util")]
        crate::faults::panic_if_asked(&state);
        // Taken late: each step frees a gradient, so all need the memory of one.
        let mut weights = weights.map_or_else(|| take_weights_buffer(&state, form), Ok)?;
        match form {
            Form::Tiles(code) => state.step_to_tiles(pipeline, &rule, stride, code, &mut weights)?,
            Form::Numbers(DType::BF16) => {
                let weights = ValuesMut::Bf16(bytemuck::cast_slice_mut(&mut weights));
                state.step_in(pipeline, &rule, stride, weights)?;
            }
            Form::Numbers(_) => {
                let weights = ValuesMut::F32(bytemuck::cast_slice_mut(&mut weights));
                state.step_in(pipeline, &rule, stride, weights)?;
            }
        }
        state.storage.when_written(pipeline, move || _ = done.send(weights));
        Ok(state)
    }

    /// Elements of the parameter.
    #[expect(clippy::len_without_is_empty, reason = "a parameter has elements")]
    pub fn len(&self) -> usize {
        self.state.len()
    }
}

/// Steps in progress.
#[derive(Debug)]
pub struct Updates {
    thread: Option<JoinHandle<Result<Vec<HostState>, HostOptimError>>>,
}

impl Updates {
    /// Starts `updates` on one new thread, in order. If the system refuses a thread, the states are lost.
    pub fn begin(updates: Vec<Update>) -> Result<Self, HostOptimError> {
        Self::begin_then(updates, || {})
    }

    /// [`begin`](Self::begin), then runs `then` on the same thread.
    pub fn begin_then(
        updates: Vec<Update>,
        then: impl FnOnce() + Send + 'static,
    ) -> Result<Self, HostOptimError> {
        Self::run(move || {
            let mut pipeline = Storage::pipeline(updates.iter().map(|update| &update.state.storage))?;
            let taken: Vec<_> = updates.into_iter().map(|update| update.run(&mut pipeline)).collect();
            drop(pipeline);
            let whole = |state: HostState| state.storage.check_written().map(|()| state);
            let states = taken.into_iter().map(|taken| taken.and_then(whole)).collect::<Result<_, _>>()?;
            then();
            Ok(states)
        })
    }

    fn run(
        all: impl FnOnce() -> Result<Vec<HostState>, HostOptimError> + Send + 'static,
    ) -> Result<Self, HostOptimError> {
        let thread = Builder::new().name("host-optim".to_owned()).spawn(all);
        match thread {
            Ok(thread) => Ok(Self { thread: Some(thread) }),
            Err(error) => Err(HostOptimError::Updates { reason: format!("no thread for them: {error}") }),
        }
    }

    /// Waits for all steps and returns their states in order.
    ///
    /// Returns the first failure instead. A failed step's weights are NaN; after a panic, those of all later steps too.
    pub fn finish(mut self) -> Result<Vec<HostState>, HostOptimError> {
        let thread = self.thread.take().expect("there until it is finished");
        thread.join().unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().copied();
            let reason = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            Err(HostOptimError::Updates { reason: reason.unwrap_or("a panic").to_owned() })
        })
    }
}

impl Drop for Updates {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

fn take_weights_buffer(state: &HostState, form: Form) -> Result<HostBuffer, HostOptimError> {
    let bytes = match form {
        Form::Numbers(kind) => kind.size() * state.len(),
        Form::Tiles(_) => tile_bytes(state.len()),
    };
    Ok(state.memory.take(bytes, format_args!("the new weights of {}", state.name()))?)
}

impl HostState {
    /// Prepares one step along the received gradient, for [`Updates`]. Also returns the future parameter. Frees the
    /// device memory of `weights`, and keeps their type.
    ///
    /// An error loses the state. [`Updates::finish`] reports errors of the step itself.
    pub fn begin_tensor<B: Managed, const D: usize>(
        self,
        rule: impl Into<Rule>,
        stride: Stride,
        weights: Tensor<B, D>,
    ) -> Result<(Update, Updated<Tensor<B, D>>), HostOptimError> {
        let device = weights.device();
        self.begin_numbers(rule.into(), stride, weights, move |data| new_tensor(data, &device))
    }

    /// [`begin_tensor`](Self::begin_tensor) that gives the weights' numbers, for other ranks too.
    pub fn begin_data<B: Backend, const D: usize>(
        self,
        rule: impl Into<Rule>,
        stride: Stride,
        weights: Tensor<B, D>,
    ) -> Result<(Update, Updated<Arc<TensorData>>), HostOptimError> {
        self.begin_numbers(rule.into(), stride, weights, Arc::new)
    }

    fn begin_numbers<B: Backend, const D: usize, T>(
        self,
        rule: Rule,
        stride: Stride,
        weights: Tensor<B, D>,
        make: impl FnOnce(TensorData) -> T + Send + 'static,
    ) -> Result<(Update, Updated<T>), HostOptimError> {
        let (shape, kind) = (weights.shape(), weights.dtype());
        check_dtype(&self.name, kind)?;
        let form = Form::Numbers(kind);

        let weights = if self.reads_weights() {
            let read = read(&self.name, weights)?;
            let mut weights = take_weights_buffer(&self, form)?;
            check_len(&self.name, "the parameter", weights.len(), read.bytes.len())?;
            if !self.memory.computes_nothing() {
                copy(&mut weights, &read.bytes);
            }
            Some(weights)
        } else {
            drop(weights);
            None
        };

        let computes = !self.memory.computes_nothing();
        let make = move |done: Option<HostBuffer>| {
            make(match kind {
                DType::BF16 => weights_or_nan(done, computes, bf16::NAN, &shape),
                _ => weights_or_nan(done, computes, f32::NAN, &shape),
            })
        };
        Ok(self.begin(rule, stride, weights, form, make))
    }

    /// [`begin_tensor`](Self::begin_tensor) for a parameter in eight-bit tiles. Fails if the format has no masters on
    /// the host.
    pub fn begin_tiles<B: Managed>(
        self,
        rule: impl Into<Rule>,
        stride: Stride,
        code: Code,
        device: &B::Device,
    ) -> Result<(Update, Updated<TileTensors<B>>), HostOptimError> {
        let device = device.clone();
        let make = move |encoded: Option<HostBuffer>, len| match encoded {
            Some(encoded) => new_tile_tensors(encoded, len, &device),
            None => tile_tensors(&nan_tiles(len), len, &device),
        };
        self.begin_encoded(rule.into(), stride, code, make)
    }

    /// [`begin_tiles`](Self::begin_tiles) that gives bytes for [`tile_tensors`], on other ranks too.
    pub fn begin_tile_data(
        self,
        rule: impl Into<Rule>,
        stride: Stride,
        code: Code,
    ) -> Result<(Update, Updated<Arc<TensorData>>), HostOptimError> {
        let make = |encoded: Option<HostBuffer>, len| {
            let shape = [tile_bytes(len)];
            let bytes = match encoded.map(HostBuffer::into_bytes) {
                Some(Ok(bytes)) => return Arc::new(TensorData::from_bytes(bytes, shape, DType::U8)),
                Some(Err(encoded)) => encoded.to_vec(),
                None => nan_tiles(len),
            };
            Arc::new(TensorData::from_bytes_vec(bytes, shape, DType::U8))
        };
        self.begin_encoded(rule.into(), stride, code, make)
    }

    fn begin_encoded<T>(
        self,
        rule: Rule,
        stride: Stride,
        code: Code,
        make: impl FnOnce(Option<HostBuffer>, usize) -> T + Send + 'static,
    ) -> Result<(Update, Updated<T>), HostOptimError> {
        self.check_has_masters()?;
        let len = self.len;
        Ok(self.begin(rule, stride, None, Form::Tiles(code), move |done| make(done, len)))
    }

    fn begin<T>(
        self,
        rule: Rule,
        stride: Stride,
        weights: Option<HostBuffer>,
        form: Form,
        make: impl FnOnce(Option<HostBuffer>) -> T + Send + 'static,
    ) -> (Update, Updated<T>) {
        let memory = self.memory.clone();
        let (done, waiting) = sync_channel(1);
        let make = move || {
            let begun = Instant::now();
            let done = waiting.recv().ok();
            let waited = begun.elapsed();
            (memory.first(|| make(done)), waited)
        };
        let update = Update { state: self, rule, stride, weights, form, done };
        (update, Updated { weights: Mutex::new(Weights::Pending(Some(Box::new(make)))) })
    }
}

/// The future parameter of an [`Update`].
pub struct Updated<T> {
    weights: Mutex<Weights<T>>,
}

enum Weights<T> {
    /// The closure also returns the time waited. `None` only if an earlier call panicked.
    Pending(Option<Box<dyn FnOnce() -> (T, Duration) + Send>>),
    Ready(T),
}

impl<T> fmt::Debug for Updated<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Updated").finish_non_exhaustive()
    }
}

impl<T: Clone> Updated<T> {
    /// Waits for the new weights; NaN if the step failed.
    pub fn wait(&self) -> T {
        self.wait_timed().0
    }

    /// [`wait`](Self::wait), with the time waited for the step.
    pub fn wait_timed(&self) -> (T, Duration) {
        let mut slot = self.weights.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waited = Duration::ZERO;
        if let Weights::Pending(make) = &mut *slot {
            let make = make.take().expect("an earlier try to make these weights panicked");
            let weights;
            (weights, waited) = make();
            *slot = Weights::Ready(weights);
        }
        match &*slot {
            Weights::Ready(weights) => (weights.clone(), waited),
            Weights::Pending(_) => unreachable!("made just before"),
        }
    }
}

fn weights_or_nan<T: Element + Pod>(
    weights: Option<HostBuffer>,
    computes: bool,
    missing: T,
    shape: &Shape,
) -> TensorData {
    let len = shape.num_elements();
    let numbers = match weights.map(HostBuffer::into_bytes) {
        Some(Ok(bytes)) => return TensorData::from_bytes(bytes, shape.clone(), T::dtype()),
        Some(Err(weights)) if computes => bytemuck::cast_slice(&weights).to_vec(),
        // Unwritten pages take no memory.
        Some(Err(_)) => bytemuck::zeroed_vec(len),
        None => vec![missing; len],
    };
    TensorData::new(numbers, shape.clone())
}

#[cfg(test)]
mod tests {
    use backend_offload::HostMemory;
    use burn::backend::{Flex, flex::FlexDevice};

    use super::*;
    use crate::tensors::tensor_from_data;
    use crate::{AdamW, Format, Saved, Values};

    const RULE: AdamW = AdamW { betas: [0.9, 0.95], epsilon: 1e-8, weight_decay: 0.1 };
    const STRIDE: Stride = Stride { lr: 1e-2, scale: 1.0 };
    const LEN: usize = 700;

    fn due(memory: &HostMemory, format: Format, seed: usize) -> (HostState, Vec<bf16>) {
        let numbers = |seed: usize| -> Vec<bf16> {
            (0..LEN).map(|n| bf16::from_f32(((n * 7 + seed) as f32 * 0.618).fract() - 0.5)).collect()
        };
        let mut weights = numbers(seed);
        let name = format!("parameter {seed}");
        let mut state = HostState::new(memory, &name, format, Values::Bf16(&weights)).expect("memory");
        state.arrive(Values::Bf16(&numbers(seed + 1))).expect("memory");
        state.step(RULE, STRIDE, ValuesMut::Bf16(&mut weights)).expect("it is due");
        state.arrive(Values::Bf16(&numbers(seed + 2))).expect("memory");
        (state, weights)
    }

    fn tensor(weights: &[bf16]) -> Tensor<Flex, 1> {
        tensor_from_data(TensorData::new(weights.to_vec(), [LEN]), &FlexDevice)
    }

    fn numbers(updated: &Updated<Tensor<Flex, 1>>) -> Vec<f32> {
        updated.wait().into_data().iter().collect()
    }

    #[test]
    fn a_panic_in_a_step_leaves_nan_weights_and_saved_states_resume() {
        for format in [Format::F32, Format::Bf16Moments, Format::Compact] {
            let memory = HostMemory::unlimited();
            let due = |seed| due(&memory, format, seed);
            let saved: Vec<Saved> = (0..3)
                .map(due)
                .map(|(state, weights)| state.save(Values::Bf16(&weights)).expect("its own weights"))
                .collect();

            let prepared = (0..3).map(|seed| {
                let (state, weights) = due(seed);
                state.begin_tensor(RULE, STRIDE, tensor(&weights)).expect("memory")
            });
            let (mut updates, updated): (Vec<_>, Vec<_>) = prepared.unzip();

            let panicking = move || {
                updates.remove(0).run(&mut Pipeline::default())?;
                let _begun = updates.remove(0);
                panic!("the memory went away")
            };
            let updates = Updates::run(panicking).expect("a thread");
            assert!(numbers(&updated[0]).iter().all(|x| x.is_finite()));
            for failed in &updated[1..] {
                assert!(numbers(failed).iter().all(|x| x.is_nan()), "{format:?}");
            }
            let message = updates.finish().expect_err("it panicked").to_string();
            assert_eq!(message, "the optimizer's steps on the host ended early: the memory went away");
            drop(updated);
            assert_eq!(memory.usage().in_use, 0, "what the steps held is free");

            for (seed, saved) in saved.iter().enumerate() {
                let (mut undisturbed, mut expected) = due(seed);
                undisturbed.step(RULE, STRIDE, ValuesMut::Bf16(&mut expected)).expect("it is due");
                let mut weights = vec![bf16::ZERO; LEN];
                let name = undisturbed.name().to_owned();
                let mut again =
                    HostState::restore(&memory, &name, format, saved, &mut ValuesMut::Bf16(&mut weights))
                        .expect("memory");
                let (gradient, _) = due(seed);
                let Values::Bf16(gradient) = gradient.shares()[0] else { panic!("it came in bf16") };
                again.arrive(Values::Bf16(gradient)).expect("memory");
                again.step(RULE, STRIDE, ValuesMut::Bf16(&mut weights)).expect("it is due");
                let stepped = [(&undisturbed, &expected), (&again, &weights)]
                    .map(|(state, weights)| state.save(Values::Bf16(weights)).expect("its own weights"));
                assert!(stepped[0] == stepped[1], "{format:?}: parameter {seed}");
            }
        }
    }

    /// Pages of `bytes` that have memory.
    #[cfg(target_os = "linux")]
    fn resident(bytes: &[u8]) -> usize {
        use std::fs::File;
        use std::io::{Read, Seek, SeekFrom};

        const PAGE: usize = 4096;
        let (first, pages) = (bytes.as_ptr() as usize / PAGE, bytes.len() / PAGE);
        let mut table = File::open("/proc/self/pagemap").expect("a table of this process");
        table.seek(SeekFrom::Start(8 * first as u64)).expect("the page has an entry");
        let mut entries = vec![0; 8 * pages];
        table.read_exact(&mut entries).expect("each page has an entry");
        entries.chunks(8).filter(|entry| entry[7] & 0x80 != 0).count()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn new_weights_take_no_memory_where_nothing_is_computed() {
        // glibc keeps smaller freed memory for later.
        let zeros = vec![bf16::ZERO; 20 << 20];
        let taken = |memory: HostMemory| {
            let state = HostState::new(&memory, "large", Format::Bf16Moments, Values::Bf16(&zeros));
            let mut state = state.expect("memory");
            state.arrive(Values::Bf16(&zeros)).expect("memory");
            let weights: Tensor<Flex, 1> =
                tensor_from_data(TensorData::new(zeros.clone(), [zeros.len()]), &FlexDevice);
            let (update, updated) = state.begin_data(RULE, STRIDE, weights).expect("memory");
            let updates = Updates::begin(vec![update]).expect("a thread");
            let taken = resident(&updated.wait().bytes);
            updates.finish().expect("no step fails");
            taken
        };
        let all = size_of_val(zeros.as_slice()) / 4096;
        let [computed, dry] = [HostMemory::unlimited(), HostMemory::dry_run()].map(taken);
        assert!(computed >= all - 1 && dry <= 2, "{computed} and {dry} of {all}");
    }

    #[test]
    fn a_panic_in_a_step_is_reported_with_its_message() {
        let steps: [fn() -> _; 2] = [|| panic!("the index is too large"), || panic!("{}", 1 + 1)];
        for (step, words) in steps.into_iter().zip(["the index is too large", "2"]) {
            let message = Updates::run(step).and_then(Updates::finish).expect_err("it panicked").to_string();
            assert_eq!(message, format!("the optimizer's steps on the host ended early: {words}"));
        }
    }
}
