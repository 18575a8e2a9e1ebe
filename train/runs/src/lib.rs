//! Runs on disk: configuration, directory, checkpoints, device, weights and vocabulary
//! (`opening_a_trained_model_needs_no_trainer`).

mod bad_input;
pub mod checkpoint;
pub mod config;
pub mod device;
pub mod directory;
mod indexes;
pub mod lora;
pub mod pages;
mod pretrained;
mod text_generator;
pub mod threads;
mod trained;
mod tuning;
pub mod weights;

pub use bad_input::{BadInput, text_of};
pub use indexes::{Indexes, own_entry, own_shards};
pub use pretrained::Pretrained;
pub use text_generator::{Prompt, TEXTS_AT_ONCE, TextGenerator, opening};
pub use trained::{Trained, Wanted};
pub use tuning::tuned;
