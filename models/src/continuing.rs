//! [`Continuous`] as a trait object, for a backend chosen at run time.

use burn::tensor::backend::Backend;

use crate::continuous::{Chosen, Continuation, Continuous};
use crate::generate::GenerateError;

/// Any backend's [`Continuous`]: users of `dyn Continuing` compile without the model.
pub trait Continuing {
    /// See [`Continuous::join`].
    fn join(&mut self, key: u64, wanted: Continuation) -> Result<(), GenerateError>;

    /// See [`Continuous::has_room`].
    fn has_room(&self, prompt: usize, max_tokens: usize) -> bool;

    /// See [`Continuous::held`].
    fn held(&self) -> usize;

    /// See [`Continuous::leave`].
    fn leave(&mut self, key: u64);

    /// See [`Continuous::step`].
    fn step(&mut self) -> Result<Vec<(u64, Chosen)>, GenerateError>;

    /// See [`Continuous::forget`].
    fn forget(&mut self);

    /// See [`Continuous::clear`].
    fn clear(&mut self);
}

impl<B: Backend> Continuing for Continuous<'_, B> {
    fn join(&mut self, key: u64, wanted: Continuation) -> Result<(), GenerateError> {
        Continuous::join(self, key, wanted)
    }

    fn has_room(&self, prompt: usize, max_tokens: usize) -> bool {
        Continuous::has_room(self, prompt, max_tokens)
    }

    fn held(&self) -> usize {
        Continuous::held(self)
    }

    fn leave(&mut self, key: u64) {
        Continuous::leave(self, key);
    }

    fn step(&mut self) -> Result<Vec<(u64, Chosen)>, GenerateError> {
        Continuous::step(self)
    }

    fn forget(&mut self) {
        Continuous::forget(self);
    }

    fn clear(&mut self) {
        Continuous::clear(self);
    }
}
