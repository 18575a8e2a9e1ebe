//! Reading a tensor's numbers from the device.

use anyhow::anyhow;
use burn::tensor::{Tensor, backend::Backend};

/// Fails if `tensor` or the operations that made it fail.
pub(crate) fn numbers<I: Backend, const D: usize>(tensor: Tensor<I, D>) -> anyhow::Result<Vec<f32>> {
    let data = tensor.try_into_data().map_err(|error| anyhow!("{error}"))?;
    Ok(data.iter::<f32>().collect())
}
