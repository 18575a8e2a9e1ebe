//! A block: attention and MLP on the residual stream.

use burn::module::Module;
use burn::tensor::{Tensor, backend::Backend};

use crate::adapter::Projection;
use crate::attention::AttentionOptions;
use crate::config::NormPlacement;
use crate::dropout::{DropoutKey, Place, dropout};
use crate::init::{Filler, Role};
use crate::kernels::Kernels;
use crate::layers::{Linear, Mlp, Norm};
use crate::rotary::{Angles, PassAngles, Rotation};

/// `x + attention(norm(x))`, then `x + mlp(norm(x))`. `norm_placement` moves the norms; `parallel_residual` adds both
/// to one `x`.
#[derive(Module, Debug)]
pub struct Block<B: Backend> {
    /// Norm before attention.
    pub attention_norm: Option<Norm<B>>,
    /// Mixes positions.
    pub attention: Attention<B>,
    /// Norm of attention's output.
    pub attention_out_norm: Option<Norm<B>>,
    /// Norm before the MLP.
    pub mlp_norm: Option<Norm<B>>,
    /// Mixes features.
    pub mlp: Mlp<B>,
    /// Norm of the MLP's output.
    pub mlp_out_norm: Option<Norm<B>>,
    #[module(skip)]
    parallel: bool,
    #[module(skip)]
    layer: usize,
    #[module(skip)]
    residual_dropout: f64,
}

/// Attention with its projections.
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    /// `[E, H · W]`.
    pub query: Linear<B>,
    /// `[E, KV heads · W]`.
    pub key: Linear<B>,
    /// `[E, KV heads · W]`.
    pub value: Linear<B>,
    /// `[H · W, E]`.
    pub output: Linear<B>,
    /// Norm of queries, per head or across heads.
    pub query_norm: Option<Norm<B>>,
    /// Norm of keys.
    pub key_norm: Option<Norm<B>>,
    #[module(skip)]
    head_dim: usize,
    #[module(skip)]
    norm_across_heads: bool,
    #[module(skip)]
    rotation: Rotation,
    #[module(skip)]
    options: AttentionOptions,
}

impl<B: Backend> Block<B> {
    pub(crate) fn new(filler: &mut Filler<B>, layer: usize) -> Self {
        let width = filler.config.n_embd;
        let placement = filler.config.norm_placement;
        let [before, after] =
            [NormPlacement::After, NormPlacement::Before].map(|lacking| placement != lacking);
        Self {
            attention_norm: before.then(|| Norm::new(filler, width)),
            attention: Attention::new(filler, layer),
            attention_out_norm: after.then(|| Norm::new(filler, width)),
            mlp_norm: before.then(|| Norm::new(filler, width)),
            mlp: Mlp::new(filler, &format!("blocks.{layer}.mlp")),
            mlp_out_norm: after.then(|| Norm::new(filler, width)),
            parallel: filler.config.parallel_residual,
            layer,
            residual_dropout: filler.config.resid_pdrop,
        }
    }

    pub(crate) fn narrowed(self) -> Self {
        Self { attention: self.attention.narrowed(), mlp: self.mlp.narrowed(), ..self }
    }

    pub(crate) fn projections(&self) -> impl Iterator<Item = &Linear<B>> {
        let Attention { query, key, value, output, .. } = &self.attention;
        let Mlp { gate, up, down, .. } = &self.mlp;
        [query, key, value, output, up, down].into_iter().chain(gate)
    }

    pub(crate) fn projections_mut(&mut self) -> impl Iterator<Item = &mut Linear<B>> {
        self.named_projections_mut().map(|(_, linear)| linear)
    }

    pub(crate) fn named_projections_mut(&mut self) -> impl Iterator<Item = (Projection, &mut Linear<B>)> {
        let Attention { query, key, value, output, .. } = &mut self.attention;
        let Mlp { gate, up, down, .. } = &mut self.mlp;
        let all = [
            (Projection::Query, query),
            (Projection::Key, key),
            (Projection::Value, value),
            (Projection::Output, output),
            (Projection::Up, up),
            (Projection::Down, down),
        ];
        all.into_iter().chain(gate.as_mut().map(|gate| (Projection::Gate, gate)))
    }

