//! The network, top to bottom: embedding, blocks, norm, head.
//!
//! Shapes: B batch, T time, E `n_embd`, H heads, W head width, V vocabulary. The residual stream is `[B, T, E]`, in the
//! parameters' type.

use std::collections::HashMap;
use std::ops::Range;

use burn::module::{Module, Param, ParamId};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, module::embedding};

use crate::attention::soft_cap;
use crate::block::Block;
use crate::config::{GptConfig, Positions};
use crate::dropout::{DropoutKey, Place, dropout};
use crate::error::ConfigError;
use crate::group::Frozen;
use crate::init::{Filler, Holds, Role};
use crate::input::Input;
use crate::kernels::Kernels;
use crate::layers::Norm;
use crate::loss::{LossOptions, Targets};
use crate::on_demand::OnDemand;
use crate::precision::{Compute, InputForm};
use crate::rotary::{PassAngles, PositionIds, Rotary};
use crate::rows::RowsOnDemand;

/// A decoder-only transformer.
#[derive(Module, Debug)]
pub struct Gpt<B: Backend> {
    /// Token embedding `[V, E]`, also the head if `lm_head` is `None`.
    pub wte: Param<Tensor<B, 2>>,
    /// Learned position embedding `[n_positions, E]`.
    pub wpe: Option<Param<Tensor<B, 2>>>,
    /// Embedding of followers `[V + 1, E]`; the last row is for no match.
    pub followers: Option<Param<Tensor<B, 2>>>,
    /// Norm of the embedding.
    pub embedding_norm: Option<Norm<B>>,
    /// Constants; absent for learned positions.
    pub(crate) rotary: Option<Rotary<B>>,
    pub(crate) local_rotary: Option<Rotary<B>>,
    /// The blocks, first to last.
    pub blocks: Vec<Block<B>>,
    /// The head's norm.
    pub final_norm: Norm<B>,
    /// Head `[V, E]`, unless tied.
    pub lm_head: Option<Param<Tensor<B, 2>>>,
    /// A tied head in the compute type, from [`Gpt::narrowed`].
    pub(crate) narrow_head: Option<Tensor<B, 2>>,
    /// With rows, `wte` only names the parameter.
    #[module(skip)]
    rows_on_demand: Option<RowsOnDemand>,
    #[module(skip)]
    pub(crate) frozen: Frozen,
    #[module(skip)]
    pub(crate) config: GptConfig,
}

/// A batch of training or evaluation.
#[derive(Debug, Clone)]
pub struct Batch<B: Backend> {
    /// Tokens to read.
    pub inputs: Input<B>,
    /// Tokens to predict, `[B, T]`.
    pub targets: Tensor<B, 2, Int>,
    /// Weight of each target, `[B, T]`; `None` for equal weights.
    pub mask: Option<Tensor<B, 2>>,
}

impl<B: AutodiffBackend> Batch<B> {
    /// The same batch on the autodiff backend.
    pub fn from_inner(batch: Batch<B::InnerBackend>) -> Self {
        Self {
            inputs: Input::from_inner(batch.inputs),
            targets: Tensor::from_inner(batch.targets),
            mask: batch.mask.map(Tensor::from_inner),
        }
    }
}

/// Settings of a pass.
#[derive(Debug, Clone, Copy, Default)]
pub struct PassOptions {
    /// `None` turns dropout off.
    pub dropout: Option<DropoutKey>,
    /// See [`LossOptions::z_loss`].
    pub z_loss: f64,
    /// See [`LossOptions::divisor`].
    pub divisor: Option<f64>,
    /// Form of recomputed segments' kept inputs. In [`InputForm::Bf16`] a number is off by up to 1/256 of itself, in
    /// [`InputForm::Int8`] by up to 1/254 of the largest of its tile.
    pub kept_inputs: InputForm,
}

impl<B: Backend> Gpt<B> {
    /// A fresh model from `seed` (see [`crate::init`]). An invalid configuration allocates nothing.
    pub fn new(config: &GptConfig, seed: u64, device: &B::Device) -> Result<Self, ConfigError> {
        Self::new_part(config, seed, device, &|_| true)
    }

    /// As [`Gpt::new`], without the numbers of matrices that `holds` refuses.
    pub fn new_part(
        config: &GptConfig,
        seed: u64,
        device: &B::Device,
        holds: Holds<'_>,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self::filled(Filler { config, seed: Some(seed), holds, device }).with_rotary_tables(device))
    }

