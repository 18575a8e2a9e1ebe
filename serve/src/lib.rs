//! Trained models behind the server of the crate `web`: vocabulary, batched decoding, and loading of the model.

mod engine;
mod model;
mod newest;
mod toy;
mod words;

pub use engine::answer;
pub use model::{Asked, serve};
