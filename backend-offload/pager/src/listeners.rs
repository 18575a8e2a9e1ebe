//! Listeners to the program's requests: the recorder and the forecast.

use crate::block::{Arena, BlockId};
use crate::blocks::Blocks;
use crate::forecast::{Course, Forecast};
use crate::history::Named;
use crate::limit::Limit;
use crate::policy::Policy;
use crate::recording::Recorder;
use crate::request::Request;

#[derive(Debug)]
pub(crate) struct Listeners {
    recorder: Option<Box<Recorder>>,
    /// `None` for a policy without plans.
    forecast: Option<Forecast>,
}

impl Listeners {
    pub fn new(policy: Policy) -> Self {
        Self { recorder: None, forecast: (policy == Policy::Planned).then(Forecast::new) }
    }

    pub fn forecast(&self) -> Option<&Forecast> {
        self.forecast.as_ref()
    }

    pub fn record(&mut self) {
        self.recorder = Some(Box::new(Recorder::new()));
    }

    pub fn recorder(&mut self) -> Option<&mut Recorder> {
        self.recorder.as_deref_mut()
    }

    pub fn stop_recording(&mut self) {
        self.recorder = None;
    }

    pub fn is_recording(&self) -> bool {
        self.recorder.is_some()
    }

    pub fn step(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.step();
        }
        if let Some(forecast) = &mut self.forecast {
            forecast.mark_step();
        }
    }

    pub fn born(&mut self, id: BlockId, bytes: u64, arena: Arena) {
        if let Some(recorder) = &mut self.recorder {
            recorder.born(id.index, bytes, arena);
        }
        if let Some(forecast) = &mut self.forecast {
            forecast.born(id);
        }
    }

    pub fn freed(&mut self, id: BlockId) {
        if let Some(recorder) = &mut self.recorder {
            recorder.freed(id.index);
        }
        if let Some(forecast) = &mut self.forecast {
            forecast.freed(id);
        }
    }

    pub fn wrote(&mut self, id: BlockId) {
        if let Some(recorder) = &mut self.recorder {
            recorder.wrote(id.index);
        }
        if let Some(forecast) = &mut self.forecast {
            forecast.wrote(id);
        }
    }

    pub fn wrote_on_host(&mut self, id: BlockId) {
        if let Some(recorder) = &mut self.recorder {
            recorder.wrote_in_tier(id.index);
        }
    }

    /// The forecast learns only under a budget: nothing leaves without one.
    pub fn operation(&mut self, blocks: &Blocks, request: &Request) -> Option<Course> {
        let operands = request.operands();
        if let Some(recorder) = &mut self.recorder {
            recorder.operation(operands.iter().map(|id| id.index));
        }
        let named = |id: &BlockId| {
            let block = blocks.get(*id);
            let is_new = block.is_some_and(|block| block.copies.is_nowhere());
            Named { block: *id, bytes: block.map_or(0, |block| block.bytes), is_new }
        };
        let forecast = self.forecast.as_mut().filter(|_| blocks.ledger().budget() != Limit::NONE)?;
        Some(forecast.observe(&operands.iter().map(named)))
    }
}