    /// A model of zeros, allocated at first use, to measure steps.
    pub fn zeroed(config: &GptConfig, device: &B::Device) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self::blank(config, device).with_rotary_tables(device))
    }

    /// For a file's contents: parameters allocated at first use, no rotary tables. `config` is validated.
    pub(crate) fn blank(config: &GptConfig, device: &B::Device) -> Self {
        Self::filled(Filler { config, seed: None, holds: &|_| true, device })
    }

    /// Casts factors of matrix products to `compute` once, for inference, with equal bits. Embedding and vectors stay
    /// wide. Each wide matrix is released before the next cast.
    #[must_use]
    pub fn narrowed(mut self) -> Self {
        let compute = self.config.compute;
        if compute == Compute::F32 {
            return self;
        }
        self = self.with_narrow_blocks();
        match self.lm_head.take() {
            Some(head) => self.lm_head = Some(head.map(|head| compute.narrow(head))),
            None => self.narrow_head = Some(compute.narrow(self.wte.val())),
        }
        self
    }

    pub(crate) fn with_narrow_blocks(mut self) -> Self {
        if self.config.compute != Compute::F32 {
            self.blocks = self.blocks.into_iter().map(Block::narrowed).collect();
        }
        self
    }

    /// Makes block projections' weights for each use where `weights` returns a source.
    #[must_use]
    pub fn with_weights_on_demand(mut self, mut weights: impl FnMut(ParamId) -> Option<OnDemand>) -> Self {
        for projection in self.blocks.iter_mut().flat_map(Block::projections_mut) {
            projection.on_demand = weights(projection.weight.id).or(projection.on_demand.take());
        }
        self
    }

    /// Projections with weights on demand.
    pub fn on_demand(&self) -> HashMap<ParamId, OnDemand> {
        let projections = self.blocks.iter().flat_map(Block::projections);
        projections
            .filter_map(|projection| Some((projection.weight.id, projection.on_demand.clone()?)))
            .collect()
    }

    /// Lets inputs bring embedding rows. The head must be untied.
    #[must_use]
    pub fn with_rows_on_demand(mut self, rows: Option<RowsOnDemand>) -> Self {
        self.rows_on_demand = rows.or(self.rows_on_demand);
        self
    }

    /// The source of embedding rows on demand.
    pub fn rows_on_demand(&self) -> Option<&RowsOnDemand> {
        self.rows_on_demand.as_ref()
    }

    pub(crate) fn with_rotary_tables(mut self, device: &B::Device) -> Self {
        let rotary = self.config.positions == Positions::Rope;
        let GptConfig { rope_theta, rope_scaling, .. } = self.config;
        self.rotary = rotary.then(|| Rotary::new(&self.config, rope_theta, rope_scaling, device));
        let local = self.config.rope_local_theta.filter(|_| rotary);
        self.local_rotary = local.map(|theta| Rotary::new(&self.config, theta, None, device));
        self
    }

    fn filled(mut filler: Filler<'_, B>) -> Self {
        let config = filler.config;
        let width = config.n_embd;
        Self {
            wte: filler.matrix("wte", Role::Embedding, [config.vocab_size, width]),
            wpe: (config.positions == Positions::Learned)
                .then(|| filler.matrix("wpe", Role::Embedding, [config.n_positions, width])),
            followers: config
                .longest_match
                .then(|| filler.matrix("followers", Role::Follower, [config.vocab_size + 1, width])),
            embedding_norm: config.embedding_norm.then(|| Norm::new(&mut filler, width)),
            rotary: None,
            local_rotary: None,
            blocks: (0..config.n_layer).map(|layer| Block::new(&mut filler, layer)).collect(),
            final_norm: Norm::new(&mut filler, width),
            lm_head: (!config.tie_word_embeddings)
                .then(|| filler.matrix("lm_head", Role::Head, [config.vocab_size, width])),
            narrow_head: None,
            rows_on_demand: None,
            frozen: Frozen::default(),
            config: config.clone(),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &GptConfig {
        &self.config
    }

    /// Logits `[B, T, V]`. Panics, as does [`Gpt::loss`], if T exceeds `n_positions`.
    pub fn forward<K: Kernels<B>>(&self, input: impl Into<Input<B>>, kernels: &K) -> Tensor<B, 3> {
        let input = input.into();
        let [batch, time] = input.tokens.dims();
        let x = self.embed(input, None, kernels);
        let x = self.run_blocks(0..self.blocks.len(), x, None, kernels);
        self.logits(x, kernels).reshape([batch, time, self.config.vocab_size])
    }

    /// Mean loss over the targets, `[1]`. Only one chunk's logits exist at a time.
    pub fn loss<K: Kernels<B>>(&self, batch: Batch<B>, options: &PassOptions, kernels: &K) -> Tensor<B, 1> {
        let x = self.embed(batch.inputs, options.dropout, kernels);
        let x = self.run_blocks(0..self.blocks.len(), x, options.dropout, kernels);
        self.head_loss(x, batch.targets, batch.mask, options, kernels)
    }

    /// Waits for no other blocks' weights.
    pub(crate) fn part(&self, blocks: Range<usize>) -> Self {
        Self {
            wte: self.wte.clone(),
            wpe: self.wpe.clone(),
            followers: self.followers.clone(),
            embedding_norm: self.embedding_norm.clone(),
            rotary: self.rotary.clone(),
            local_rotary: self.local_rotary.clone(),
            blocks: self.blocks[blocks].to_vec(),
            final_norm: self.final_norm.clone(),
            lm_head: None,
            narrow_head: None,
            rows_on_demand: self.rows_on_demand.clone(),
            frozen: self.frozen.clone(),
            config: self.config.clone(),
        }
    }

    /// The residual stream before the first block, `[B, T, E]`.
    pub fn embed<K: Kernels<B>>(
        &self,
        input: Input<B>,
        key: Option<DropoutKey>,
        kernels: &K,
    ) -> Tensor<B, 3> {
        let time = input.tokens.dims()[1];
        let input = input.drop_followers(self.config.match_pdrop, key, self.config.vocab_size);
        let x = self.embed_at(input, &PositionIds::From { first: 0, time }, kernels);
        dropout(x, self.config.embd_pdrop, key, Place::Embedding)
    }

    pub(crate) fn embed_at<K: Kernels<B>>(
        &self,
        Input { tokens, followers, rows }: Input<B>,
        positions: &PositionIds<B>,
        kernels: &K,
    ) -> Tensor<B, 3> {
        let (shape, device) = (tokens.dims(), tokens.device());
        let time = shape[1];
        if let PositionIds::From { first, time } = positions {
            let (needed, has) = (first + time, self.config.n_positions);
            assert!(
                needed <= has,
                "a sequence of {needed} tokens is longer than the model's n_positions = {has}"
            );
        }

        let table = rows.map_or_else(|| self.wte.val(), |rows| rows.table);
        let mut x = embedding(table, tokens);
        if let Some(scale) = self.config.embedding_scale {
            x = x.mul_scalar(scale);
        }
        if let Some(wpe) = &self.wpe {
            let wpe = wpe.val();
            x = x + match positions {
                PositionIds::From { first, .. } => wpe.slice_dim(0, *first..first + time).unsqueeze(),
                PositionIds::PerRow(ids) => embedding(wpe, ids.clone()),
            };
        }
        if let Some(table) = &self.followers {
            let none = || Tensor::full(shape, self.config.vocab_size as i64, &device);
            x = x + embedding(table.val(), followers.unwrap_or_else(none));
        }

        match &self.embedding_norm {
            Some(norm) => norm.forward(x, kernels),
            None => x,
        }
    }

    /// The residual stream after `blocks`.
    pub fn run_blocks<K: Kernels<B>>(
        &self,
        blocks: Range<usize>,
        x: Tensor<B, 3>,
        key: Option<DropoutKey>,
        kernels: &K,
    ) -> Tensor<B, 3> {
        let time = x.dims()[1];
        let angles = self.angles(&PositionIds::From { first: 0, time });
        self.blocks[blocks].iter().fold(x, |x, block| {
            let attend = |q, k, v, options: &_| kernels.attention(q, k, v, options);
            block.forward(x, angles.as_ref(), key, kernels, attend)
        })
    }

    pub(crate) fn angles(&self, positions: &PositionIds<B>) -> Option<PassAngles<B>> {
        let local = self.local_rotary.as_ref().map(|rotary| rotary.at(positions));
        self.rotary.as_ref().map(|rotary| PassAngles { global: rotary.at(positions), local })
    }

    /// `[B · T, V]`.
    pub(crate) fn logits<K: Kernels<B>>(&self, x: Tensor<B, 3>, kernels: &K) -> Tensor<B, 2> {
        let x = self.config.compute.narrow(self.normed_rows(x, kernels));
        let head = self.config.compute.narrow(self.head());
        soft_cap(self.config.compute.product(x, head.transpose()), self.config.logit_softcap)
    }

    /// The loss, `[1]`, from the residual stream after the last block.
    pub fn head_loss<K: Kernels<B>>(
        &self,
        x: Tensor<B, 3>,
        targets: Tensor<B, 2, Int>,
        mask: Option<Tensor<B, 2>>,
        options: &PassOptions,
        kernels: &K,
    ) -> Tensor<B, 1> {
        let rows = self.normed_rows(x, kernels);
        let tokens = [rows.dims()[0]];
        let targets = Targets { ids: targets.reshape(tokens), mask: mask.map(|mask| mask.reshape(tokens)) };
        let loss = LossOptions {
            soft_cap: self.config.logit_softcap,
            z_loss: options.z_loss,
            divisor: options.divisor,
            compute: self.config.compute,
        };
        kernels.loss(rows, self.head(), targets, &loss)
    }

    fn normed_rows<K: Kernels<B>>(&self, x: Tensor<B, 3>, kernels: &K) -> Tensor<B, 2> {
        let [batch, time, width] = x.dims();
        self.final_norm.forward(x, kernels).reshape([batch * time, width])
    }

    fn head(&self) -> Tensor<B, 2> {
        let tied = || self.narrow_head.clone().unwrap_or_else(|| self.wte.val());
        self.lm_head.as_ref().map_or_else(tied, Param::val)
    }
}
