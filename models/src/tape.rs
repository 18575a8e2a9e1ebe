//! Tape nodes with hand-written backward passes.
//!
//! The forward pass runs unrecorded on the inner backend; only tensors in [`Saved`] live on.

use std::fmt::Debug;
use std::marker::PhantomData;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

/// Tensors kept for a backward pass. Inputs and output have equally many dimensions.
pub(crate) trait Saved<I: Backend, const D: usize, const N: usize>:
    Clone + Debug + Send + 'static
{
    fn gradients(self, grad: Tensor<I, D>) -> [Tensor<I, D>; N];
}

#[derive(Debug)]
struct HandWritten<S, const D: usize>(PhantomData<fn() -> S>);

pub(crate) fn node<I, C, S, const D: usize, const N: usize>(
    inputs: [Tensor<Autodiff<I, C>, D>; N],
    forward: impl FnOnce([Tensor<I, D>; N]) -> (Tensor<I, D>, S),
) -> Tensor<Autodiff<I, C>, D>
where
    I: Backend,
    C: CheckpointStrategy,
    S: Saved<I, D, N>,
{
    let inputs = inputs.map(|tensor| tensor.into_primitive().tensor());
    let nodes = inputs.each_ref().map(|tensor| tensor.node.clone());
    let inputs = inputs.map(|tensor| wrapped::<I, D>(tensor.primitive));
    let (output, saved) = forward(inputs);
    let output = output.into_primitive().tensor();
    let tracked = match HandWritten::<S, D>(PhantomData).prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(saved, output),
        OpsKind::UnTracked(prep) => prep.finish(output),
    };
    Tensor::from_primitive(TensorPrimitive::Float(tracked))
}

impl<I, S, const D: usize, const N: usize> Backward<I, N> for HandWritten<S, D>
where
    I: Backend,
    S: Saved<I, D, N>,
{
    type State = S;

    fn backward(self, ops: Ops<S, N>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let grad = wrapped::<I, D>(grads.consume::<I>(&ops.node));
        for (parent, grad) in ops.parents.into_iter().zip(ops.state.gradients(grad)) {
            if let Some(parent) = parent {
                grads.register::<I>(parent.id, grad.into_primitive().tensor());
            }
        }
    }
}

fn wrapped<I: Backend, const D: usize>(primitive: I::FloatTensorPrimitive) -> Tensor<I, D> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}
