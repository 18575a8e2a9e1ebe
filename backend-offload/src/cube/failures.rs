//! Operations that could not run, and the errors that wait for their reader.
//!
//! A launch returns nothing in CubeCL, so a failure has two ways to its user. Buffers it should have written
//! are marked, and everything computed from them: reading any of these returns the error. And the stream it
//! was launched on reports it at its next synchronisation, as CubeCL's own launch errors do. Errors are kept
//! per stream, since another thread must never be handed them.

use super::logical::number;
use crate::error::OffloadError;
use cubecl_common::backtrace::BackTrace;
use cubecl_core::server::{Binding, LaunchError, ServerError};
use cubecl_runtime::memory_management::ManagedMemoryBinding;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Failures {
    /// Small buffers have no row of their own; the failed ones are remembered by the number of their handle.
    small: HashMap<u64, Arc<OffloadError>>,
    pending: HashMap<u64, Pending>,
    pub(super) count: u64,
}

#[derive(Default)]
struct Pending {
    errors: Vec<ServerError>,
    /// The runtime would have returned these from a read; the others it returns from a synchronisation only.
    due_at_read: bool,
}

impl Failures {
    pub(super) fn mark_small(&mut self, memory: &ManagedMemoryBinding, error: &Arc<OffloadError>) {
        if let Some(number) = number(memory) {
            self.small.insert(number, error.clone());
        }
    }

    pub(super) fn small(&self, binding: &Binding) -> Option<Arc<OffloadError>> {
        if self.small.is_empty() {
            return None;
        }
        self.small.get(&number(&binding.memory)?).cloned()
    }

    /// Somebody wrote the buffer anew.
    pub(super) fn heal_small(&mut self, binding: &Binding) {
        if !self.small.is_empty()
            && let Some(number) = number(&binding.memory)
        {
            self.small.remove(&number);
        }
    }

    /// Keeps an error of ours for the stream's next synchronisation.
    pub(super) fn report(&mut self, stream: u64, error: &OffloadError) {
        self.pending.entry(stream).or_default().errors.push(launch_error(error));
    }

    /// Keeps an error of the runtime's that one of our own copies was handed in the stream's place.
    pub(super) fn keep(&mut self, stream: u64, error: ServerError, due_at_read: bool) {
        let pending = self.pending.entry(stream).or_default();
        pending.errors.push(error);
        pending.due_at_read |= due_at_read;
    }

    pub(super) fn take(&mut self, stream: u64) -> Result<(), ServerError> {
        match self.pending.remove(&stream) {
            None => Ok(()),
            Some(Pending { errors, .. }) => {
                Err(ServerError::ServerUnhealthy { errors, backtrace: BackTrace::default() })
            }
        }
    }

    pub(super) fn take_at_read(&mut self, stream: u64) -> Result<(), ServerError> {
        match self.pending.get(&stream) {
            Some(Pending { due_at_read: true, .. }) => self.take(stream),
            _ => Ok(()),
        }
    }
}

pub(super) fn read_error(error: &OffloadError) -> ServerError {
    ServerError::Generic { reason: error.to_string(), backtrace: BackTrace::default() }
}

fn launch_error(error: &OffloadError) -> ServerError {
    ServerError::Launch(LaunchError::OutOfMemory {
        reason: error.to_string(),
        backtrace: BackTrace::default(),
    })
}
