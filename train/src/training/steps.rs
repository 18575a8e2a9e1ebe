//! The loop: forward, backward, norm, update; then whatever is due between two steps.
//!
//! Memory failures surface where a result is read. So a step's loss and the norm of its gradients are read before its
//! update is made, and a failure is found with them.

use std::time::Instant;

use anyhow::anyhow;
use backend_offload::{Offload, Offloadable, host_memory, mark_step, reset_peaks, stats};
use burn::backend::Autodiff;
use burn::data::dataloader::DataLoader;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, backend::Backend};
use burn_train::{Interrupter, TrainOutput, TrainStep};
use models::{Batch, Chunks, DropoutKey, Gpt, Lean, PassOptions, recompute};

use super::strategy::{Events, Tape};
use super::{Learner, Run};
use crate::data::StepData;
use crate::exit::Ending;
use crate::optimizer::{HostPart, SquaredNorms, Stride, rate_share};
use crate::progress::Report;

impl<I: Offloadable> Run<I> {
    /// Trains until the last step, a stop or a failure.
    pub(super) fn all_steps(
        &mut self,
        mut model: Learner<Tape<I>>,
        loader: &dyn DataLoader<Tape<I>, StepData>,
        events: &mut Events<I>,
        interrupter: &Interrupter,
    ) -> (Learner<Tape<I>>, anyhow::Result<Ending>) {
        let mut batches = loader.iter();
        while self.session.progress.step < self.session.steps() {
            let before = stats::<I>(&self.device);
            self.peaks.include::<I>(&self.device, &before);
            reset_peaks::<I>(&self.device);
            let begun = Instant::now();
            let Some(data) = batches.next() else {
                let failure = self.session.training.failure();
                let error = failure.map_or_else(|| anyhow!("the training data ended early"), Into::into);
                return (model, Err(error));
            };
            let waited = begun.elapsed();
            let step = data.step;
            let (grads, mut report) = model.gradients(&data, self.optimizer.host.as_mut());
            if let Some(failure) = report.failure.take() {
                return (model, Err(anyhow!("step {step} could not run: {failure}")));
            }
            let settings = &self.session.config.train;
            let share = rate_share(&settings.schedule, step, self.session.steps());
            report.lr = settings.lr * share;
            if report.is_usable() {
                let stride = Stride::clipped(share, f64::from(report.gnorm), settings.grad_clip);
                let stepped;
                (model, stepped) = model.map_gpt(|gpt| self.optimizer.step(gpt, grads, stride));
                if let Err(error) = stepped {
                    return (model, Err(anyhow!("the update of step {step} could not run: {error}")));
                }
            } else {
                self.optimizer.withhold();
            }
            // An update that could not run is told here; no later step may use its weights.
            if let Err(error) = Offload::<I>::sync(&self.device) {
                return (model, Err(anyhow!("the update of step {step} could not run: {error}")));
            }
            report.time(begun.elapsed(), waited);
            mark_step::<I>(&self.device);
            let host = host_memory::<I>(&self.device).usage().peak;
            report.memory(&before, &stats::<I>(&self.device), host);
            self.account(report, events);
            match self.between_steps(&model, events, interrupter) {
                Ok(None) => {}
                Ok(Some(ending)) => return (model, Ok(ending)),
                Err(error) => return (model, Err(error)),
            }
        }
        let ending = self.finish(&model, events);
        (model, ending)
    }

    /// Evaluates, samples and saves where that is due; an ending if the step was the last one for whatever reason.
    fn between_steps(
        &mut self,
        model: &Learner<Tape<I>>,
        events: &mut Events<I>,
        interrupter: &Interrupter,
    ) -> anyhow::Result<Option<Ending>> {
        let config = &self.session.config;
        let (evaluates, samples) = (config.eval.every, config.eval.sample_every);
        if self.session.progress.withheld >= config.train.bad_steps {
            self.save_or_end(model, None)?;
            return Ok(Some(Ending::Diverged));
        }
        let saves = self.session.due(config.checkpoint.every);
        let better = if self.session.due(evaluates) { self.evaluate(model, events)? } else { None };
        if self.session.due(samples) {
            self.sample(model)?;
        }
        let last = self.session.progress.step >= self.session.steps();
        if !last && (self.session.should_stop() || interrupter.should_stop()) {
            self.save_or_end(model, better)?;
            return Ok(Some(Ending::Interrupted));
        }
        if (saves || better.is_some())
            && let Err(error) = self.save(model, better)
        {
            self.say(&format!("{error:#}; training goes on"));
        }
        Ok(None)
    }

    fn finish(&mut self, model: &Learner<Tape<I>>, events: &mut Events<I>) -> anyhow::Result<Ending> {
        let better = self.evaluate(model, events)?;
        self.sample(model)?;
        if self.session.config.checkpoint.last {
            self.save_or_end(model, better)?;
        }
        Ok(Ending::Done)
    }
}

impl<I: Backend> TrainStep for Learner<Autodiff<I>> {
    type Input = StepData;
    type Output = Report;

    /// What Burn's own loop would call; ours has a place for gradients on the host, too.
    fn step(&self, data: StepData) -> TrainOutput<Report> {
        let (grads, item) = self.gradients(&data, None);
        TrainOutput { grads, item }
    }
}

