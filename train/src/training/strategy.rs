//! The training loop, as a strategy of Burn.
//!
//! Burn's own loop counts epochs, clones the model to step it and returns no errors. Ours runs inside Burn for metrics,
//! renderers and interrupter. The trainer takes the model from Burn's learner and keeps the result until Burn returns.

use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};

use backend_offload::{Offload, Offloadable, stats};
use burn::backend::Autodiff;
use burn::lr_scheduler::constant::ConstantLr;
use burn::optim::{Sgd, SgdConfig, adaptor::OptimizerAdaptor};
use burn_dataset::Dataset;
use burn_train::{
    Interrupter, LearningComponentsMarker, SupervisedLearningStrategy, SupervisedTraining,
    SupervisedTrainingEventProcessor, TrainLoader, TrainingComponents, TrainingStrategy, ValidLoader,
};

use super::evaluation::Evaluation;
use super::saving::Saves;
use super::{Learner, Peaks, Session, Trainer};
use crate::data::StepLoader;
use crate::exit::Ending;
use crate::journal::Journal;
use crate::optimizer::WeightWindow;
use crate::progress::{Lines, NoLogger, PlainRenderer, StepLines, terminal, train_scalars, valid_loss};
use crate::ranks::Ranks;

pub(crate) type Tape<I> = Autodiff<Offload<I>>;

/// Burn's learner requires optimizer and schedule; both are unused.
pub(super) type Components<I> = LearningComponentsMarker<
    Tape<I>,
    ConstantLr,
    Learner<Tape<I>>,
    OptimizerAdaptor<Sgd<Offload<I>>, Learner<Tape<I>>, Tape<I>>,
>;

pub(super) type Events<I> = SupervisedTrainingEventProcessor<Components<I>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Display {
    /// Lines, every so many steps.
    Plain {
        every: Option<NonZeroU64>,
    },
    Terminal,
    Silent,
}

pub(crate) struct Outcome<I: Offloadable> {
    pub(crate) learner: Learner<Offload<I>>,
    pub(crate) session: Session,
    pub(crate) ranks: Ranks,
    pub(crate) journal: Journal,
    pub(crate) ending: Ending,
    pub(crate) evaluation: Option<Evaluation>,
    pub(crate) taken: Vec<Taken>,
    pub(crate) peaks: Peaks,
    pub(crate) saves: Saves,
    pub(crate) window: Option<WeightWindow<Offload<I>>>,
}

pub(crate) struct Failed {
    pub(crate) error: anyhow::Error,
    pub(crate) ranks: Ranks,
    /// Whether a checkpoint was saved; only rank 0 knows.
    pub(crate) saved: bool,
}

impl<I: Offloadable> Outcome<I> {
    pub(crate) fn failed(self, error: anyhow::Error) -> Box<Failed> {
        Box::new(Failed { error, ranks: self.ranks, saved: self.saves.bytes.is_some() })
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) loss: f32,
    pub(crate) seconds: f64,
    /// Tokens of all ranks over those at this rank's pace.
    pub(crate) pace: f64,
    /// Over the link.
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) spilled_in: u64,
    pub(crate) spilled_out: u64,
}

/// Burn shares a strategy; one thread holds the run throughout.
struct Strategy<I: Offloadable>(Mutex<Trainer<I>>);

/// A failure leaves none of the learner's memory held.
pub(crate) fn launch<I: Offloadable>(
    learner: Learner<Tape<I>>,
    trainer: Trainer<I>,
    interrupter: Interrupter,
) -> Result<Outcome<I>, Box<Failed>> {
    let (session, display) = (&trainer.session, trainer.log.display);
    let steps = session.progress.step as usize..session.steps() as usize;
    let train = StepLoader::new(Arc::clone(&session.training), steps);
    let valid = StepLoader::new(Arc::clone(&session.validation), 0..session.validation.len());
    let directory = session.run.clone();
    let strategy = Arc::new(Strategy(Mutex::new(trainer)));
    let mut training: SupervisedTraining<Components<I>> =
        SupervisedTraining::new(directory, Arc::new(train), Arc::new(valid))
            .with_training_strategy(TrainingStrategy::Custom(Arc::clone(&strategy) as Arc<_>))
            .with_metric_logger(NoLogger)
            .with_application_logger(None)
            .with_interrupter(interrupter.clone())
            .metric_train(Lines)
            .metric_valid_numeric(valid_loss());
    for scalar in train_scalars() {
        training = training.metric_train_numeric(scalar);
    }

    let training = match display {
        Display::Plain { every } => training.renderer(PlainRenderer::new(Some(StepLines::new(every)))),
        Display::Silent => training.renderer(PlainRenderer::new(None)),
        Display::Terminal => training.renderer(terminal::take_over(interrupter)),
    };
    let unused = SgdConfig::new().init();
    let trained = training.launch(burn_train::Learner::new(learner, unused, ConstantLr::new(0.0)));

    // Restores the terminal before anything else is printed.
    drop(trained.renderer);
    let trainer = Arc::into_inner(strategy).expect("Burn lets go of what it has returned from").0;
    let mut trainer = trainer.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut metrics = trainer.metrics;
    metrics.peaks.include::<I>(&trainer.device, &stats::<I>(&trainer.device));
    let (ranks, saves) = (trainer.ranks, trainer.saver.saves);
    let ending = match trainer.ending.take().expect("the loop has ended") {
        Ok(ending) => ending,
        Err(error) => return Err(Box::new(Failed { error, ranks, saved: saves.bytes.is_some() })),
    };

    Ok(Outcome {
        learner: trained.model,
        session: trainer.session,
        ranks,
        journal: trainer.log.journal,
        ending,
        peaks: metrics.peaks,
        evaluation: metrics.evaluation,
        taken: metrics.taken,
        saves,
        window: trainer.optimizer.window,
    })
}

impl<I: Offloadable> SupervisedLearningStrategy<Components<I>> for Strategy<I> {
    fn fit(
        &self,
        components: TrainingComponents<Components<I>>,
        learner: burn_train::Learner<Components<I>>,
        train: TrainLoader<Components<I>>,
        _valid: ValidLoader<Components<I>>,
        _first_epoch: usize,
    ) -> (Learner<Tape<I>>, Events<I>) {
        let mut trainer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        trainer.model = learner.model().into();
        // The trainer, as sole holder, steps weights in place.
        drop(learner);
        let mut events = components.event_processor;
        let ending = trainer.train(train.as_ref(), &mut events, &components.interrupter);
        if ending.is_err() {
            let Trainer { exchange, ranks, .. } = &mut *trainer;
            exchange.fail(ranks);
        }
        trainer.settle_save_or_say();
        if ending.is_err() && trainer.ranks.all_know_failure() {
            trainer.ranks.wait_for_lead();
        }
        trainer.ending = Some(ending);
        (trainer.model.take(), events)
    }
}
