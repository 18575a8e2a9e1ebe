//! An embedding whose table is off the device.
//!
//! A batch's rows go to the device once, ordered by id, and tokens become indices into them. Only they have a gradient,
//! summed in a whole table's order.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::module::ParamId;
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};

use crate::input::Input;

/// The embedding's parameter is a name and a shape.
#[derive(Clone)]
pub struct RowsOnDemand {
    numbers: Arc<Numbers>,
    /// [`Upload`] below the tape, untyped: a module's fields change backends.
    upload: Arc<dyn Any + Send + Sync>,
}

type Numbers = dyn Fn(&[u32]) -> Vec<f32> + Send + Sync;

struct Upload<I: Backend>(Box<dyn Fn(TensorData) -> Tensor<I, 2> + Send + Sync>);

impl RowsOnDemand {
    /// Rows from `numbers` in host memory, in order, each once. `upload` puts them on `I`, the backend below the tape.
    pub fn new<I: Backend>(
        numbers: impl Fn(&[u32]) -> Vec<f32> + Send + Sync + 'static,
        upload: impl Fn(TensorData) -> Tensor<I, 2> + Send + Sync + 'static,
    ) -> Self {
        Self { numbers: Arc::new(numbers), upload: Arc::new(Upload::<I>(Box::new(upload))) }
    }

    /// The numbers of `rows`, distinct and ordered. Uses no device.
    pub fn numbers(&self, rows: &[u32]) -> Vec<f32> {
        (self.numbers)(rows)
    }

    /// Panics on any backend but [`RowsOnDemand::new`]'s.
    fn fetch<I: Backend>(&self, rows: &[u32]) -> Tensor<I, 2> {
        let upload = self.upload.downcast_ref::<Upload<I>>();
        let upload = upload.expect("rows are fetched below the tape");
        let numbers = self.numbers(rows);
        let width = numbers.len() / rows.len();
        (upload.0)(TensorData::new(numbers, [rows.len(), width]))
    }
}

impl fmt::Debug for RowsOnDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RowsOnDemand")
    }
}

/// An input's embedding rows.
#[derive(Debug, Clone)]
pub struct NamedRows<B: Backend> {
    /// Row ids, in order, each once.
    pub ids: Arc<[u32]>,
    /// `[rows, E]`.
    pub table: Tensor<B, 2>,
}

impl<B: Backend> Input<B> {
    /// `tokens` in rows of `shape`, with rows fetched on demand.
    pub fn of_tokens(
        tokens: Vec<i32>,
        shape: [usize; 2],
        on_demand: Option<&RowsOnDemand>,
        device: &B::Device,
    ) -> Self {
        let upload = |ids: Vec<i32>| Tensor::<B, 2, Int>::from_data(TensorData::new(ids, shape), device);
        let Some(on_demand) = on_demand else { return upload(tokens).into() };
        let (ids, places) = distinct_ids(&tokens);
        let table = on_demand.fetch::<B>(&ids);
        Self { tokens: upload(places), followers: None, rows: Some(NamedRows { ids: ids.into(), table }) }
    }
}

impl<B: AutodiffBackend> NamedRows<B> {
    pub(crate) fn from_inner(rows: NamedRows<B::InnerBackend>) -> Self {
        Self { ids: rows.ids, table: Tensor::from_inner(rows.table).require_grad() }
    }
}

/// Gradients after a backward pass; that of `rows` replaces that of `embedding`.
pub fn gradients<I: Backend, C: CheckpointStrategy>(
    mut walk: <Autodiff<I, C> as AutodiffBackend>::Gradients,
    model: &crate::Gpt<Autodiff<I, C>>,
    embedding: ParamId,
    rows: Option<&NamedRows<Autodiff<I, C>>>,
) -> GradientsParams {
    let row_gradient = rows.and_then(|rows| rows.table.grad_remove(&mut walk));
    let mut gradients = GradientsParams::from_grads(walk, model);
    if let Some(row_gradient) = row_gradient {
        gradients.register(embedding, row_gradient);
    }
    gradients
}

fn distinct_ids(tokens: &[i32]) -> (Vec<u32>, Vec<i32>) {
    let mut ids = tokens.to_vec();
    ids.sort_unstable();
    ids.dedup();
    let place = |token: &i32| ids.binary_search(token).expect("it is one of them") as i32;
    let places = tokens.iter().map(place).collect();
    (ids.into_iter().map(|id| u32::try_from(id).expect("an id is not negative")).collect(), places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_distinct_and_sorted_and_every_token_finds_its_own() {
        let tokens = [7, 3, 7, 0, 3, 9];
        let (ids, places) = distinct_ids(&tokens);
        assert_eq!(ids, [0, 3, 7, 9]);
        let found: Vec<i32> = places.iter().map(|place| ids[*place as usize] as i32).collect();
        assert_eq!(found, tokens);
    }
}
