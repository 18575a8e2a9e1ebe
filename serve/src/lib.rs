//! Trained models as engines of the crate `web`.

mod engine;
mod model;
mod newest;
mod toy;
mod vocabulary;

pub use engine::answer;
pub use model::{ServeOptions, serve};
