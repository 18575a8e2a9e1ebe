//! One rank's steps, without and under `mpirun`, in turn.

use std::{path::Path, time::Duration};

use anyhow::{Result, ensure};

use xtask::invocation::Invocation;

use crate::vram::{Model, Timed, Trainer, unlimited_arguments};

use super::{
    cell::STEPS,
    ranks::{Launcher, MPIRUN},
    sample::{Kind, Link, Sample},
};

const NAME: &str = "train";
const DEVICE: &str = "cpu";
const CONFIG: &str = "toy";

/// Per process; the fastest counts.
const STEPS_OF_ONE: u64 = 40;

/// Odd, for a median.
const TURNS: u64 = 21;

const LIMIT: Duration = Duration::from_mins(10);

pub(super) struct Training {
    by_itself: Trainer,
    under_mpi: Trainer,
    model: Model,
}

impl Training {
    pub(super) fn new(given: Option<&Path>, launcher: &Launcher) -> Result<Self> {
        let by_itself = Trainer::get(given, DEVICE)?;
        let under_mpi = by_itself.launched(|words| launcher.start(Link::None, 1, &launcher.mpirun, words))?;
        Ok(Self { by_itself, under_mpi, model: model() })
    }

    pub(super) fn origin(&self) -> &str {
        &self.by_itself.origin
    }

    pub(super) fn measure(&self) -> Result<Vec<Sample>> {
        by_turns(TURNS, |kind| {
            let trainer = if kind == Kind::StepUnderMpi { &self.under_mpi } else { &self.by_itself };
            trainer.timed(&self.model, LIMIT)
        })
    }
}

fn model() -> Model {
    Model::on_cpu(CONFIG, STEPS_OF_ONE)
}

pub(super) fn shown(launcher: &Launcher) -> Result<[String; 2]> {
    let arguments = unlimited_arguments(&model(), DEVICE);
    let program: Vec<String> = [NAME.to_owned()].into_iter().chain(arguments.clone()).collect();
    let by_itself = Invocation::new(NAME).arguments(arguments);
    let under_mpi = launcher.start(Link::None, 1, Path::new(MPIRUN), &program)?;
    Ok([by_itself.to_string(), under_mpi.to_string()])
}

/// No kind always runs first.
fn by_turns(turns: u64, mut run: impl FnMut(Kind) -> Result<Timed>) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    let mut weights = None;
    for turn in 0..turns {
        for at in 0..STEPS.len() {
            let kind = STEPS[(turn as usize + at) % STEPS.len()];
            let run = run(kind)?;
            let first = weights.get_or_insert_with(|| run.weights.clone());
            ensure!(*first == run.weights, "turn {turn}, {kind}: other weights than those of the first run");
            let (bytes, seconds) = (4 * run.parameters, run.step_seconds);
            samples.push(Sample { link: Link::None, ranks: 1, kind, bytes, turn, sent: 0, seconds });
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::{super::ranks::tests::launcher, *};

    fn timed(weights: &str) -> Timed {
        Timed { parameters: 10, step_seconds: 0.5, weights: weights.to_owned() }
    }

    #[test]
    fn each_kind_of_step_is_taken_once_a_turn_and_none_always_first() {
        let samples = by_turns(4, |_| Ok(timed("aa"))).unwrap();
        assert_eq!(samples.len(), 4 * STEPS.len());
        for (turn, own) in (0..).zip(samples.chunks(STEPS.len())) {
            assert!(own.iter().all(|sample| (sample.turn, sample.bytes) == (turn, 40)), "{own:?}");
            assert!(STEPS.iter().all(|kind| own.iter().any(|sample| sample.kind == *kind)), "{own:?}");
            assert_eq!(own[0].kind, STEPS[turn as usize % STEPS.len()]);
        }
    }

    #[test]
    fn a_run_that_ends_with_other_weights_is_no_measurement() {
        let ended = |kind| Ok(timed(if kind == Kind::StepUnderMpi { "bb" } else { "aa" }));
        let error = by_turns(1, ended).unwrap_err().to_string();
        assert_eq!(error, "turn 0, step under MPI: other weights than those of the first run");
    }

    #[test]
    fn the_same_arguments_follow_the_trainer_and_mpirun() {
        let [by_itself, under_mpi] = shown(&launcher(4)).unwrap();
        assert!(
            by_itself.starts_with("train run --config toy --device cpu --out DIR --json "),
            "{by_itself}"
        );
        assert!(under_mpi.starts_with("mpirun -n 1 ") && under_mpi.ends_with(&by_itself), "{under_mpi}");
        // Bound to one core, the rank would be slower.
        assert!(under_mpi.contains("--bind-to none") && !under_mpi.contains("OMPI_MCA_btl"), "{under_mpi}");
    }
}
