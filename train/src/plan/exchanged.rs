//! Bytes that ranks exchange per step, and that they hold for it.

use exchange::{OneBit, Share};
use runs::config::{ChangesKind, Config, ExchangeKind};

use super::gathered::Gathered;
use super::placement::Placement;
use super::{NARROW, WIDE};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Exchanged {
    /// By a rank, the mean of all.
    pub(super) sent: u64,
    /// Over the busiest rank's network card, one way.
    pub(super) carried: u64,
    /// The same in an exact step.
    pub(super) exact: u64,
    pub(super) link_in: u64,
    pub(super) link_out: u64,
    pub(super) residuals: u64,
}

impl Exchanged {
    /// With activations and their gradients.
    pub(super) fn beside(self, crossing: u64, waiting: u64) -> Self {
        Self {
            sent: self.sent + crossing,
            carried: self.carried + crossing,
            exact: self.exact + crossing,
            link_in: self.link_in + crossing,
            link_out: self.link_out + crossing,
            residuals: self.residuals + waiting,
        }
    }

    /// An exchange has `window` parameters in flight.
    pub(super) fn new(
        config: &Config,
        (placement, gathered): (&Placement, Gathered),
        ranks: usize,
        window: u64,
    ) -> Self {
        if ranks == 1 {
            return Self::default();
        }
        let others = ranks as u64 - 1;
        let share = |all: u64| all.div_ceil(ranks as u64);
        let rows = Rows::new(config.train.accumulate as u64, ranks);
        let on_device = placement.on_device * WIDE;
        // Each rank reduces one share of every gradient, then broadcasts it.
        let all = placement.on_device + placement.on_host();
        // One buffer of all parameters. Each residual has two copies until its step ends.
        let one_bit = (OneBit::packed_bytes(share(all) as usize) as u64, 2 * WIDE * (all + share(all)));
        let under_way = (rows.most + 1) * WIDE * window;
        let (part, residuals) = match config.ranks.exchange {
            ExchangeKind::Exact => (share(all * WIDE), under_way),
            ExchangeKind::Bf16 => (share(all * NARROW), under_way),
            ExchangeKind::OneBit => (one_bit.0, one_bit.1 + under_way),
            ExchangeKind::Rarely => {
                // On the host: common and own weights, momentum, and a sum under way.
                let (part, residuals) = match config.ranks.changes {
                    ChangesKind::F32 => (share(all * WIDE), 0),
                    ChangesKind::OneBit => one_bit,
                };
                let each = |bytes: u64| bytes.div_ceil(config.ranks.round.steps().unwrap_or(1));
                let sent = each(2 * others * part);
                let (link_in, link_out) = (each(on_device), each(on_device));
                return Self {
                    sent,
                    carried: sent,
                    exact: 0,
                    link_in,
                    link_out,
                    residuals: 4 * WIDE * all + residuals,
                };
            }
        };

        // Other exchanges fold a rank's sums before they send them.
        let exact = rows.carried(share(all * WIDE)) + others * share(all * WIDE);
        let [summed, carried] = match config.ranks.exchange {
            ExchangeKind::Exact => [rows.sent(part), rows.carried(part)],
            _ => [others * part; 2],
        };
        let (link_in, link_out) = (on_device, rows.most * on_device);
        let (sent, carried) = (summed + others * part, carried + others * part);
        let gradients = Self { sent, carried, exact, link_in, link_out, residuals };
        if !config.memory.shard.has_owners() {
            return gradients;
        }
        // New host weights cross the link anyway.
        let [kept, kept_on_host] = gathered.all();
        let after_step = on_device + placement.weight_bytes() - kept - kept_on_host;
        let own = share(on_device - kept);
        let to_owners = summed + others * share(after_step + gathered.per_step);
        // At most: slices take a detour where more than two ranks own unequal parts.
        let detour = if ranks > 2 { share(to_owners) } else { 0 };
        Self {
            sent: to_owners + detour,
            // At most: as if each bucket had one owner, as large matrices have.
            carried: 2 * to_owners,
            exact,
            link_in: own + others * own + gathered.per_step,
            link_out: gradients.link_out + own + share(gathered.per_step),
            residuals: residuals + gathered.window,
        }
    }
}

/// Sums of each rank at a step's end: an exact exchange sends every one.
struct Rows {
    ranks: u64,
    all: u64,
    most: u64,
    least: u64,
}

impl Rows {
    fn new(micro_batches: u64, ranks: usize) -> Self {
        let of_rank = |rank| {
            let share = Share { count: micro_batches, world: ranks, rank };
            let own = share.range();
            share.held(own.end - own.start) as u64
        };
        let rows = || (0..ranks).map(of_rank);
        let (most, least) = (rows().max().unwrap_or(0), rows().min().unwrap_or(0));
        Self { ranks: ranks as u64, all: rows().sum(), most, least }
    }

    /// By a rank, the mean of all, where each gets a `part` of every sum.
    fn sent(&self, part: u64) -> u64 {
        (part * (self.ranks - 1) * self.all).div_ceil(self.ranks)
    }

    /// Out of the rank with most, or into the one with least.
    fn carried(&self, part: u64) -> u64 {
        part * (self.most * (self.ranks - 1)).max(self.all - self.least)
    }
}
