//! The run itself, behind Burn's training interface.

mod evaluation;
mod learner;
mod report;
mod samples;
mod session;
mod snapshot;
mod steps;
mod strategy;

pub(crate) use evaluation::evaluate;
pub(crate) use learner::Learner;
pub(crate) use report::{Report, Validation};
pub(crate) use samples::{QuizScore, Speaker, ends, quiz};
pub(crate) use session::{Progress, Session};
pub(crate) use snapshot::{CONFIG, TOKENIZER, WEIGHTS, check, load_weights, restore, save, tables_fit};
pub(crate) use steps::{Run, trial};
pub(crate) use strategy::{Display, Outcome, Taken, Tape, launch};
