//! The embedding by rows: the table stays on the host, and only a batch's rows cross the link.
//!
//! It requires an untied embedding, updated on each rank's host. The device's parameter is NaN. Rows first apply the
//! updates they missed, so the bits are those of a whole table
//! (`an_embedding_that_comes_by_rows_ends_with_the_bits_of_one_that_comes_as_a_whole`). Other rows do so in turns.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use backend_offload::{HostMemory, Managed};
use burn::module::ParamId;
use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};
use host_optim::{HostOptimError, HostRows, HostState, Update, Updates, read};
use models::rows::RowsOnDemand;

use super::{HostPart, Stride};

/// The embedding on the host, shared with the model.
#[derive(Debug, Clone)]
pub(super) struct Table {
    id: ParamId,
    rows: Arc<Mutex<HostRows>>,
}

impl Table {
    pub(super) fn new<I: Managed>(
        id: ParamId,
        state: HostState,
        width: usize,
        memory: HostMemory,
        device: &I::Device,
    ) -> Result<(Self, RowsOnDemand), HostOptimError> {
        let table = Self { id, rows: Arc::new(Mutex::new(HostRows::new(state, width)?)) };
        let (rows, device) = (Arc::clone(&table.rows), device.clone());
        let numbers = move |ids: &[u32]| {
            // A panic poisons the lock; the wait for updates reports it. Until then rows are NaN.
            let read =
                rows.lock().ok().map(|mut rows| rows.read(ids).expect("the tokenizer knows its vocabulary"));
            read.unwrap_or_else(|| vec![f32::NAN; width * ids.len()])
        };
        let upload = move |data| {
            let made = memory.first(|| I::float_from_data(data, &device));
            Tensor::<I, 2>::from_primitive(TensorPrimitive::Float(made))
        };
        Ok((table, RowsOnDemand::new::<I>(numbers, upload)))
    }

    pub(super) fn is(&self, id: ParamId) -> bool {
        self.id == id
    }

    pub(super) fn rows(&self) -> MutexGuard<'_, HostRows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostPart {
    pub(crate) fn is_table(&self, id: ParamId) -> bool {
        self.table.as_ref().is_some_and(|table| table.is(id))
    }

    pub(crate) fn arrive_rows<I: Backend, const D: usize>(
        &mut self,
        rows: &[u32],
        gradient: Tensor<I, D>,
    ) -> Result<(), HostOptimError> {
        let Some(table) = &self.table else { return Ok(()) };
        let mut table = table.rows();
        let gradient = read(table.name(), gradient)?;
        let numbers: Vec<f32> = gradient.iter::<f32>().collect();
        table.arrive(rows, &numbers)
    }

    pub(super) fn step_rows(&mut self, stride: Stride) -> Result<(), HostOptimError> {
        match &self.table {
            Some(table) if table.rows().has_gradient() => {
                let (rule, stride) = self.rule_and_stride((table.rows().name(), 2), stride);
                let begun = Instant::now();
                let stepped = self.times.time_wait(|| table.rows().step(rule, stride));
                self.times.stepped_since(begun);
                stepped
            }
            _ => Ok(()),
        }
    }

    /// Starts `updates`, then brings some rows up to date.
    pub(super) fn begin_updates(&self, updates: Vec<Update>) -> Result<Updates, HostOptimError> {
        let (begun, times, table) = (Instant::now(), self.times.clone(), self.table.clone());
        Updates::begin_then(updates, move || {
            times.stepped_since(begun);
            if let Some(table) = table {
                table.rows().catch_up_some();
            }
        })
    }

    /// Before a save, bring all rows up to date.
    pub(crate) fn table(&self) -> Option<MutexGuard<'_, HostRows>> {
        self.table.as_ref().map(Table::rows)
    }
}
