//! Finds tokenizer files, reads them within limits, and checks them.

pub(crate) mod component;
pub(crate) mod config;
pub(crate) mod definition;
mod growth;
pub mod limits;
mod llama_cpp;
mod load;
pub(crate) mod opening;
pub(crate) mod problem;

pub use llama_cpp::{LlamaCpp, NotInLlamaCpp};
pub use problem::{Limit, Problem};
