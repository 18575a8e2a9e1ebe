//! Training without keeping the blocks' activations, driven from outside the tape.
//!
//! Burn 0.21 has no checkpointing of user functions. A custom node cannot add it: `backward` inside a backward step
//! deadlocks on the graph's lock. So this module walks the model itself. The forward pass runs on the inner backend,
//! without a tape, and keeps the input of each segment of `every` blocks. Then, from the head down, each segment runs
//! again under autodiff from a leaf, and `backward` is called on `sum(y · g)`. The leaf's gradient is the `g` of the
//! segment below.
//!
//! Both runs execute the same operations on the same inner backend in the same chunks, and dropout draws from a key. So
//! the second reproduces the first.
//!
//! Weights are requested one segment at a time, when the forward pass reaches them: they may still be on their way
//! (`a_blocks_weights_are_first_used_when_the_pass_reaches_it`).
//!
//! Each segment's gradients are handed out as soon as they exist, every parameter once: a tied embedding's share from
//! the head waits for that of the input. The callback may step these parameters at once, since no later segment reads
//! them.

use std::ops::Range;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::module::{AutodiffModule, Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{
    DType, Shape, Tensor,
    backend::{AutodiffBackend, Backend},
};

use crate::gpt::{Batch, Gpt, PassOptions};
use crate::input::Input;
use crate::kernels::{Lean, Plain};
use crate::rows;
use crate::tiles::{Code, Rounding, Tiles};

/// Runs forward and backward, recomputing `every` blocks at a time. Calls `on_segment` with each segment's gradients,
/// from the head down. Returns the model from the last call, and the loss, shape `[1]`.
pub fn sweep<I, C, F>(
    model: Gpt<Autodiff<I, C>>,
    batch: Batch<I>,
    options: &PassOptions,
    kernels: Lean,
    every: usize,
    mut on_segment: F,
) -> (Gpt<Autodiff<I, C>>, Tensor<I, 1>)
where
    I: Backend,
    C: CheckpointStrategy,
    F: FnMut(Gpt<Autodiff<I, C>>, GradientsParams) -> Gpt<Autodiff<I, C>>,
{
    let segments = segments(model.config().n_layer, every);
    let inputs = batch.inputs.clone();
    let Batch { targets, mask, .. } = Batch::<Autodiff<I, C>>::from_inner(batch);
    let (mut kept, hidden) = forward(&model, &segments, &inputs, options, Plain(kernels.0));

    let hidden = leaf::<I, C>(hidden);
    let loss = model.head_loss(hidden.clone(), targets, mask, options, &kernels);
    let value = loss.clone().inner();
    let mut grads = loss.backward();
    let mut upstream = input_gradient(&hidden, &mut grads);
    let mut ready = GradientsParams::from_grads(grads, &model);
    let embedding = model.wte.id;
    let mut from_head = ready.remove::<I, 2>(embedding);
    let mut model = on_segment(model, ready);

    for segment in segments.into_iter().rev() {
        let input = kept.pop().map(|kept| leaf::<I, C>(kept.restore()));
        let mut named_rows = None;
        let x = if let Some(leaf) = &input {
            leaf.clone()
        } else {
            let inputs = Input::from_inner(inputs.clone());
            named_rows.clone_from(&inputs.rows);
            model.embed(inputs, options.dropout, &kernels)
        };
        let y = model.run_blocks(segment, x, options.dropout, &kernels);
        let mut grads = (y * Tensor::from_inner(upstream.clone())).sum().backward();
        if let Some(leaf) = &input {
            upstream = input_gradient(leaf, &mut grads);
        }
        let mut ready = rows::gradients(grads, &model, embedding, named_rows.as_ref());
        if input.is_none()
            && let Some(from_head) = from_head.take()
        {
            let from_input = ready.remove::<I, 2>(embedding).expect("the first segment reads the embedding");
            ready.register(embedding, from_input + from_head);
        }
        model = on_segment(model, ready);
    }
    (model, value)
}

/// Collects the gradients of a [`sweep`]: returns the loss, shape `[1]`, and every parameter's gradient.
pub fn loss_and_gradients<I: Backend, C: CheckpointStrategy>(
    model: &Gpt<Autodiff<I, C>>,
    batch: Batch<I>,
    options: &PassOptions,
    kernels: Lean,
    every: usize,
) -> (Tensor<I, 1>, GradientsParams) {
    let mut all = GradientsParams::new();
    let (_, loss) = sweep(model.clone(), batch, options, kernels, every, |model, mut segment| {
        model.visit(&mut MoveGradients { from: &mut segment, to: &mut all });
        model
    });
    (loss, all)
}

/// Inputs of every segment but the first, which starts from tokens, and the last hidden states.
fn forward<I: Backend, C: CheckpointStrategy>(
    model: &Gpt<Autodiff<I, C>>,
    segments: &[Range<usize>],
    inputs: &Input<I>,
    options: &PassOptions,
    kernels: Plain,
) -> (Vec<SegmentInput<I>>, Tensor<I, 3>) {
    let mut kept = Vec::with_capacity(segments.len());
    let mut x = model.part(0..0).valid().embed(inputs.clone(), options.dropout, &kernels);
    for segment in segments {
        if segment.start > 0 {
            kept.push(SegmentInput::new(x.clone(), options.inputs_in_tiles));
        }
        let part = model.part(segment.clone()).valid();
        x = part.run_blocks(0..segment.len(), x, options.dropout, &kernels);
    }
    (kept, x)
}

/// A segment's input, kept until the segment runs again.
enum SegmentInput<I: Backend> {
    Exact(Tensor<I, 3>),
    InTiles { tiles: Tiles<I>, shape: Shape, kind: DType },
}

impl<I: Backend> SegmentInput<I> {
    fn new(input: Tensor<I, 3>, in_tiles: bool) -> Self {
        if !in_tiles {
            return Self::Exact(input);
        }
        let (shape, kind) = (input.shape(), input.dtype());
        Self::InTiles { tiles: Tiles::encode(input, Rounding::Nearest), shape, kind }
    }

    fn restore(self) -> Tensor<I, 3> {
        match self {
            Self::Exact(input) => input,
            Self::InTiles { tiles, shape, kind } => tiles.decode(Code::Int8, shape, kind),
        }
    }
}

fn segments(layers: usize, every: usize) -> Vec<Range<usize>> {
    let every = every.clamp(1, layers);
    (0..layers).step_by(every).map(|start| start..(start + every).min(layers)).collect()
}

fn leaf<I: Backend, C: CheckpointStrategy>(x: Tensor<I, 3>) -> Tensor<Autodiff<I, C>, 3> {
    Tensor::from_inner(x).require_grad()
}

fn input_gradient<B: AutodiffBackend>(
    leaf: &Tensor<B, 3>,
    grads: &mut B::Gradients,
) -> Tensor<B::InnerBackend, 3> {
    leaf.grad_remove(grads).expect("every segment and the head read their whole input")
}

struct MoveGradients<'a> {
    from: &'a mut GradientsParams,
    to: &'a mut GradientsParams,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for MoveGradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(grad) = self.from.remove::<B::InnerBackend, D>(param.id) {
            self.to.register(param.id, grad);
        }
    }
}
