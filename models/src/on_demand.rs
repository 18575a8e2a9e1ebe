//! Weights that are made anew for each use, from something smaller than they are.
//!
//! Between two uses there is no such matrix: a forward pass makes it and lets it go, and the backward pass makes it again,
//! so that both see the same. Its parameter keeps a name and a place on the tape, and no numbers.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::tensor::{Tensor, backend::Backend};

use crate::precision::Compute;
use crate::tape::{Saved, node};

/// How the weights of a projection are made, in the type that it computes in.
///
/// A module's fields follow it from a tape to the backend below, and these weights are below in both places: so their
/// backend is not in this type, and is asked for where they are used.
#[derive(Clone)]
pub struct OnDemand(Arc<dyn Any + Send + Sync>);

struct Make<I: Backend>(Box<dyn Fn() -> Tensor<I, 2> + Send + Sync>);

impl OnDemand {
    /// Weights on `I`, the backend below the tape.
    pub fn new<I: Backend>(make: impl Fn() -> Tensor<I, 2> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Make::<I>(Box::new(make))))
    }

    /// The weights. Panics on a backend that they were not made for.
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

/// `x · weights` as one node of the tape. The gradient of the weights is that of `leaf`, whose numbers are not read.
pub(crate) fn product<I: Backend, C: CheckpointStrategy>(
    x: Tensor<Autodiff<I, C>, 2>,
    leaf: Tensor<Autodiff<I, C>, 2>,
    on_demand: &OnDemand,
    compute: Compute,
) -> Tensor<Autodiff<I, C>, 2> {
    node([x, leaf], |[x, _]| {
        let product = compute.product(x.clone(), on_demand.weights::<I>());
        (product, Product { x, on_demand: on_demand.clone(), compute })
    })
}

#[derive(Debug, Clone)]
struct Product<I: Backend> {
    x: Tensor<I, 2>,
    on_demand: OnDemand,
    compute: Compute,
}

impl<I: Backend> Saved<I, 2, 2> for Product<I> {
    fn gradients(self, grad: Tensor<I, 2>) -> [Tensor<I, 2>; 2] {
        let grad = self.compute.narrow(grad);
        let of_x = grad.clone().matmul(self.on_demand.weights::<I>().transpose());
        [of_x, self.x.transpose().matmul(grad)]
    }
}
