//! The embedding by rows: the table stays on the host, and only rows that a batch names travel, both ways.
//!
//! That is where the embedding is stepped on the host, by every rank if there are several, and no head is tied to it. Its parameter keeps name and shape on the
//! device, and NaN for numbers. A forward pass gathers its rows from the table, which lets them take the steps that they have
//! missed; their gradient comes back for them alone. The step itself is taken at once: the next forward pass begins with
//! the embedding anyway. Rows that nobody names take theirs in turns, beside that pass.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use backend_offload::{HostMemory, Managed};
use burn::module::ParamId;
use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};
use host_optim::{HostOptimError, HostRows, HostState, Update, Updates, read};
use models::rows::RowsOnDemand;
use runs::config::{Config, PlacementKind};

use super::{HostPart, Stride};

/// Whether the embedding comes to the device by rows.
pub(crate) fn come_by_rows(config: &Config) -> bool {
    let memory = &config.memory;
    // Who does not own the table has no rows to look up, and the owner does not know who reads which.
    memory.optimizer == PlacementKind::Host && !config.model.tie_word_embeddings && !memory.shard
}

/// The embedding on the host. The model reads rows of it, too.
#[derive(Debug, Clone)]
pub(super) struct Table {
    id: ParamId,
    rows: Arc<Mutex<HostRows>>,
}

impl Table {
    /// The table that `state` is of, and how the model reads its rows.
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
            // After a panic at the table, which is told by whoever waits for the steps, nobody is to take its rows for weights.
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
    /// Whether this parameter is the table.
    pub(crate) fn has_rows_of(&self, id: ParamId) -> bool {
        self.table.as_ref().is_some_and(|table| table.is(id))
    }

    /// Reads the gradient of these rows of the table, or a further micro-batch's share of it.
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

    /// Steps the table, if its rows' gradient waits for that.
    pub(super) fn step_rows(&mut self, stride: Stride) -> Result<(), HostOptimError> {
        let (rule, stride) = self.rule_and_stride(2, stride);
        match &self.table {
            Some(table) if table.rows().has_gradient() => {
                let begun = Instant::now();
                let stepped = self.times.waiting(|| table.rows().step(rule, stride));
                self.times.stepped_since(begun);
                stepped
            }
            _ => Ok(()),
        }
    }

    /// Begins `updates`; behind them some rows of the table that nobody named take the steps that they have missed.
    pub(super) fn begin_updates(&self, updates: Vec<Update>) -> Result<Updates, HostOptimError> {
        let (begun, times, table) = (Instant::now(), self.times.clone(), self.table.clone());
        Updates::begin_then(updates, move || {
            times.stepped_since(begun);
            if let Some(table) = table {
                table.rows().catch_up_some();
            }
        })
    }

    /// The table, whose rows are all to catch up before it is saved.
    pub(crate) fn table(&self) -> Option<MutexGuard<'_, HostRows>> {
        self.table.as_ref().map(Table::rows)
    }
}
