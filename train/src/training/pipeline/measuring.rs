//! Validation by stages: batches pass forward, and the last stage measures.

use burn::tensor::backend::Backend;
use models::{Chunks, PassOptions, Plain};

use super::super::Learner;
use super::{Cut, Line, bytes, shape, tensor};
use crate::data::MicroBatch;
use crate::progress::Validation;
use crate::ranks::{Pipe, Ranks};

pub(in crate::training) struct Measuring<'m, B: Backend> {
    learner: &'m Learner<B>,
    line: Line,
    pipe: Pipe,
    failure: Option<String>,
}

impl<'m, B: Backend> Measuring<'m, B> {
    pub(in crate::training) fn begin(learner: &'m Learner<B>, ranks: &mut Ranks) -> anyhow::Result<Self> {
        let line = Line::new(learner, ranks);
        Ok(Self { learner, line, pipe: ranks.begin_pipe()?, failure: None })
    }

    /// Zeros but on the last stage. Others go on after a failure.
    pub(in crate::training) fn step(&mut self, micro_batch: &MicroBatch) -> Validation {
        let counted = micro_batch.counted();
        let sum = self.pass(micro_batch).unwrap_or_else(|failure| {
            self.failure.get_or_insert(failure);
            0.0
        });
        Validation { sum, counted, failure: None }
    }

    fn pass(&mut self, micro_batch: &MicroBatch) -> Result<f64, String> {
        let (Learner { gpt, .. }, Line { stage, input, output, embedding, .. }) = (self.learner, &self.line);
        let (kernels, device) = (Plain(Chunks::default()), gpt.wte.lazy_device());
        let shape = shape(micro_batch, gpt.config().n_embd);
        let batch = micro_batch.upload::<B>(gpt.rows_on_demand(), &device);
        let mut failure = None;
        let mut send = |pipe: &Pipe, to, stream| {
            let bytes = bytes(stream).unwrap_or_else(|(why, zeros)| {
                failure.get_or_insert(why);
                zeros
            });
            pipe.send(to, bytes);
        };

        if let Some(cut) = embedding {
            send(&self.pipe, cut.forward(), gpt.embed(batch.inputs.clone(), None, &kernels));
        }
        let stream = match input.map(Cut::forward) {
            None => gpt.embed(batch.inputs, None, &kernels),
            Some(from) => {
                self.pipe.expect(from, size_of::<f32>() * shape.iter().product::<usize>());
                let Some(bytes) = self.pipe.take(from) else { return Ok(0.0) };
                tensor(bytes, shape, &device)
            }
        };
        let stream = gpt.run_blocks(stage.blocks(), stream, None, &kernels);
        if let Some(cut) = output {
            send(&self.pipe, cut.forward(), stream);
            return failure.map_or(Ok(0.0), Err);
        }

        let options = PassOptions { divisor: Some(1.0), ..PassOptions::default() };
        let loss = gpt.head_loss(stream, batch.targets, batch.mask, &options, &kernels);
        let data = loss.try_into_data().map_err(|error| error.to_string())?;
        failure.map_or_else(|| Ok(data.iter::<f64>().sum()), Err)
    }

    pub(in crate::training) fn end<T>(
        self,
        measured: anyhow::Result<Vec<T>>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<Vec<T>> {
        ranks.end_pipe(self.pipe)?;
        if let Some(failure) = self.failure {
            anyhow::bail!("validation could not run: {failure}");
        }
        measured.map(|measured| if self.line.stage.ends { measured } else { Vec::new() })
    }
}