    pub(crate) fn forward<K: Kernels<B>>(
        &self,
        x: Tensor<B, 3>,
        angles: Option<&PassAngles<B>>,
        key: Option<DropoutKey>,
        kernels: &K,
        attend: impl FnOnce(Tensor<B, 4>, Tensor<B, 4>, Tensor<B, 4>, &AttentionOptions) -> Tensor<B, 4>,
    ) -> Tensor<B, 3> {
        let drop = |added, place| dropout(added, self.residual_dropout, key, place);
        let normed = |norm: &Option<Norm<B>>, x: Tensor<B, 3>| match norm {
            Some(norm) => norm.forward(x, kernels),
            None => x,
        };
        let angles = angles.and_then(|angles| angles.of(self.attention.rotation));
        let seen = normed(&self.attention_norm, x.clone());
        let mixed =
            normed(&self.attention_out_norm, self.attention.forward(seen, angles, key, kernels, attend));
        let before = self.parallel.then(|| x.clone());
        let x = x + drop(mixed, Place::Attention(self.layer));
        let seen = normed(&self.mlp_norm, before.unwrap_or_else(|| x.clone()));
        let mixed = normed(&self.mlp_out_norm, self.mlp.forward(seen, key, kernels));
        x + drop(mixed, Place::Mlp(self.layer))
    }
}

impl<B: Backend> Attention<B> {
    fn new(filler: &mut Filler<B>, layer: usize) -> Self {
        let config = filler.config;
        let (width, head_dim) = (config.n_embd, config.head_dim());

        let mut linear = |part: &str, role, shape| {
            let name = format!("blocks.{layer}.attention.{part}");
            let offset = if part == "output" { config.has_output_bias() } else { config.attention_bias };
            Linear::new(filler, &name, role, shape, offset)
        };
        let normed = |heads| if config.qk_norm_across_heads { heads * head_dim } else { head_dim };

        Self {
            query: linear("query", Role::Hidden, [width, config.n_head * head_dim]),
            key: linear("key", Role::Hidden, [width, config.kv_heads() * head_dim]),
            value: linear("value", Role::Hidden, [width, config.kv_heads() * head_dim]),
            output: linear("output", Role::Residual, [config.n_head * head_dim, width]),
            query_norm: config.qk_norm.then(|| Norm::new(filler, normed(config.n_head))),
            key_norm: config.qk_norm.then(|| Norm::new(filler, normed(config.kv_heads()))),
            head_dim,
            norm_across_heads: config.qk_norm_across_heads,
            rotation: config.rotation_of(layer),
            options: AttentionOptions {
                scale: config.attention_scale(),
                soft_cap: config.attention_softcap,
                window: config.window_of(layer),
                compute: config.compute,
            },
        }
    }

    fn narrowed(self) -> Self {
        Self {
            query: self.query.narrowed(),
            key: self.key.narrowed(),
            value: self.value.narrowed(),
            output: self.output.narrowed(),
            ..self
        }
    }

    fn forward<K: Kernels<B>>(
        &self,
        x: Tensor<B, 3>,
        angles: Option<&Angles<B>>,
        key: Option<DropoutKey>,
        kernels: &K,
        attend: impl FnOnce(Tensor<B, 4>, Tensor<B, 4>, Tensor<B, 4>, &AttentionOptions) -> Tensor<B, 4>,
    ) -> Tensor<B, 3> {
        let [batch, time, _] = x.dims();
        let norm_and_rotate = |projection: &Linear<B>, norm: Option<&Norm<B>>| {
            let (whole, of_heads) = if self.norm_across_heads { (norm, None) } else { (None, norm) };
            let heads = self.heads(projection, (x.clone(), key), whole, kernels);
            let heads = match of_heads {
                Some(norm) => norm.forward(heads, kernels),
                None => heads,
            };
            match angles {
                Some(angles) => angles.rotate(heads),
                None => heads,
            }
        };
        let q = norm_and_rotate(&self.query, self.query_norm.as_ref());
        let k = norm_and_rotate(&self.key, self.key_norm.as_ref());
        let v = self.heads(&self.value, (x, key), None, kernels);
        let [q, k, v] = [q, k, v].map(|tensor| self.options.compute.narrow(tensor));
        let mixed = attend(q, k, v, &self.options).swap_dims(1, 2);
        self.output.forward(mixed.reshape([batch, time, self.output.weight.lazy_shape()[0]]), key, kernels)
    }

    /// `[B, T, E]` to `[B, heads, T, W]`.
    fn heads<K: Kernels<B>>(
        &self,
        projection: &Linear<B>,
        (x, key): (Tensor<B, 3>, Option<DropoutKey>),
        norm: Option<&Norm<B>>,
        kernels: &K,
    ) -> Tensor<B, 4> {
        let [batch, time, _] = x.dims();
        let heads = projection.weight.lazy_shape()[1] / self.head_dim;
        let projected = projection.forward(x, key, kernels);
        let projected = match norm {
            Some(norm) => norm.forward(projected, kernels),
            None => projected,
        };
        projected.reshape([batch, time, heads, self.head_dim]).swap_dims(1, 2)
    }
}
