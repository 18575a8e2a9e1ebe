//! Training without keeping the blocks' activations, driven from outside the tape.
//!
//! Burn 0.21 offers no checkpointing of a user's function, and a custom node cannot supply it: calling `backward`
//! inside a node's backward step deadlocks, because the walk holds the graph's lock. So the walk is ours. The forward
//! pass runs on the inner backend, which has no tape, and keeps the input of each segment of `every` blocks. Then, from
//! the head down, a segment is run once more under autodiff from a leaf, and `backward` is called on `sum(y · g)`: its
//! gradients are those of the segment's parameters and of the leaf, and the leaf's is the `g` of the segment below.
//!
//! Both runs execute the same operations on the same inner backend in the same chunks, and dropout draws from a key, so
//! the second reproduces the first.
//!
//! Weights are asked for when the forward pass comes to them, one segment at a time: they may still be on their way.
//!
//! Each segment's gradients are handed out as soon as they exist, every parameter exactly once: the tied embedding's
//! share from the head waits for the one from the input. The callback receives the model by value and gives it back,
//! so it may step those parameters at once; no later segment reads them.

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

/// Runs forward and backward, recomputing `every` blocks at a time, and hands each segment's gradients to
/// `on_segment` from the head down. Returns the model as the last call left it, and the loss, shape `[1]`.
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
        let input = kept.pop().map(|kept| leaf::<I, C>(kept.back()));
        let mut named = None;
        let x = if let Some(leaf) = &input {
            leaf.clone()
        } else {
            let inputs = Input::from_inner(inputs.clone());
            named.clone_from(&inputs.rows);
            model.embed(inputs, options.dropout, &kernels)
        };
        let y = model.through(segment, x, options.dropout, &kernels);
        let mut grads = (y * Tensor::from_inner(upstream.clone())).sum().backward();
        if let Some(leaf) = &input {
            upstream = input_gradient(leaf, &mut grads);
        }
        let mut ready = rows::gradients(grads, &model, embedding, named.as_ref());
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

/// [`sweep`] with everything collected: the loss, shape `[1]`, and every parameter's gradient.
pub fn loss_and_gradients<I: Backend, C: CheckpointStrategy>(
    model: &Gpt<Autodiff<I, C>>,
    batch: Batch<I>,
    options: &PassOptions,
    kernels: Lean,
    every: usize,
) -> (Tensor<I, 1>, GradientsParams) {
    let mut all = GradientsParams::new();
    let (_, loss) = sweep(model.clone(), batch, options, kernels, every, |model, mut segment| {
        model.visit(&mut Move { from: &mut segment, to: &mut all });
        model
    });
    (loss, all)
}

/// The input of every segment but the first, which starts from tokens, and the last hidden states.
fn forward<I: Backend, C: CheckpointStrategy>(
    model: &Gpt<Autodiff<I, C>>,
    segments: &[Range<usize>],
    inputs: &Input<I>,
    options: &PassOptions,
    kernels: Plain,
) -> (Vec<Kept<I>>, Tensor<I, 3>) {
    let mut kept = Vec::with_capacity(segments.len());
    let mut x = model.part(0..0).valid().embed(inputs.clone(), options.dropout, &kernels);
    for segment in segments {
        if segment.start > 0 {
            kept.push(Kept::of(x.clone(), options.inputs_in_tiles));
        }
        let part = model.part(segment.clone()).valid();
        x = part.through(0..segment.len(), x, options.dropout, &kernels);
    }
    (kept, x)
}

/// A segment's input until the segment runs again.
enum Kept<I: Backend> {
    Exact(Tensor<I, 3>),
    InTiles { tiles: Tiles<I>, shape: Shape, kind: DType },
}

impl<I: Backend> Kept<I> {
    fn of(input: Tensor<I, 3>, in_tiles: bool) -> Self {
        if !in_tiles {
            return Self::Exact(input);
        }
        let (shape, kind) = (input.shape(), input.dtype());
        Self::InTiles { tiles: Tiles::encode(input, Rounding::Nearest), shape, kind }
    }

    fn back(self) -> Tensor<I, 3> {
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

/// Moves the gradients one segment left into the whole set.
struct Move<'a> {
    from: &'a mut GradientsParams,
    to: &'a mut GradientsParams,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Move<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(grad) = self.from.remove::<B::InnerBackend, D>(param.id) {
            self.to.register(param.id, grad);
        }
    }
}
