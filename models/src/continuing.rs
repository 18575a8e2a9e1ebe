//! [`Continuous`] without its backend, for programs that choose the backend when they run.

use burn::tensor::backend::Backend;

use crate::continuous::{Chosen, Continuation, Continuous};
use crate::generate::GenerateError;

/// A [`Continuous`] of any backend. A caller that holds one as `dyn Continuing` is compiled without the model.
pub trait Continuing {
    /// Takes a sequence in, as [`Continuous::join`] does.
    fn join(&mut self, key: u64, wanted: Continuation) -> Result<usize, GenerateError>;

    /// Lets a sequence go, as [`Continuous::leave`] does.
    fn leave(&mut self, key: u64);

    /// Returns the next token of every sequence whose prompt is read, as [`Continuous::step`] does.
    fn step(&mut self) -> Result<Vec<(u64, Chosen)>, GenerateError>;

    /// Forgets all sequences.
    fn clear(&mut self);
}

impl<B: Backend> Continuing for Continuous<'_, B> {
    fn join(&mut self, key: u64, wanted: Continuation) -> Result<usize, GenerateError> {
        Continuous::join(self, key, wanted)
    }

    fn leave(&mut self, key: u64) {
        Continuous::leave(self, key);
    }

    fn step(&mut self) -> Result<Vec<(u64, Chosen)>, GenerateError> {
        Continuous::step(self)
    }

    fn clear(&mut self) {
        Continuous::clear(self);
    }
}
