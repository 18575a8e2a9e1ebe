//! Sums that are under way beside the next step's arithmetic.
//!
//! Whatever else is to be told to other ranks waits for them, so all ranks make their calls in one order.

use anyhow::{Context, ensure};
use exchange::Pairwise;

use super::{Beside, Job, Ranks};

/// One sum per parameter.
pub(crate) type Sums = Vec<Vec<f32>>;

/// Sums of at most one step, and the wish that is told before they begin.
#[derive(Default)]
pub(super) struct Late {
    /// So many sums.
    under_way: Option<(Beside, usize)>,
    landed: Option<Sums>,
    pub(super) wishes_to_stop: bool,
    pub(super) stops: bool,
}

impl Ranks {
    /// Sums `own` beside the next step.
    pub(crate) fn start_late(&mut self, own: Vec<Pairwise>) -> anyhow::Result<()> {
        self.land()?;
        let late = self.late.as_ref().context("these ranks do not sum late")?;
        ensure!(late.landed.is_none(), "sums of two steps are under way");
        let (sums, count) = (self.begin_sums()?, own.len());
        for (place, own) in own.into_iter().enumerate() {
            sums.hand_in(Job { own, place, owner: None });
        }
        if let Some(late) = &mut self.late {
            late.under_way = Some((sums, count));
        }
        Ok(())
    }

    /// Waits for sums that are under way, if any are.
    pub(super) fn land(&mut self) -> anyhow::Result<()> {
        let under_way = self.late.as_mut().and_then(|late| late.under_way.take());
        let Some((sums, count)) = under_way else { return Ok(()) };
        let landed = (0..count).map(|_| sums.take()).collect();
        self.end_sums(sums)?;
        if let Some(late) = &mut self.late {
            late.landed = landed;
        }
        Ok(())
    }

    /// The sums of the step before, once; `None` where none was begun.
    pub(crate) fn take_late(&mut self) -> anyhow::Result<Option<Sums>> {
        self.land()?;
        Ok(self.late.as_mut().and_then(|late| late.landed.take()))
    }
}
