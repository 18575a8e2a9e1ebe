//! The norm of sharded gradients: owners' squares, added in the model's order as in one process.

use std::collections::HashMap;

use backend_offload::Managed;
use burn::backend::Autodiff;
use burn::module::ParamId;
use burn::tensor::{Tensor, TensorData};
use models::Gpt;

use super::read;
use super::sum::Sum;
use crate::ranks::Ranks;

impl<I: Managed> Sum<'_, I> {
    pub(crate) fn sharded_norm(&mut self, gpt: &Gpt<Autodiff<I>>, ranks: &mut Ranks) -> anyhow::Result<f32> {
        let ids: Vec<_> = gpt.learning().into_iter().map(|(id, _)| id).collect();
        let mut squares = self.own_squares(gpt)?;
        let owners: Vec<usize> = ids.iter().map(|id| self.owners.owner(*id).unwrap_or_default()).collect();
        let owned = ids.iter().zip(&owners).filter(|(_, owner)| **owner == ranks.rank());
        let own: Vec<f64> = owned.map(|(id, _)| squares.remove(id).unwrap_or_default()).collect();
        let all = ids.iter().zip(ranks.of_owners(&own, &owners)?);
        let (mut on_device, mut on_host) = (Vec::new(), 0.0);

        for (id, squares) in all {
            if self.host_of(*id).is_some() {
                on_host += squares;
            } else {
                on_device.push(squares as f32);
            }
        }

        let device = gpt.wte.lazy_device();
        let norm = (!on_device.is_empty()).then(|| {
            let of_each = [on_device.len()];
            Tensor::<I, 1>::from_data(TensorData::new(on_device, of_each), &device).sum().sqrt()
        });
        let norm = norm.map(|norm| read(vec![norm])).transpose()?.map(|norm| norm[0]);
        Ok(self.host.as_ref().map_or(norm.unwrap_or_default(), |_| super::sum::together(norm, on_host)))
    }

    fn own_squares(&mut self, gpt: &Gpt<Autodiff<I>>) -> anyhow::Result<HashMap<ParamId, f64>> {
        let (ids, of_each): (Vec<_>, Vec<_>) = self.norms.take_each(gpt).into_iter().unzip();
        let read = if of_each.is_empty() { Vec::new() } else { read(of_each)? };
        let mut squares: HashMap<_, _> = ids.into_iter().zip(read.into_iter().map(f64::from)).collect();
        if let Some(host) = &mut self.host {
            squares.extend(host.squares_of_each()?);
        }
        Ok(squares)
    }
}