impl<I: Backend> Learner<Autodiff<I>> {
    /// Gradients of all micro-batches together, as those of one large batch: each weighs as much as it has targets. Those of
    /// parameters that are stepped on the host are there when this returns, the others are returned.
    fn gradients(&self, data: &StepData, host: Option<&mut HostPart>) -> (GradientsParams, Report) {
        let divisor = data.counted();
        let device = self.gpt.wte.lazy_device();
        let mut sum = Sum { grads: GradientsParams::new(), norms: SquaredNorms::new(), host, failure: None };
        let last = data.micro_batches.len() - 1;
        let mut numbers = Vec::with_capacity(data.micro_batches.len() + 1);
        for (n, micro_batch) in data.micro_batches.iter().enumerate() {
            let key = DropoutKey { seed: self.pass.seed, step: data.step, micro_batch: n as u64 };
            let options =
                PassOptions { dropout: Some(key), z_loss: self.pass.z_loss, divisor: Some(divisor) };
            let batch = micro_batch.upload::<I>(&device);
            numbers.push(self.forward_backward(batch, &options, &mut sum, n == last));
        }
        let Sum { grads, norms, host, failure } = sum;
        let losses = numbers.len();
        numbers.extend(norms.global_norm(&self.gpt));
        let mut report = Report { step: data.step, optimizer_on_host: host.is_some(), ..Report::default() };
        match Tensor::cat(numbers, 0).try_into_data() {
            Ok(numbers) => {
                let numbers: Vec<f32> = numbers.iter::<f32>().collect();
                report.loss = numbers[..losses].iter().sum();
                let on_device = numbers.get(losses).copied();
                report.gnorm = match host {
                    None => on_device.unwrap_or_default(),
                    Some(host) => {
                        let on_device = f64::from(on_device.unwrap_or_default());
                        (on_device * on_device + host.squares()).sqrt() as f32
                    }
                };
            }
            Err(error) => report.failure = Some(error.to_string()),
        }
        // Of two failures the first is told: the second follows from it.
        report.failure = failure.or(report.failure);
        (grads, report)
    }

    /// Adds a micro-batch's gradients to `sum`, which `completes` there; returns its share of the loss.
    fn forward_backward(
        &self,
        batch: Batch<I>,
        options: &PassOptions,
        sum: &mut Sum<'_, I>,
        completes: bool,
    ) -> Tensor<I, 1> {
        let kernels = Lean(Chunks::default());
        if let Some(every) = self.pass.recompute {
            let (_, loss) =
                recompute::sweep(self.gpt.clone(), batch, options, kernels, every, |gpt, segment| {
                    sum.add(&gpt, segment, completes);
                    gpt
                });
            return loss;
        }
        let loss = self.gpt.loss(Batch::from_inner(batch), options, &kernels);
        let value = loss.clone().inner();
        sum.add(&self.gpt, GradientsParams::from_grads(loss.backward(), &self.gpt), completes);
        value
    }
}

/// The gradients of all micro-batches together, as they arrive: each parameter once in every micro-batch.
struct Sum<'a, I: Backend> {
    grads: GradientsParams,
    /// Of gradients that stay on the device, and are complete.
    norms: SquaredNorms<I>,
    host: Option<&'a mut HostPart>,
    /// The first gradient that could not be taken to the host.
    failure: Option<String>,
}

impl<I: Backend> Sum<'_, I> {
    fn add(&mut self, gpt: &Gpt<Autodiff<I>>, mut arrived: GradientsParams, completes: bool) {
        // Every weight has been used by now; a failure in making one is told before anything that follows from it.
        if let Some(host) = &mut self.host
            && let Err(error) = host.settle()
        {
            self.failure.get_or_insert(format!("{error:#}"));
        }
        gpt.visit(&mut Arrival { arrived: &mut arrived, sum: self, completes });
    }
}

struct Arrival<'a, 's, I: Backend> {
    arrived: &'a mut GradientsParams,
    sum: &'a mut Sum<'s, I>,
    completes: bool,
}

impl<I: Backend> ModuleVisitor<Autodiff<I>> for Arrival<'_, '_, I> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Autodiff<I>, D>>) {
        let Some(arrived) = self.arrived.remove::<I, D>(param.id) else { return };
        if let Some(host) = self.sum.host.as_mut().filter(|host| host.has(param.id)) {
            if self.sum.failure.is_none() {
                let taken = host.arrive(param.id, arrived, param.val().dtype());
                self.sum.failure = taken.err().map(|error| error.to_string());
            }
            return;
        }
        let sum = match self.sum.grads.remove::<I, D>(param.id) {
            Some(sum) => sum + arrived,
            None => arrived,
        };
        if self.completes {
            self.sum.norms.add(param.id, sum.clone());
        }
        self.sum.grads.register(param.id, sum);
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::{Flex, flex::FlexDevice};
    use runs::config::Config;

    use super::*;
    use crate::data::MicroBatch;
    use crate::optimizer::tests::norm_of;

    #[test]
    fn a_steps_norm_is_that_of_the_gradients_it_returns() {
        let data = || {
            let micro_batch = |first: i32| MicroBatch {
                rows: 1,
                inputs: vec![first, 1, 2, 3],
                targets: vec![1, 2, 3, first],
                mask: None,
            };
            StepData { step: 1, micro_batches: vec![micro_batch(5), micro_batch(6), micro_batch(7)] }
        };
        for recompute in ["null", "1"] {
            let text = format!(
                r#"{{"model": {{"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 4, "vocab_size": 264}},
                    "tokenizer": {{"kind": "bytes"}}, "train": {{"recompute": {recompute}}}}}"#
            );
            let config = Config::from_text(&text, "a tiny run", &[]).expect("valid");
            let gpt = Gpt::<Autodiff<Flex>>::new(&config.model, 3, &FlexDevice).expect("valid");
            let learner = Learner::new(gpt, &config);
            let TrainOutput { grads, item } = TrainStep::step(&learner, data());
            let all_at_once = norm_of(&learner.gpt, &grads);
            assert_eq!(item.gnorm.to_bits(), all_at_once.to_bits(), "recompute {recompute}");
            assert!(item.gnorm > 0.0);
        }
    }
}
