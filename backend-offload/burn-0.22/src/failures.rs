//! Errors of buffers whose contents were never written.
//!
//! A refused launch never reaches the runtime, and an evicted block loses the runtime's mark with its memory. This file
//! keeps both marks until a write replaces the contents.

use std::collections::HashMap;

use backend_offload::OffloadError;
use cubecl_environment::backtrace::BackTrace;
use cubecl_runtime::memory_management::{ManagedMemoryId, WeakMemoryBinding};
use cubecl_runtime::server::{BufferBinding, ServerError};

#[derive(Default)]
pub(crate) struct Failures {
    of: HashMap<ManagedMemoryId, (WeakMemoryBinding, ServerError)>,
}

impl Failures {
    pub fn mark(&mut self, binding: &BufferBinding, error: &ServerError) {
        self.of.retain(|_, (memory, _)| memory.is_alive());
        self.of.insert(binding.memory.id(), (binding.memory.downgrade(), error.clone()));
    }

    pub fn heal(&mut self, binding: &BufferBinding) {
        if !self.of.is_empty() {
            self.of.remove(&binding.memory.id());
        }
    }

    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    pub fn check<'a>(
        &self,
        bindings: impl IntoIterator<Item = &'a BufferBinding>,
    ) -> Result<(), ServerError> {
        if self.is_empty() {
            return Ok(());
        }
        let failed = |binding: &BufferBinding| self.of.get(&binding.memory.id());
        bindings.into_iter().find_map(failed).map_or(Ok(()), |(_, error)| Err(error.clone()))
    }
}

pub(crate) fn server_error(error: &OffloadError) -> ServerError {
    ServerError::Generic { reason: error.to_string(), backtrace: BackTrace::capture() }
}
