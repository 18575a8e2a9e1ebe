//! The device's memory: evicts and loads storages for [`Paging`].

use super::failures::bookkeeping;
use super::storage::SharedStorage;
use super::table::Table;
use crate::error::OffloadError;
use crate::faults::Injector;
use crate::paging::{Device, MoveFailure, Paging, Progress, Transfer};
use crate::registry::Settings;
use pager::{BlockId, Outcome, Token};
use std::sync::Arc;

/// As a float, a large odd number; as an index, out of range.
const PARANOID_FILL: u8 = 0xa5;

pub(super) struct Heap<B: SharedStorage> {
    pub(super) table: Table<B>,
    pub(super) paranoid: bool,
    /// See [`OffloadConfig::dry_run`](crate::OffloadConfig::dry_run).
    pub(super) dry: bool,
    pub(super) injector: Injector,
}

impl<B: SharedStorage> Heap<B> {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            table: Table::new(),
            paranoid: settings.paging.paranoid,
            dry: settings.paging.dry_run,
            injector: settings.injector,
        }
    }

    fn copy_out(&mut self, paging: &mut Paging, block: BlockId) -> Result<(), String> {
        if self.injector.breaks_copy_out() {
            return Err("a copy broken on purpose".to_owned());
        }
        let storage = self.table.reference(block).expect("a storage on the device has a tensor");
        let contents = B::bytes(&storage);
        let mut draft = paging.tiers().draft(contents.len())?;
        if !self.dry {
            draft.copy_from_slice(contents);
        }
        paging.keep(block, draft);
        Ok(())
    }

    fn bring(&mut self, paging: &mut Paging, block: BlockId) -> Result<(), MoveFailure> {
        if self.injector.breaks_copy_in() {
            return Err("an upload broken on purpose".to_owned().into());
        }
        let copy = paging.tiers().verified(block).inspect_err(|error| {
            self.lose(paging, block, &Arc::new(error.clone()));
        })?;
        let contents = copy.bytes();
        let storage = if self.dry { B::untouched(contents.len()) } else { B::allocate(contents) };
        self.table.bring_back(block, &storage);
        Ok(())
    }

    /// All tensors of a lost storage return its error.
    pub(super) fn lose(&mut self, paging: &mut Paging, block: BlockId, error: &Arc<OffloadError>) {
        let Some(lost) = self.table.remove_stored(block) else { return };
        for tensor in lost.tensors {
            self.table.fail(tensor, error.clone());
        }
        if let Err(fault) = paging.remove(block) {
            paging.record_failure(&bookkeeping(fault, "removing a storage"));
        }
    }
}

impl<B: SharedStorage> Device for Heap<B> {
    fn allocate(&mut self, _: BlockId) -> bool {
        !self.injector.refuses_allocation()
    }

    fn start(&mut self, paging: &mut Paging, _: Token, transfer: Transfer) -> Result<Progress, MoveFailure> {
        match transfer {
            Transfer::Evict { block, copies: true } => self.copy_out(paging, block)?,
            Transfer::Evict { .. } => {}
            Transfer::Bring { block } => self.bring(paging, block)?,
        }
        Ok(Progress::Landed)
    }

    fn finish(&mut self, _: &mut Paging, _: Token, outcome: Outcome) {
        let Outcome::Left { block, .. } = outcome else { return };
        let mut storage = self.table.send_away(block);
        if self.paranoid
            && let Some(bytes) = storage.as_mut().and_then(B::bytes_mut)
        {
            bytes.fill(PARANOID_FILL);
        }
    }

    /// No spare slices.
    fn trim(&mut self) {}
}
