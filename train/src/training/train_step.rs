//! The step of Burn's training loop. The trainer's own loop calls [`Exchange::sum`].

use backend_offload::Managed;
use burn::backend::Autodiff;
use burn::optim::GradientsParams;
use burn_train::{TrainOutput, TrainStep};
use runs::config::RanksSection;

use super::exchange::Pass;
use super::{Exchange, Learner};
use crate::data::StepData;
use crate::optimizer::{Owners, Passes};
use crate::progress::Report;
use crate::ranks::Ranks;

impl<I: Managed> TrainStep for Learner<Autodiff<I>> {
    type Input = StepData;
    type Output = Report;

    fn step(&self, data: StepData) -> TrainOutput<Report> {
        let (mut ranks, owners) = (Ranks::alone(), Owners::default());
        let mut exchange = Exchange::choose(&RanksSection::default(), false, &ranks);
        let (passes, window) = (Passes::none(), None);
        let pass = Pass { learner: self, data: &data, host: None, owners: &owners, passes, window };
        let (grads, item) = exchange.sum(pass, &mut ranks).unwrap_or_else(|error| {
            let failure = Some(format!("{error:#}"));
            (GradientsParams::new(), Report { step: data.step, failure, ..Report::default() })
        });
        TrainOutput { grads, item }
    }
}
