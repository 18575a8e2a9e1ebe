//! Runs on disk, and how they are opened: configuration, directory and checkpoints, device, weights and vocabulary. The
//! trainer and everything else that opens a trained model stand on this crate; it knows nothing of training, of a
//! command line or of a server.

mod bad_input;
pub mod checkpoint;
pub mod config;
pub mod device;
pub mod directory;
mod indexes;
pub mod pages;
mod pretrained;
mod speaker;
pub mod threads;
mod trained;
pub mod weights;

pub use bad_input::BadInput;
pub use indexes::{Indexes, own_entry, own_shards};
pub use pretrained::Pretrained;
pub use speaker::{Speaker, TEXTS_AT_ONCE, ends, opening};
pub use trained::{Trained, Wanted};
