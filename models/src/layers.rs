//! A block's parts: projections, norms, the MLP.

use burn::module::{Module, Param};
use burn::tensor::{Tensor, backend::Backend};

use crate::activation::Pointwise;
use crate::adapter::Adapter;
use crate::config::{Activation, GptConfig};
use crate::dropout::DropoutKey;
use crate::init::{Filler, Role};
use crate::kernels::Kernels;
use crate::norm::NormKind;
use crate::on_demand::OnDemand;
use crate::packed::Packed;
use crate::precision::Compute;

/// `x · weight + bias`, the product in the compute type.
#[derive(Module, Debug)]
pub struct Linear<B: Backend> {
    /// `[inputs, outputs]`.
    pub weight: Param<Tensor<B, 2>>,
    /// `[outputs]`.
    pub bias: Option<Param<Tensor<B, 1>>>,
    /// If present, only this learns.
    pub adapter: Option<Adapter<B>>,
    /// With a source, `weight` only receives the gradient.
    #[module(skip)]
    pub(crate) on_demand: Option<OnDemand>,
    /// If present, `weight` is NaN.
    pub(crate) packed: Option<Packed<B>>,
    #[module(skip)]
    compute: Compute,
}

impl<B: Backend> Linear<B> {
    pub(crate) fn new(filler: &mut Filler<B>, name: &str, role: Role, shape: [usize; 2], bias: bool) -> Self {
        let weight = filler.matrix(&format!("{name}.weight"), role, shape);
        let bias = bias.then(|| filler.vector(shape[1], 0.0));
        let compute = filler.config.compute;
        Self { weight, bias, adapter: None, on_demand: None, packed: None, compute }
    }

    pub(crate) fn narrowed(self) -> Self {
        if self.packed.is_some() {
            return self;
        }
        Self { weight: self.weight.map(|weight| self.compute.narrow(weight)), ..self }
    }

    /// `key`: the adapter's dropout.
    pub(crate) fn forward<K: Kernels<B>>(
        &self,
        x: Tensor<B, 3>,
        key: Option<DropoutKey>,
        kernels: &K,
    ) -> Tensor<B, 3> {
        let [batch, time, inputs] = x.dims();
        // A batched product would give the weight a gradient per batch row.
        let x = self.compute.narrow(x.reshape([batch * time, inputs]));
        let adapted = self.adapter.as_ref().map(|adapter| adapter.forward(x.clone(), key, self.compute));
        let y = match (&self.packed, &self.on_demand) {
            (Some(weights), _) => kernels.packed_product(x, weights),
            (None, Some(weights)) => kernels.product(x, self.weight.val(), weights, self.compute),
            (None, None) => self.compute.product(x, self.compute.narrow(self.weight.val())),
        };
        let y = match &self.bias {
            Some(bias) => y + bias.val().unsqueeze(),
            None => y,
        };
        let y = match adapted {
            Some(adapted) => y + adapted,
            None => y,
        };
        let outputs = y.dims()[1];
        y.reshape([batch, time, outputs])
    }
}

/// `LayerNorm` or `RMSNorm` over the last dimension.
#[derive(Module, Debug)]
pub struct Norm<B: Backend> {
    /// Scale.
    pub weight: Option<Param<Tensor<B, 1>>>,
    /// Offset.
    pub bias: Option<Param<Tensor<B, 1>>>,
    #[module(skip)]
    kind: NormKind,
    #[module(skip)]
    epsilon: f64,
}

impl<B: Backend> Norm<B> {
    pub(crate) fn new(filler: &mut Filler<B>, width: usize) -> Self {
        let GptConfig { norm, norm_weights, norm_bias, layer_norm_epsilon, .. } = *filler.config;
        Self {
            weight: norm_weights.then(|| filler.vector(width, 1.0)),
            bias: norm_bias.then(|| filler.vector(width, 0.0)),
            kind: norm,
            epsilon: layer_norm_epsilon,
        }
    }

    pub(crate) fn forward<K: Kernels<B>, const D: usize>(
        &self,
        x: Tensor<B, D>,
        kernels: &K,
    ) -> Tensor<B, D> {
        let mut y = kernels.normalise(x, self.kind, self.epsilon);
        if let Some(weight) = &self.weight {
            y = y * weight.val().unsqueeze();
        }
        if let Some(bias) = &self.bias {
            y = y + bias.val().unsqueeze();
        }
        y
    }
}

/// The feed-forward half of a block.
#[derive(Module, Debug)]
pub struct Mlp<B: Backend> {
    /// Gate projection, for gated activations.
    pub gate: Option<Linear<B>>,
    /// Residual width to inner width.
    pub up: Linear<B>,
    /// Inner width to residual width.
    pub down: Linear<B>,
    #[module(skip)]
    activation: Activation,
}

impl<B: Backend> Mlp<B> {
    pub(crate) fn new(filler: &mut Filler<B>, name: &str) -> Self {
        let (outer, inner, bias) = (filler.config.n_embd, filler.config.inner(), filler.config.mlp_bias);
        let activation = filler.config.activation_function;
        let gate = filler
            .config
            .has_gate()
            .then(|| Linear::new(filler, &format!("{name}.gate"), Role::Hidden, [outer, inner], bias));
        Self {
            gate,
            up: Linear::new(filler, &format!("{name}.up"), Role::Hidden, [outer, inner], bias),
            down: Linear::new(filler, &format!("{name}.down"), Role::Residual, [inner, outer], bias),
            activation,
        }
    }

    pub(crate) fn narrowed(self) -> Self {
        let gate = self.gate.map(Linear::narrowed);
        Self { gate, up: self.up.narrowed(), down: self.down.narrowed(), ..self }
    }

    pub(crate) fn forward<K: Kernels<B>>(
        &self,
        x: Tensor<B, 3>,
        key: Option<DropoutKey>,
        kernels: &K,
    ) -> Tensor<B, 3> {
        let up = self.up.forward(x.clone(), key, kernels);
        let inner = match (self.activation, &self.gate) {
            (Activation::GeluTanh, _) => kernels.pointwise(up, Pointwise::GeluTanh),
            (Activation::GeluErf, _) => kernels.pointwise(up, Pointwise::GeluErf),
            (Activation::ReluSquared, _) => kernels.pointwise(up, Pointwise::ReluSquared),
            (Activation::SwiGlu, Some(gate)) => kernels.swiglu(gate.forward(x, key, kernels), up),
            (Activation::GeGlu, Some(gate)) => {
                kernels.pointwise(gate.forward(x, key, kernels), Pointwise::GeluTanh) * up
            }
            (Activation::SwiGlu | Activation::GeGlu, None) => {
                unreachable!("a gated Mlp is built with its gate")
            }
        };
        self.down.forward(inner, key, kernels)
    }
}
