//! Host memory lent to a tensor's data, on its way to the device.

use super::pool::{Draft, HostPool};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// By address.
#[derive(Debug, Default)]
pub(super) struct Lendings(Mutex<HashMap<usize, Lending>>);

#[derive(Debug)]
struct Lending {
    draft: Draft,
    parts: usize,
}

impl Lendings {
    fn all(&self) -> MutexGuard<'_, HashMap<usize, Lending>> {
        // No panic leaves the map inconsistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostPool {
    /// Keeps the memory for one borrower. Returns its address.
    pub(crate) fn lend(&self, draft: Draft) -> usize {
        let at = draft.as_ptr().addr();
        self.lendings().all().insert(at, Lending { draft, parts: 1 });
        at
    }

    /// Whether `bytes` are all of a lent draft.
    pub(crate) fn has_lent(&self, bytes: &[u8]) -> bool {
        let all = self.lendings().all();
        all.get(&bytes.as_ptr().addr()).is_some_and(|lending| lending.draft.len() == bytes.len())
    }

    /// Ends the loan. The borrower no longer uses the memory.
    pub(crate) fn take_back(&self, at: usize) -> Option<Draft> {
        self.lendings().all().remove(&at).map(|lending| lending.draft)
    }

    /// Two more borrowers share the memory at `at`.
    pub(crate) fn divide_loan(&self, at: usize) {
        if let Some(lending) = self.lendings().all().get_mut(&at) {
            lending.parts += 2;
        }
    }

    /// One borrower less; the last one ends the loan.
    pub(crate) fn return_part(&self, at: usize) {
        let mut all = self.lendings().all();
        let Some(lending) = all.get_mut(&at) else { return };
        lending.parts -= 1;
        let ended = if lending.parts == 0 { all.remove(&at) } else { None };
        drop(all);
        drop(ended);
    }
}
