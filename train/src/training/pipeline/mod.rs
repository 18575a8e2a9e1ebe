//! One rank's stage of a pipeline (`ranks.pipeline`): its passes, and what crosses to other stages.
//!
//! Gradients are summed as in one process (`stages_on_ranks_have_the_bits_of_one_process`). A rank that cannot read its
//! numbers sends zeros and reports it at the vote.

mod measuring;
mod schedule;
mod speaking;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use backend_offload::Managed;
use burn::backend::Autodiff;
use burn::tensor::{DType, Tensor, TensorData, backend::Backend};
use models::stage::{Stage, StagePass};
use models::{Chunks, Lean, Plain};

use super::Learner;
use super::gradients::{Sum, TapeLock};
use crate::data::MicroBatch;
use crate::ranks::{Pipe, Ranks, Route};
pub(super) use measuring::Measuring;
use schedule::{Work, schedule};
pub(super) use speaking::spoken_by_stages;

/// What crosses forward; its gradient has the next tag.
const STREAM: u8 = 0;
const EMBEDDED: u8 = 2;
/// In an evaluation: the last stage has measured a batch.
const MEASURED: u8 = 4;
/// In sampling: what the stages read next, and the last one's logits.
const ORDER: u8 = 5;
const TEXTS: u8 = 6;
const LOGITS: u8 = 7;

#[derive(Debug, Clone, Copy)]
struct Cut {
    rank: usize,
    tag: u8,
}

impl Cut {
    fn forward(self) -> Route {
        (self.rank, self.tag)
    }

    fn backward(self) -> Route {
        (self.rank, self.tag + 1)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) stage: Stage,
    place: (usize, usize),
    /// Rank of its first stage.
    first: usize,
    /// Before the first segment, unless the stage embeds for itself.
    input: Option<Cut>,
    output: Option<Cut>,
    embedding: Option<Cut>,
}

impl Line {
    pub(super) fn new<B: Backend>(learner: &Learner<B>, ranks: &Ranks) -> Self {
        let config = learner.gpt.config();
        let place @ (number, count) = (ranks.stage(), ranks.stages());
        let layers = (config.n_layer, learner.pass.recompute.unwrap_or(1));
        let stage = Stage::new(place, layers, config.tie_word_embeddings);
        let first = ranks.rank() - number;
        let input = match number {
            0 if stage.begins => None,
            0 => Some(Cut { rank: first + count - 1, tag: EMBEDDED }),
            _ => Some(Cut { rank: first + number - 1, tag: STREAM }),
        };
        let output = (!stage.ends).then_some(Cut { rank: first + number + 1, tag: STREAM });
        let embedding = stage.embeds.then_some(Cut { rank: first, tag: EMBEDDED });
        Self { stage, place, first, input, output, embedding }
    }

    /// The last stage reports batches to a first one that could run ahead.
    fn measures(&self) -> Option<Route> {
        (self.stage.ends && !self.stage.embeds).then_some((self.first, MEASURED))
    }

    fn hears(&self) -> Option<Route> {
        let (number, stages) = self.place;
        (number == 0 && self.stage.begins).then_some((self.first + stages - 1, MEASURED))
    }

    fn needs(&self, work: Work) -> Option<Route> {
        match work {
            Work::Embed(_) => None,
            Work::Forward(_) => self.input.map(Cut::forward),
            Work::Backward(_) => self.output.map(Cut::backward),
            Work::EmbedBackward(_) => self.embedding.map(Cut::backward),
        }
    }

    /// What the stage's blocks read in a pass without gradients, `None` if another stage is gone.
    fn stream<B: Backend>(
        &self,
        pipe: &mut Pipe,
        (shape, device): ([usize; 3], &B::Device),
        failure: &mut Option<String>,
        embed: impl Fn() -> Result<Tensor<B, 3>, String>,
    ) -> Result<Option<Tensor<B, 3>>, String> {
        if let Some(cut) = self.embedding {
            send(pipe, cut.forward(), embed()?, failure);
        }
        let Some(from) = self.input.map(Cut::forward) else { return embed().map(Some) };
        pipe.expect(from, f32_bytes(shape));
        Ok(pipe.take(from).map(|bytes| tensor(bytes, shape, device)))
    }
}

struct UnderWay<I: Backend> {
    pass: StagePass<I>,
    named: Option<Arc<[u32]>>,
}

pub(super) struct Passes<'a, I: Managed> {
    pub(super) learner: &'a Learner<Autodiff<I>>,
    pub(super) line: &'a Line,
    pub(super) step: u64,
    /// From the number of the first.
    pub(super) own: (u64, &'a [MicroBatch]),
    pub(super) divisor: f64,
    pub(super) pipe: &'a mut Pipe,
}

