//! Trained models behind the server of the crate `web`: words, decoding in a batch, and where the model comes from.

mod engine;
mod model;
mod newest;
mod toy;
mod words;

pub use engine::{Batching, answer};
pub use model::{Asked, serve};
