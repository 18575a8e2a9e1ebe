//! A stage of a pipeline: consecutive recomputed segments on one of several processes.
//!
//! The residual stream and its gradient cross the cuts, which change no bit
//! (`stages_have_the_bits_of_the_whole_network`).
//!
//! A tied head has the embedding's table: the last stage embeds for the first one.

use std::ops::Range;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::module::AutodiffModule;
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, backend::Backend};

use crate::gpt::{Batch, Gpt, PassOptions};
use crate::input::Input;
use crate::kernels::{Lean, Plain};
use crate::parameters::Part;
use crate::precision::InputForm;
use crate::recompute::{BatchPass, SegmentInput, segments};
use crate::rows;

/// The parts of a network in one stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// Its segments of blocks, in order.
    pub segments: Vec<Range<usize>>,
    /// Whether it embeds tokens before its first segment.
    pub begins: bool,
    /// Whether it has the final norm and the head.
    pub ends: bool,
    /// Whether it embeds tokens for the first stage.
    pub embeds: bool,
}

impl Stage {
    /// Stage `number` of `stages`, in segments of `every` blocks.
    pub fn new((number, stages): (usize, usize), (layers, every): (usize, usize), is_tied: bool) -> Self {
        let all = segments(layers, every);
        let first = |stage: usize| all.len() * stage / stages;
        let [is_first, ends] = [number == 0, number + 1 == stages];
        let is_apart = is_tied && stages > 1;
        Self {
            segments: all[first(number)..first(number + 1)].to_vec(),
            begins: is_first && !is_apart,
            ends,
            embeds: ends && is_apart,
        }
    }

    /// Whether its process has the parameters of a part.
    pub fn has(&self, part: Part) -> bool {
        match part {
            Part::Tokens | Part::Positions | Part::Followers | Part::EmbeddingNorm => {
                self.begins || self.embeds
            }
            Part::Block(block) => self.blocks().contains(&block),
            Part::FinalNorm | Part::Head => self.ends,
        }
    }

    /// All its blocks.
    pub fn blocks(&self) -> Range<usize> {
        let [first, last] = [self.segments.first(), self.segments.last()];
        first.map_or(0, |first| first.start)..last.map_or(0, |last| last.end)
    }
}

/// One micro-batch on its way through a stage.
pub struct StagePass<I: Backend>(BatchPass<I>);

impl<I: Backend> StagePass<I> {
    /// Before the stage.
    pub fn new(batch: Batch<I>, options: PassOptions) -> Self {
        Self(BatchPass::new(batch, options))
    }

    /// Bytes of the inputs that it keeps.
    pub fn kept_bytes(&self) -> u64 {
        self.0.kept.iter().map(SegmentInput::bytes).sum()
    }

    /// The mean loss, `[1]`, after [`backward`](Self::backward) of the last stage.
    pub fn loss(&self) -> Option<&Tensor<I, 1>> {
        self.0.loss.as_ref()
    }

    /// The residual stream of the embedded tokens.
    pub fn embedded<C: CheckpointStrategy>(
        &self,
        model: &Gpt<Autodiff<I, C>>,
        kernels: Plain,
    ) -> Tensor<I, 3> {
        model.part(0..0).valid().embed(self.0.inputs.clone(), self.0.options.dropout, &kernels)
    }

    /// Passes the stage's segments. The last stage returns `None`: its head runs backward.
    pub fn forward<C: CheckpointStrategy>(
        &mut self,
        model: &Gpt<Autodiff<I, C>>,
        stage: &Stage,
        stream: Option<Tensor<I, 3>>,
        kernels: Plain,
    ) -> Option<Tensor<I, 3>> {
        let mut stream = stream.unwrap_or_else(|| self.embedded(model, kernels));
        let pass = &mut self.0;
        let dropout = pass.options.dropout;
        for segment in &stage.segments {
            let part = model.part(segment.clone()).valid();
            if segment.start > 0 || !stage.begins {
                // One process embeds again.
                let form = if segment.start > 0 { pass.options.kept_inputs } else { InputForm::Computed };
                pass.kept.push(SegmentInput::new(stream.clone(), form));
            }
            stream = part.run_blocks(0..segment.len(), stream, dropout, &kernels);
        }
        if stage.ends {
            pass.stream = Some(stream);
            return None;
        }
        Some(stream)
    }

    /// Runs head and segments backward, from the output's `gradient`. Returns that of the input, if another stage made it.
    pub fn backward<C: CheckpointStrategy>(
        &mut self,
        model: &Gpt<Autodiff<I, C>>,
        stage: &Stage,
        gradient: Option<Tensor<I, 3>>,
        kernels: Lean,
        mut on_segment: impl FnMut(GradientsParams),
    ) -> Option<Tensor<I, 3>> {
        if stage.ends {
            let gradients = self.0.backward_head(model, kernels);
            let mut ready = GradientsParams::from_grads(gradients, model);
            self.0.from_head = ready.remove::<I, 2>(model.wte.id);
            on_segment(ready);
        } else {
            self.0.stream = gradient;
        }
        for segment in stage.segments.iter().rev() {
            on_segment(self.0.backward_segment(model, segment.clone(), kernels));
        }
        self.0.stream.take()
    }

    /// Gradients of the tables, with a tied head's share, from that of [`embedded`](Self::embedded).
    pub fn backward_embedding<C: CheckpointStrategy>(
        &mut self,
        model: &Gpt<Autodiff<I, C>>,
        gradient: Tensor<I, 3>,
        kernels: Lean,
    ) -> GradientsParams {
        let inputs = Input::from_inner(self.0.inputs.clone());
        let named = inputs.rows.clone();
        let embedded = model.embed(inputs, self.0.options.dropout, &kernels);
        let gradients = (embedded * Tensor::from_inner(gradient)).sum().backward();
        let ready = rows::gradients(gradients, model, model.wte.id, named.as_ref());
        self.0.with_head(model, ready)
    }
}
