//! The run itself, behind Burn's training interface.

mod beginning;
mod due;
mod evaluation;
mod exchange;
#[cfg(test)]
mod frozen;
mod gradients;
mod learner;
mod metrics;
mod parts;
mod pipeline;
mod samples;
mod saving;
mod session;
#[cfg(test)]
mod sharded;
#[cfg(test)]
mod sharded_weights;
mod snapshot;
#[cfg(test)]
mod staged;
mod strategy;
#[cfg(test)]
mod together;
mod train_step;
mod trainer;
mod watching;
mod wear;
#[cfg(test)]
mod whole_and_by_rows;

pub(crate) use self::exchange::Exchange;
pub(crate) use beginning::first_state;
pub(crate) use evaluation::{evaluate, trial, trial_of_stages};
pub(crate) use learner::Learner;
pub(crate) use metrics::Peaks;
pub(crate) use samples::{QuizScore, all_ranks_generate, generate_on_ranks, most_passes, quiz};
pub(crate) use session::{Progress, Session, Speed};
pub(crate) use snapshot::{check, restore, save_first};
pub(crate) use strategy::{Display, Failed, Outcome, Taken, Tape, launch};
pub(crate) use trainer::Trainer;
pub(crate) use wear::Wear;
