//! Training without the blocks' activations, driven from outside the tape.
//!
//! Burn 0.21 checkpoints no user functions, and `backward` in a custom node deadlocks on the graph's lock. So the
//! forward pass runs on the inner backend and keeps each segment's input (`every` blocks). From the head down, each
//! segment runs again under autodiff, with `backward` on `sum(y · g)`. Its input's gradient is the `g` of the segment
//! below.
//!
//! Both runs have the same operations, chunks and dropout keys.
//!
//! The forward pass requests weights at their segment: they may still be loading
//! (`a_blocks_weights_are_first_used_when_the_pass_reaches_it`).
//!
//! Segments in and below which nothing learns pass forward only
//! (`below_the_lowest_block_that_learns_no_block_runs_again`).
//!
//! Each segment's gradients are handed out at once, every parameter once: a tied embedding's share from the head waits
//! for the input's. The callback may step the parameters.

use std::ops::Range;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::module::{AutodiffModule, Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{
    DType, Int, Shape, Tensor,
    backend::{AutodiffBackend, Backend},
};

use crate::gpt::{Batch, Gpt, PassOptions};
use crate::input::Input;
use crate::kernels::{Lean, Plain};
use crate::precision::InputForm;
use crate::rows;
use crate::tiles::{Code, Rounding, Tiles};

/// Runs forward and backward, recomputing `every` blocks at a time. `on_segment` gets each segment's gradients, from
/// the head down. Returns its last model and the loss, `[1]`.
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
    let group = vec![(batch, *options)];
    let each = |model, _, gradients| on_segment(model, gradients);
    let mut swept = sweep_together(model, group, kernels, every, |_| {}, each);
    (swept.model, swept.losses.pop().expect("one batch has one loss"))
}

/// What [`sweep_together`] leaves.
pub struct Swept<I: Backend, C: CheckpointStrategy> {
    /// The callback's last model.
    pub model: Gpt<Autodiff<I, C>>,
    /// Each batch's loss, `[1]`.
    pub losses: Vec<Tensor<I, 1>>,
    /// Bytes of all batches' segment inputs at the end of the forward pass.
    pub kept_bytes: u64,
}

/// As [`sweep`], for a group of batches, with each one's own bits. All pass a segment before the next one's weights are
/// requested. All batches' segment inputs are kept.
///
/// `before` gets each segment's blocks before they run, forward and backward, outside of tapes. `on_segment` also gets the
/// batch's index; step a segment's parameters after the last batch.
pub fn sweep_together<I, C, F>(
    mut model: Gpt<Autodiff<I, C>>,
    group: Vec<(Batch<I>, PassOptions)>,
    kernels: Lean,
    every: usize,
    mut before: impl FnMut(Range<usize>),
    mut on_segment: F,
) -> Swept<I, C>
where
    I: Backend,
    C: CheckpointStrategy,
    F: FnMut(Gpt<Autodiff<I, C>>, usize, GradientsParams) -> Gpt<Autodiff<I, C>>,
{
    let segments = segments(model.config().n_layer, every);
    let (embedding, frozen) = (model.wte.id, model.frozen_blocks());
    let mut passes = forward(&model, (&segments[..], frozen), group, Plain(kernels.0), &mut before);
    let kept_bytes = passes.iter().flat_map(|pass| &pass.kept).map(SegmentInput::bytes).sum();

    for (place, pass) in passes.iter_mut().enumerate() {
        let gradients = pass.backward_head(&model, kernels);
        let mut ready = GradientsParams::from_grads(gradients, &model);
        pass.from_head = ready.remove::<I, 2>(embedding);
        model = on_segment(model, place, ready);
    }

    for segment in segments.into_iter().rev().take_while(|segment| segment.end > frozen) {
        before(segment.clone());
        for (place, pass) in passes.iter_mut().enumerate() {
            let ready = pass.backward_segment(&model, segment.clone(), kernels);
            model = on_segment(model, place, ready);
        }
    }
    let losses = passes.into_iter().map(|pass| pass.loss.expect("the head has computed it")).collect();
    Swept { model, losses, kept_bytes }
}

pub(crate) struct BatchPass<I: Backend> {
    pub(crate) inputs: Input<I>,
    targets: Option<HeadTargets<I>>,
    pub(crate) options: PassOptions,
    /// Inputs of all segments but the first, which starts from tokens.
    pub(crate) kept: Vec<SegmentInput<I>>,
    /// The residual stream forward, its gradient backward; absent while a segment runs.
    pub(crate) stream: Option<Tensor<I, 3>>,
    pub(crate) loss: Option<Tensor<I, 1>>,
    pub(crate) from_head: Option<Tensor<I, 2>>,
}

struct HeadTargets<I: Backend> {
    ids: Tensor<I, 2, Int>,
    mask: Option<Tensor<I, 2>>,
}

