//! One file per verb: its arguments and its work.

mod arguments;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod eval;
pub(crate) mod examples;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod index;
pub(crate) mod inspect;
pub(crate) mod plan;
pub(crate) mod prepare;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod sample;
mod screen;
pub(crate) mod tokenizer_train;

pub(crate) use arguments::{CheckpointArgs, ConfigArgs, SamplingArgs};
