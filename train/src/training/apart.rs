//! Ranks that step apart: the outer steps that lead all to the same weights, and the moments that each has of its own.

use std::path::Path;

use backend_offload::Managed;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData, backend::AutodiffBackend};
use models::Gpt;

use super::Progress;
use super::snapshot::moment_on_device;
use crate::optimizer::{Moments, Optimizer, numbers};
use crate::ranks::{Pairs, Ranks, Restored, SavedAt};

/// Remembers the weights that all ranks begin with, where they step apart.
pub(super) fn start_outer<B: AutodiffBackend>(gpt: &Gpt<B>, ranks: &mut Ranks) -> anyhow::Result<()> {
    if !ranks.step_apart() {
        return Ok(());
    }
    let mut begun = Begin { ranks, outcome: Ok(()) };
    gpt.visit(&mut begun);
    begun.outcome
}

/// The model after an outer step. After a failure it is between two steps, and of no use.
pub(super) fn outer_step<B: AutodiffBackend>(gpt: Gpt<B>, ranks: &mut Ranks) -> (Gpt<B>, anyhow::Result<()>) {
    let mut meeting = Meet { ranks, outcome: Ok(()) };
    let gpt = gpt.map(&mut meeting);
    let Meet { ranks, outcome } = meeting;
    (gpt, outcome.and_then(|()| ranks.end_outer()))
}

/// The moments that this rank has on its device, in the order of their parameters' names.
pub(super) fn own_moments<I: Managed>(optimizer: &Optimizer<I>) -> Pairs<'_> {
    let names: Vec<&String> = optimizer.moments.keys().collect();
    let lengths: Vec<[usize; 2]> = optimizer.moments.values().map(Moments::lengths).collect();
    let of_pair = lengths.clone();
    let fetch = move |n: usize| {
        let part = |part: usize| match of_pair[n][part] {
            0 => Ok(Vec::new()),
            _ => moment_on_device(optimizer, names[n], part),
        };
        Ok([part(0)?, part(1)?])
    };
    Pairs { lengths, fetch: Box::new(fetch) }
}

/// Takes over what each rank had of its own at a checkpoint, or says why they begin without.
pub(crate) fn take_own<I: Managed>(
    checkpoint: &Path,
    progress: &Progress,
    ranks: &mut Ranks,
    optimizer: &mut Optimizer<I>,
    device: &I::Device,
) -> anyhow::Result<()> {
    let Some(run) = checkpoint.ancestors().nth(2) else { return Ok(()) };
    let at = SavedAt { step: progress.step, losses: &progress.losses };
    match ranks.restore_own(run, at)? {
        Restored::Moments(pairs) => optimizer.replace_moments(pairs, device)?,
        Restored::Dropped(reason) if ranks.leads() && ranks.step_apart() => eprintln!(
            "outer steps begin without momentum, and every rank with the moments of rank 0: {reason}"
        ),
        Restored::Dropped(reason) if ranks.leads() => {
            eprintln!("the exchange begins without the residuals of this checkpoint: {reason}");
        }
        Restored::Dropped(_) | Restored::All => {}
    }
    Ok(())
}

struct Begin<'a> {
    ranks: &'a mut Ranks,
    outcome: anyhow::Result<()>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Begin<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if self.outcome.is_ok() {
            let weights = numbers(param.val().inner());
            self.outcome = weights.and_then(|weights| self.ranks.start_outer(weights));
        }
    }
}

struct Meet<'a> {
    ranks: &'a mut Ranks,
    outcome: anyhow::Result<()>,
}

impl<B: AutodiffBackend> ModuleMapper<B> for Meet<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, weight, mapper) = param.consume();
        if self.outcome.is_err() {
            return Param::from_mapped_value(id, weight, mapper);
        }
        let (shape, device) = (weight.shape(), weight.device());
        let met = numbers(weight.clone().inner()).and_then(|mut weights| {
            self.ranks.step_outer(&mut weights)?;
            Ok(weights)
        });
        let weight = match met {
            Ok(weights) => {
                drop(weight);
                let inner = Tensor::from_data(TensorData::new(weights, shape), &device);
                Tensor::from_inner(inner).require_grad()
            }
            Err(error) => {
                self.outcome = Err(error);
                weight
            }
        };
        Param::from_mapped_value(id, weight, mapper)
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::{Autodiff, Flex, flex::FlexDevice};
    use runs::config::{Config, ExchangeKind, RanksSection};

    use super::*;
    use crate::ranks::tests::on_each;

    type B = Autodiff<Flex>;

    fn model(seed: u64) -> Gpt<B> {
        let text = r#"{"model": {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 4, "vocab_size": 264},
                       "tokenizer": {"kind": "bytes"}}"#;
        let config = Config::from_text(text, "a tiny run", &[]).expect("valid");
        Gpt::new(&config.model, seed, &FlexDevice).expect("valid")
    }

    #[derive(Default)]
    struct All(Vec<f32>);

    impl ModuleVisitor<B> for All {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0.extend(numbers(param.val().inner()).expect("on the CPU"));
        }
    }

    fn all(gpt: &Gpt<B>) -> Vec<f32> {
        let mut all = All::default();
        gpt.visit(&mut all);
        all.0
    }

    #[test]
    fn a_plain_outer_step_leads_all_ranks_to_the_average_to_the_bit() {
        let settings = RanksSection {
            exchange: ExchangeKind::Rarely,
            outer_rate: 1.0,
            outer_momentum: 0.0,
            ..RanksSection::default()
        };
        let ends = on_each(2, |ranks| {
            ranks.exchange_by(&settings);
            start_outer(&model(1), ranks).expect("begun");
            let (gpt, met) = outer_step(model(2 + ranks.rank() as u64), ranks);
            met.expect("no fault");
            all(&gpt)
        });
        let average: Vec<f32> =
            all(&model(2)).iter().zip(all(&model(3))).map(|(a, b)| (a + b) / 2.0).collect();
        assert!(ends.iter().all(|end| *end == average));
    }

    #[test]
    fn an_outer_step_without_a_beginning_is_an_error_and_no_panic() {
        let settings = RanksSection { exchange: ExchangeKind::Rarely, ..RanksSection::default() };
        let met = on_each(2, |ranks| {
            ranks.exchange_by(&settings);
            outer_step(model(1), ranks).1.map_err(|error| format!("{error:#}")).expect_err("never begun")
        });
        assert!(met.iter().all(|error| error.contains("never begun")), "{met:?}");
    }
}
