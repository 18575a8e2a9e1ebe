//! Sequences of tokens on the host, without tensors or devices.

mod corpus;
mod index;
mod loader;
mod mixture;
mod quiz;
mod sequences;
mod vocabulary;
mod windows;

pub(crate) use corpus::{Data, prepare, report_bad_records};
pub(crate) use index::{build_index, cores};
pub(crate) use loader::StepLoader;
pub(crate) use quiz::{Question, questions};
pub(crate) use vocabulary::{learn_bpe, learn_characters};
pub(crate) use windows::{MicroBatch, StepData, TrainingWindows, ValidationWindows, counted};
