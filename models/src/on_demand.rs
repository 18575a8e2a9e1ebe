//! Weights made for each use from a smaller form.
//!
//! The matrix exists only in use; the backward pass makes its numbers again
//! (`on_demand_weights_give_the_bits_of_stored_weights`). Its parameter is a name and a place on the tape.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::tensor::{DType, FloatDType, Tensor, backend::Backend};

use crate::precision::Compute;
use crate::tape::{Saved, node};

/// Makes a projection's weights, in its compute type or f32, on the backend below the tape. Only [`OnDemand::weights`] names
/// that backend: a module's fields change backends.
#[derive(Clone)]
pub struct OnDemand(Arc<dyn Any + Send + Sync>);

struct Make<I: Backend>(Box<dyn Fn() -> Tensor<I, 2> + Send + Sync>);

impl OnDemand {
    /// Weights that `make` returns on `I`, the backend below the tape.
    pub fn new<I: Backend>(make: impl Fn() -> Tensor<I, 2> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Make::<I>(Box::new(make))))
    }

    /// Makes the weights.
    ///
    /// # Panics
    /// On any backend but [`OnDemand::new`]'s.
    pub fn weights<I: Backend>(&self) -> Tensor<I, 2> {
        let make = self.0.downcast_ref::<Make<I>>();
        let make = make.expect("weights on demand are made below the tape: train with `Lean` kernels");
        (make.0)()
    }
}

impl fmt::Debug for OnDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnDemand")
    }
}

pub(crate) fn product<I: Backend, C: CheckpointStrategy>(
    x: Tensor<Autodiff<I, C>, 2>,
    leaf: Tensor<Autodiff<I, C>, 2>,
    on_demand: &OnDemand,
    compute: Compute,
) -> Tensor<Autodiff<I, C>, 2> {
    let kind = leaf.dtype();
    node([x, leaf], |[x, _]| {
        let product = compute.product(x.clone(), compute.narrow(on_demand.weights::<I>()));
        (product, Product { x, on_demand: on_demand.clone(), compute, kind })
    })
}

#[derive(Debug, Clone)]
struct Product<I: Backend> {
    x: Tensor<I, 2>,
    on_demand: OnDemand,
    compute: Compute,
    /// The parameter's type, which its gradient has.
    kind: DType,
}

impl<I: Backend> Saved<I, 2, 2> for Product<I> {
    fn gradients(self, grad: Tensor<I, 2>) -> [Tensor<I, 2>; 2] {
        let grad = self.compute.narrow(grad);
        let weights = self.compute.narrow(self.on_demand.weights::<I>());
        let x_gradient = grad.clone().matmul(weights.transpose());
        let gradient = self.x.transpose().matmul(grad);
        [x_gradient, if self.kind == DType::F32 { gradient.cast(FloatDType::F32) } else { gradient }]
    }
}
