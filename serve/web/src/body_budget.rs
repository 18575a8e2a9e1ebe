//! The memory that all request bodies share (`bodies_beyond_the_common_limit_are_a_503_until_others_are_read`).

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Debug)]
pub(crate) struct BodyBudget {
    bytes: usize,
    free: Arc<Semaphore>,
}

/// Bytes of one body, until dropped.
#[derive(Debug)]
pub(crate) struct BodyShare {
    free: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
}

impl BodyBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        let bytes = bytes.min(Semaphore::MAX_PERMITS);
        Self { bytes, free: Arc::new(Semaphore::new(bytes)) }
    }

    pub(crate) fn held(&self) -> usize {
        self.bytes - self.free.available_permits()
    }

    /// A declared length reserves nothing.
    pub(crate) fn share(&self) -> BodyShare {
        BodyShare { free: Arc::clone(&self.free), held: None }
    }
}

impl BodyShare {
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let Ok(count) = u32::try_from(bytes) else { return false };
        let Ok(more) = Arc::clone(&self.free).try_acquire_many_owned(count) else { return false };
        match &mut self.held {
            Some(held) => held.merge(more),
            None => self.held = Some(more),
        }
        true
    }
}