impl<I: Managed> Passes<'_, I> {
    /// Losses, on the last stage. [`Ranks::end_pipe`] reports a failed call.
    pub(super) fn run(mut self, sum: &mut Sum<'_, I>) -> Vec<Tensor<I, 1>> {
        let (_, own) = self.own;
        let (mut under_way, mut losses) = (HashMap::new(), Vec::new());
        let works = schedule(self.line.place, own.len(), self.line.stage.embeds);
        for (at, work) in works.iter().enumerate() {
            // The next message crosses while this work runs.
            let from = if at == 0 { 0 } else { at + 1 };
            for next in works.iter().take(at + 2).skip(from) {
                if let Some(route) = self.line.needs(*next) {
                    self.pipe.expect(route, f32_bytes(self.shape(*next)));
                }
            }
            let mut arrived = None;
            if let Some(route) = self.line.needs(*work) {
                let Some(bytes) = self.pipe.take(route) else { break };
                arrived = Some(tensor(bytes, self.shape(*work), &self.learner.gpt.wte.lazy_device()));
            }
            self.perform(*work, arrived, &mut under_way, sum, &mut losses);
            sum.keeps(under_way.values().map(|one: &UnderWay<I>| one.pass.kept_bytes()).sum());
        }
        losses
    }

    fn shape(&self, work: Work) -> [usize; 3] {
        let (Work::Embed(n) | Work::Forward(n) | Work::Backward(n) | Work::EmbedBackward(n)) = work;
        shape(&self.own.1[n], self.learner.gpt.config().n_embd)
    }

    fn begin(&self, n: usize) -> UnderWay<I> {
        let (first, own) = self.own;
        let place = (self.step, first + n as u64);
        let (batch, options, named) = self.learner.prepare(place, &own[n], self.divisor);
        UnderWay { pass: StagePass::new(batch, options), named }
    }

    fn perform(
        &mut self,
        work: Work,
        arrived: Option<Tensor<I, 3>>,
        under_way: &mut HashMap<usize, UnderWay<I>>,
        sum: &mut Sum<'_, I>,
        losses: &mut Vec<Tensor<I, 1>>,
    ) {
        let (gpt, stage, chunks) = (&self.learner.gpt, &self.line.stage, Chunks::default());
        match work {
            Work::Embed(n) => {
                let one = self.begin(n);
                let embedded = one.pass.embedded(gpt, Plain(chunks));
                under_way.insert(n, one);
                self.send(self.line.embedding.map(Cut::forward), Some(embedded), sum);
            }
            Work::Forward(n) => {
                let one = under_way.entry(n).or_insert_with(|| self.begin(n));
                let stream = one.pass.forward(gpt, stage, arrived, Plain(chunks));
                self.send(self.line.output.map(Cut::forward), stream, sum);
            }
            Work::Backward(n) => {
                let mut one = under_way.remove(&n).expect("it passed forward");
                sum.begin_micro_batch(n as u64, one.named.clone());
                let held = RefCell::new((TapeLock::hold(), &mut *sum));
                let gradient = one.pass.backward(gpt, stage, arrived, Lean(chunks), |ready| {
                    let (tape, sum) = &mut *held.borrow_mut();
                    tape.without(|| sum.add(gpt, 0, ready));
                });
                drop(held);
                losses.extend(one.pass.loss().cloned());
                self.send(self.line.input.map(Cut::backward), gradient, sum);
                if stage.embeds {
                    under_way.insert(n, one);
                }
            }
            Work::EmbedBackward(n) => {
                let mut one = under_way.remove(&n).expect("it passed backward");
                let gradient = arrived.expect("the first stage sends it");
                let tape = TapeLock::hold();
                let ready = one.pass.backward_embedding(gpt, gradient, Lean(chunks));
                drop(tape);
                sum.begin_micro_batch(n as u64, one.named);
                sum.add(gpt, 0, ready);
            }
        }
    }

    fn send(&mut self, to: Option<Route>, stream: Option<Tensor<I, 3>>, sum: &mut Sum<'_, I>) {
        if let (Some(to), Some(stream)) = (to, stream) {
            send(self.pipe, to, stream, &mut sum.failure);
        }
    }
}

fn send<B: Backend>(pipe: &Pipe, to: Route, stream: Tensor<B, 3>, failure: &mut Option<String>) {
    let bytes = bytes(stream).unwrap_or_else(|(why, zeros)| {
        failure.get_or_insert(why);
        zeros
    });
    pipe.send(to, bytes);
}

fn shape(micro_batch: &MicroBatch, width: usize) -> [usize; 3] {
    [micro_batch.rows, micro_batch.inputs.len() / micro_batch.rows, width]
}

fn f32_bytes(shape: [usize; 3]) -> usize {
    size_of::<f32>() * shape.iter().product::<usize>()
}

fn tensor<B: Backend>(bytes: Vec<u8>, shape: [usize; 3], device: &B::Device) -> Tensor<B, 3> {
    Tensor::from_data(TensorData::from_bytes_vec(bytes, shape, DType::F32), device)
}

/// A failure comes with zeros to send.
fn bytes<B: Backend>(stream: Tensor<B, 3>) -> Result<Vec<u8>, (String, Vec<u8>)> {
    let zeros = size_of::<f32>() * stream.shape().num_elements();
    match host_optim::read("the residual stream", stream) {
        Ok(data) if data.dtype == DType::F32 => Ok(data.bytes.to_vec()),
        Ok(data) => Err((format!("the residual stream is {:?}, not f32", data.dtype), vec![0; zeros])),
        Err(error) => Err((error.to_string(), vec![0; zeros])),
    }
}
