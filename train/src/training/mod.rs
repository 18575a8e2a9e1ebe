//! The run itself, behind Burn's training interface.

mod beginning;
#[cfg(test)]
mod divided;
mod due;
mod evaluation;
mod exchange;
mod gradients;
mod learner;
mod lending;
mod run;
mod samples;
mod saving;
mod session;
mod snapshot;
mod steps;
mod strategy;
mod watching;
mod wear;
#[cfg(test)]
mod whole_and_by_rows;

pub(crate) use self::exchange::Exchange;
pub(crate) use beginning::{computes_nothing, first_state};
pub(crate) use evaluation::{evaluate, trial};
pub(crate) use learner::Learner;
pub(crate) use run::{Peaks, Run};
pub(crate) use samples::{QuizScore, quiz};
pub(crate) use session::{Progress, Session};
pub(crate) use snapshot::{PARTS, check, restore, save};
pub(crate) use strategy::{Display, Failed, Outcome, Taken, Tape, launch};
pub(crate) use wear::Wear;