fn forward<I: Backend, C: CheckpointStrategy>(
    model: &Gpt<Autodiff<I, C>>,
    (segments, frozen): (&[Range<usize>], usize),
    group: Vec<(Batch<I>, PassOptions)>,
    kernels: Plain,
    before: &mut impl FnMut(Range<usize>),
) -> Vec<BatchPass<I>> {
    let embedding = model.part(0..0).valid();
    let begin = |(batch, options): (Batch<I>, PassOptions)| {
        let mut pass = BatchPass::new(batch, options);
        pass.stream = Some(embedding.embed(pass.inputs.clone(), options.dropout, &kernels));
        pass
    };
    let mut passes: Vec<_> = group.into_iter().map(begin).collect();

    for segment in segments {
        before(segment.clone());
        let part = model.part(segment.clone()).valid();
        for pass in &mut passes {
            let input = pass.take_stream();
            if segment.start > 0 && segment.end > frozen {
                pass.kept.push(SegmentInput::new(input.clone(), pass.options.kept_inputs));
            }
            pass.stream = Some(part.run_blocks(0..segment.len(), input, pass.options.dropout, &kernels));
        }
    }
    passes
}

impl<I: Backend> BatchPass<I> {
    pub(crate) fn new(Batch { inputs, targets, mask }: Batch<I>, options: PassOptions) -> Self {
        let targets = Some(HeadTargets { ids: targets, mask });
        Self { inputs, targets, options, kept: Vec::new(), stream: None, loss: None, from_head: None }
    }

    pub(crate) fn take_stream(&mut self) -> Tensor<I, 3> {
        self.stream.take().expect("no segment is running")
    }

    pub(crate) fn backward_head<C: CheckpointStrategy>(
        &mut self,
        model: &Gpt<Autodiff<I, C>>,
        kernels: Lean,
    ) -> <Autodiff<I, C> as AutodiffBackend>::Gradients {
        let HeadTargets { ids, mask } = self.targets.take().expect("the head runs once");
        let (targets, mask) = (Tensor::from_inner(ids), mask.map(Tensor::from_inner));
        let hidden = leaf::<I, C>(self.take_stream());
        let loss = model.head_loss(hidden.clone(), targets, mask, &self.options, &kernels);
        self.loss = Some(loss.clone().inner());
        let mut gradients = loss.backward();
        self.stream = Some(input_gradient(&hidden, &mut gradients));
        gradients
    }

    pub(crate) fn backward_segment<C: CheckpointStrategy>(
        &mut self,
        model: &Gpt<Autodiff<I, C>>,
        segment: Range<usize>,
        kernels: Lean,
    ) -> GradientsParams {
        let input = self.kept.pop().map(|kept| leaf::<I, C>(kept.restore()));
        let mut named_rows = None;
        let x = if let Some(leaf) = &input {
            leaf.clone()
        } else {
            let inputs = Input::from_inner(self.inputs.clone());
            named_rows.clone_from(&inputs.rows);
            model.embed(inputs, self.options.dropout, &kernels)
        };
        let y = model.run_blocks(segment, x, self.options.dropout, &kernels);
        let upstream = self.take_stream();
        let mut gradients = (y * Tensor::from_inner(upstream.clone())).sum().backward();
        if let Some(leaf) = &input {
            self.stream = Some(input_gradient(leaf, &mut gradients));
        }
        drop(upstream);
        let ready = rows::gradients(gradients, model, model.wte.id, named_rows.as_ref());
        if input.is_none() { self.with_head(model, ready) } else { ready }
    }

    pub(crate) fn with_head<C: CheckpointStrategy>(
        &mut self,
        model: &Gpt<Autodiff<I, C>>,
        mut ready: GradientsParams,
    ) -> GradientsParams {
        if let Some(from_head) = self.from_head.take() {
            let embedding = model.wte.id;
            let from_input = ready.remove::<I, 2>(embedding).expect("the first segment reads the embedding");
            ready.register(embedding, from_input + from_head);
        }
        ready
    }
}

/// As [`sweep`]; returns the loss, `[1]`, and every parameter's gradient.
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

/// A kept input. Its form rounds it under any budget, whether it spills or not.
pub(crate) enum SegmentInput<I: Backend> {
    Exact(Tensor<I, 3>),
    Narrow { input: Tensor<I, 3>, kind: DType },
    InTiles { tiles: Tiles<I>, shape: Shape, kind: DType },
}

impl<I: Backend> SegmentInput<I> {
    pub(crate) fn new(input: Tensor<I, 3>, form: InputForm) -> Self {
        let (shape, kind) = (input.shape(), input.dtype());
        match form {
            InputForm::Computed => Self::Exact(input),
            InputForm::Bf16 => Self::Narrow { input: input.cast(DType::BF16), kind },
            InputForm::Int8 => Self::InTiles { tiles: Tiles::encode(input, Rounding::Nearest), shape, kind },
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        let size = |numbers: usize, kind: DType| (numbers * kind.size()) as u64;
        match self {
            Self::Exact(input) | Self::Narrow { input, .. } => {
                size(input.shape().num_elements(), input.dtype())
            }
            Self::InTiles { tiles, .. } => {
                let Tiles { codes, scales } = tiles;
                size(codes.shape().num_elements(), codes.dtype())
                    + size(scales.shape().num_elements(), scales.dtype())
            }
        }
    }

    fn restore(self) -> Tensor<I, 3> {
        match self {
            Self::Exact(input) => input,
            Self::Narrow { input, kind } => input.cast(kind),
            Self::InTiles { tiles, shape, kind } => tiles.decode(Code::Int8, shape, kind),
        }
    }
}

/// Blocks of each segment of `every` blocks.
pub fn segments(layers: usize, every: usize) -> Vec<Range<usize>> {
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
