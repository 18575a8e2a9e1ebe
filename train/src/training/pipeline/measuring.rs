//! Validation by stages: batches pass forward, and the last stage measures.
//!
//! A first stage that embeds is ahead by one batch for each stage at most: what waits takes host memory
//! (`a_fast_first_stage_waits_for_the_last_one`). If the last stage embeds, one stage works at a time.

use anyhow::anyhow;
use burn::tensor::backend::Backend;
use bytemuck::Pod;
use models::{Chunks, PassOptions, Plain};

use super::super::Learner;
use super::{Line, send, shape};
use crate::data::MicroBatch;
use crate::progress::Validation;
use crate::ranks::{Pipe, Ranks, Route};

pub(in crate::training) struct Measuring<'m, B: Backend> {
    learner: &'m Learner<B>,
    line: Line,
    pipe: Pipe,
    /// Batches that the last stage has not reported.
    ahead: usize,
    failure: Option<String>,
}

impl<'m, B: Backend> Measuring<'m, B> {
    pub(in crate::training) fn begin(learner: &'m Learner<B>, ranks: &mut Ranks) -> anyhow::Result<Self> {
        let line = Line::new(learner, ranks);
        Ok(Self { learner, line, pipe: ranks.begin_pipe()?, ahead: 0, failure: None })
    }

    fn hear_last(&mut self, route: Route) {
        self.pipe.expect(route, 1);
        // A failed call is reported at the end.
        _ = self.pipe.take(route);
        self.ahead -= 1;
    }

    /// Zeros but on the last stage. Others go on after a failure.
    pub(in crate::training) fn step(&mut self, micro_batch: &MicroBatch) -> Validation {
        let (counted, (_, stages)) = (micro_batch.counted(), self.line.place);
        if let Some(last) = self.line.hears() {
            if self.ahead == stages {
                self.hear_last(last);
            }
            self.ahead += 1;
        }
        let sum = self.pass(micro_batch).unwrap_or_else(|failure| {
            self.failure.get_or_insert(failure);
            0.0
        });
        if let Some(first) = self.line.measures() {
            self.pipe.send(first, vec![0]);
        }
        Validation { sum, counted, failure: None }
    }

    fn pass(&mut self, micro_batch: &MicroBatch) -> Result<f64, String> {
        let Learner { gpt, .. } = self.learner;
        let (kernels, device) = (Plain(Chunks::default()), gpt.wte.lazy_device());
        let shape = shape(micro_batch, gpt.config().n_embd);
        let batch = micro_batch.upload::<B>(gpt.rows_on_demand(), &device);
        let mut failure = None;
        let embed = || Ok(gpt.embed(batch.inputs.clone(), None, &kernels));
        let Some(stream) = self.line.stream(&mut self.pipe, (shape, &device), &mut failure, embed)? else {
            return Ok(0.0);
        };
        let stream = gpt.run_blocks(self.line.stage.blocks(), stream, None, &kernels);
        if let Some(cut) = self.line.output {
            send(&self.pipe, cut.forward(), stream, &mut failure);
            return failure.map_or(Ok(0.0), Err);
        }

        let options = PassOptions { divisor: Some(1.0), ..PassOptions::default() };
        let loss = gpt.head_loss(stream, batch.targets, batch.mask, &options, &kernels);
        let data = loss.try_into_data().map_err(|error| error.to_string())?;
        failure.map_or_else(|| Ok(data.iter::<f64>().sum()), Err)
    }

    /// The last stage's, on all ranks. A rank whose batches ended early leaves with its reason: others wait for messages, not
    /// for its vote.
    pub(in crate::training) fn end<T: Pod>(
        mut self,
        measured: anyhow::Result<Vec<T>>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<Vec<T>> {
        if let (Some(last), true) = (self.line.hears(), measured.is_ok()) {
            while self.ahead > 0 {
                self.hear_last(last);
            }
        }
        let ended = ranks.end_pipe(self.pipe);
        let mut measured = measured?;
        if !self.line.stage.ends {
            measured.clear();
        }
        let failure = self.failure.map(|failure| anyhow!("validation could not run: {failure}"));
        ranks.joined(ended.and(failure.map_or(Ok(measured), Err)))
    }
}
