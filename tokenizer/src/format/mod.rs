//! Tokenizer files: found, read within limits, and checked before use.

pub(crate) mod component;
pub(crate) mod config;
pub(crate) mod definition;
mod growth;
pub mod limits;
mod load;
pub(crate) mod problem;

pub use problem::{Limit, Problem};
