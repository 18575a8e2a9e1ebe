//! An embedding whose table is elsewhere: the rows that tokens name are fetched for each use.
//!
//! A batch names few rows of a large vocabulary, and each of them often. The rows go to the device once, in the order of
//! their ids, and tokens are numbered by where their rows are among them. The gradient is that of these rows alone, added up
//! in the order in which it would be in a whole table.

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

/// How the rows of an embedding are fetched. The embedding's parameter keeps a name and a shape, and no numbers.
#[derive(Clone)]
pub struct RowsOnDemand {
    numbers: Arc<Numbers>,
    /// [`Upload`] on the backend below the tape: a module's fields follow it there, so the backend is not in this type.
    upload: Arc<dyn Any + Send + Sync>,
}

type Numbers = dyn Fn(&[u32]) -> Vec<f32> + Send + Sync;

struct Upload<I: Backend>(Box<dyn Fn(TensorData) -> Tensor<I, 2> + Send + Sync>);

impl RowsOnDemand {
    /// Rows whose `numbers` are in host memory, one behind the other, and which `upload` puts on `I`, the backend below the
    /// tape. The rows asked for are in order, each once.
    pub fn new<I: Backend>(
        numbers: impl Fn(&[u32]) -> Vec<f32> + Send + Sync + 'static,
        upload: impl Fn(TensorData) -> Tensor<I, 2> + Send + Sync + 'static,
    ) -> Self {
        Self { numbers: Arc::new(numbers), upload: Arc::new(Upload::<I>(Box::new(upload))) }
    }

    /// The numbers of rows, which are in order and each there once. No device takes part.
    pub fn numbers(&self, rows: &[u32]) -> Vec<f32> {
        (self.numbers)(rows)
    }

    /// The rows on their device. Panics on a backend that they were not made for.
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

/// The rows of an embedding that an input names.
#[derive(Debug, Clone)]
pub struct NamedRows<B: Backend> {
    /// Their ids, in order, each once.
    pub ids: Arc<[u32]>,
    /// `[rows, E]`.
    pub table: Tensor<B, 2>,
}

impl<B: Backend> Input<B> {
    /// Sequences of these tokens, in rows of `shape`; with the rows of the embedding that they name where those are fetched
    /// on demand.
    pub fn of_tokens(
        tokens: Vec<i32>,
        shape: [usize; 2],
        on_demand: Option<&RowsOnDemand>,
        device: &B::Device,
    ) -> Self {
        let upload = |ids: Vec<i32>| Tensor::<B, 2, Int>::from_data(TensorData::new(ids, shape), device);
        let Some(on_demand) = on_demand else { return upload(tokens).into() };
        let (ids, places) = named(&tokens);
        let table = on_demand.fetch::<B>(&ids);
        Self { tokens: upload(places), followers: None, rows: Some(NamedRows { ids: ids.into(), table }) }
    }
}

impl<B: AutodiffBackend> NamedRows<B> {
    /// The same rows as a leaf of the tape.
    pub(crate) fn from_inner(rows: NamedRows<B::InnerBackend>) -> Self {
        Self { ids: rows.ids, table: Tensor::from_inner(rows.table).require_grad() }
    }
}

/// The gradients of a walk along the tape: those of the model's parameters, and as that of the `embedding` the gradient of the
/// rows of it that the walk's input named.
pub fn gradients<I: Backend, C: CheckpointStrategy>(
    mut walk: <Autodiff<I, C> as AutodiffBackend>::Gradients,
    model: &crate::Gpt<Autodiff<I, C>>,
    embedding: ParamId,
    rows: Option<&NamedRows<Autodiff<I, C>>>,
) -> GradientsParams {
    let of_rows = rows.and_then(|rows| rows.table.grad_remove(&mut walk));
    let mut gradients = GradientsParams::from_grads(walk, model);
    if let Some(of_rows) = of_rows {
        gradients.register(embedding, of_rows);
    }
    gradients
}

/// The ids that are among `tokens`, in order and each once, and the place of each token's id among them.
fn named(tokens: &[i32]) -> (Vec<u32>, Vec<i32>) {
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
    fn rows_are_named_once_and_in_order_and_every_token_finds_its_own() {
        let tokens = [7, 3, 7, 0, 3, 9];
        let (ids, places) = named(&tokens);
        assert_eq!(ids, [0, 3, 7, 9]);
        let found: Vec<i32> = places.iter().map(|place| ids[*place as usize] as i32).collect();
        assert_eq!(found, tokens);
    }
}
