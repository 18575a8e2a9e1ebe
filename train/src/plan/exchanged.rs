//! Bytes that ranks exchange per step, and that they hold for it.

use exchange::OneBit;
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
            link_in: self.link_in + crossing,
            link_out: self.link_out + crossing,
            residuals: self.residuals + waiting,
        }
    }

    /// `sums` is the most on a rank. An exact exchange has `window` parameters in flight.
    pub(super) fn new(
        config: &Config,
        (placement, gathered): (&Placement, Gathered),
        ranks: usize,
        sums: u64,
        window: u64,
    ) -> Self {
        if ranks == 1 {
            return Self::default();
        }
        let others = ranks as u64 - 1;
        let share = |all: u64| all.div_ceil(ranks as u64);
        let on_device = placement.on_device * WIDE;
        // Each rank reduces one share of every gradient, then broadcasts it.
        let all = placement.on_device + placement.on_host();
        // One buffer of all parameters. Each residual has two copies until its step ends.
        let one_bit = (OneBit::packed_bytes(share(all) as usize) as u64, 2 * WIDE * (all + share(all)));
        let (part, residuals) = match config.ranks.exchange {
            ExchangeKind::Exact => (share(all * WIDE), (sums + 1) * WIDE * window),
            ExchangeKind::Bf16 => (share(all * NARROW), (sums + 1) * WIDE * window),
            ExchangeKind::OneBit => one_bit,
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
                    link_in,
                    link_out,
                    residuals: 4 * WIDE * all + residuals,
                };
            }
        };

        let sent = 2 * others * part;
        let (link_in, link_out) = (on_device, sums * on_device);
        let gradients = Self { sent, carried: sent, link_in, link_out, residuals };
        if !config.memory.shard.has_owners() {
            return gradients;
        }
        // New host weights cross the link anyway.
        let [kept, kept_on_host] = gathered.all();
        let after_step = on_device + placement.weight_bytes() - kept - kept_on_host;
        let own = share(on_device - kept);
        let to_owners = gradients.sent / 2 + others * share(after_step + gathered.per_step);
        // At most: slices take a detour where more than two ranks own unequal parts.
        let detour = if ranks > 2 { share(to_owners) } else { 0 };
        Self {
            sent: to_owners + detour,
            // At most: as if each bucket had one owner, as large matrices have.
            carried: 2 * to_owners,
            link_in: own + others * own + gathered.per_step,
            link_out: gradients.link_out + own + share(gathered.per_step),
            residuals: residuals + gathered.window,
        }
    }
}
