//! Bytes of blocks' matrices that ranks divide (`memory.shard` = `"weights"`).

use models::ParameterInfo;
use runs::config::{Config, ShardKind};

use super::demand::Passes;
use super::placement::in_tiles;
use super::{NARROW, WIDE};
use crate::parameters::{Form, Home, home};

/// Zeros if each rank holds all weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Gathered {
    /// As they travel: stepped on the device, on the host.
    all: [u64; 2],
    /// The most that two neighbouring segments take.
    pub(super) window: u64,
    /// Gathered by a rank per step.
    pub(super) per_step: u64,
    /// Of `all`, what the rank with most owns.
    own: [u64; 2],
}

impl Gathered {
    pub(super) fn new(config: &Config, ranks: usize, passes: Passes) -> Self {
        if ranks == 1 || config.memory.shard != ShardKind::Weights {
            return Self::default();
        }
        let parameters = config.model.parameters();
        // Owners are balanced over all parameters, of which embeddings are none of these.
        let sizes: Vec<u64> = parameters.iter().map(ParameterInfo::elements).collect();
        let owners = exchange::shards(&sizes, ranks);
        let mut owned = vec![[0, 0]; ranks];
        let mut all = [0, 0];
        let mut blocks = vec![0; config.model.n_layer];
        for (parameter, owner) in
            parameters.iter().zip(owners).filter(|(parameter, _)| parameter.is_projection())
        {
            let (place, bytes) = travelling(config, parameter);
            owned[owner][place] += bytes;
            all[place] += bytes;
            if let Some(block) = parameter.block() {
                blocks[block] += bytes;
            }
        }

        let every = config.train.recompute.unwrap_or(1).max(1);
        let segments: Vec<u64> = blocks.chunks(every).map(|segment| segment.iter().sum()).collect();
        let pairs = segments.windows(2).map(|pair| pair.iter().sum());
        let whole: u64 = segments.iter().sum();
        // The last segment stays for the backward pass, and the first for the next group.
        let ends = [segments.first(), segments.last()].map(|end| end.copied().unwrap_or_default());
        let each = (2 * whole).saturating_sub(ends.iter().sum());
        Self {
            all,
            window: pairs.max().unwrap_or(whole),
            per_step: passes.groups.saturating_mul(each).saturating_add(ends[0]),
            own: owned.into_iter().max_by_key(|own| own[0] + own[1]).unwrap_or_default(),
        }
    }

    /// On other ranks.
    pub(super) fn elsewhere(&self) -> [u64; 2] {
        [self.all[0] - self.own[0], self.all[1] - self.own[1]]
    }

    pub(super) fn all(&self) -> [u64; 2] {
        self.all
    }
}

/// Whether it is stepped on the host, and its bytes.
fn travelling(config: &Config, parameter: &ParameterInfo) -> (usize, u64) {
    let len = parameter.elements();
    match home(config, parameter) {
        Home::Host(Form { code: Some(_), .. }) => (1, in_tiles(len)),
        Home::Host(Form { narrow: true, .. }) => (1, NARROW * len),
        Home::Host(_) => (1, WIDE * len),
        Home::Device | Home::HostRows => (0, WIDE * len),
    }
}
