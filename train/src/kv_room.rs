//! Memory for keys and values of concurrent answers: positions from a budget in bytes.

use anyhow::ensure;
use backend_offload::{Budget, Bytes, TierStats};
use models::GptConfig;
use models::ragged::POSITIONS_AT_ONCE;

/// Default share of the memory left by the weights. Activations and logits need the rest.
const SHARE: f64 = 0.5;

/// Room for keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvRoom {
    /// The limit in bytes.
    pub bytes: u64,
    /// Bytes of a token.
    pub bytes_per_token: u64,
    /// Tokens that the limit holds.
    pub positions: usize,
}

impl KvRoom {
    /// The room that `budget` gives, or by default a share of the `left` bytes: at least one context, at most two for
    /// each slot.
    pub fn new(
        config: &GptConfig,
        slots: usize,
        budget: Option<Budget>,
        left: Option<u64>,
    ) -> anyhow::Result<Self> {
        let bytes_per_token = config.kv_bytes_per_token();
        let context = bytes_per_token.saturating_mul(config.n_positions as u64);
        // As many ended answers as running ones.
        let most = context.saturating_mul(2 * slots as u64);
        let share = |share: f64| left.map_or(most, |left| (left as f64 * share) as u64);
        let bytes = match budget {
            None => share(SHARE).clamp(context, most),
            Some(Budget::Bytes(bytes)) => bytes,
            Some(Budget::Share(part)) => share(part),
            Some(Budget::Unlimited) => most,
        };

        let tokens = usize::try_from(bytes / bytes_per_token).unwrap_or(usize::MAX);
        // Less than a context is taken in whole steps of growth.
        let whole = tokens >= config.n_positions;
        let positions = if whole { tokens } else { tokens - tokens % POSITIONS_AT_ONCE };
        ensure!(
            positions > 0,
            "a budget of {} for keys and values holds no answer: {POSITIONS_AT_ONCE} tokens of this model take {}; \
             choose a larger --kv-budget",
            Bytes(bytes),
            Bytes(bytes_per_token * POSITIONS_AT_ONCE.min(config.n_positions) as u64)
        );
        Ok(Self { bytes, bytes_per_token, positions })
    }

    /// Bytes, and answers of which length fit at once.
    pub fn describe(&self, config: &GptConfig, slots: usize) -> String {
        let slots = slots.min(self.positions / POSITIONS_AT_ONCE.min(config.n_positions)).max(1);
        let tokens = (self.positions / slots).min(config.n_positions);
        format!(
            "keys and values take at most {}: {slots} answers of {tokens} tokens at once",
            Bytes(self.bytes)
        )
    }
}

/// Bytes left in the tier where `context` bytes of keys and values fit: device, else host, else where more is left.
/// `None` without a limit on the device.
pub(crate) fn bytes_left(device: TierStats, host: TierStats, context: u64) -> Option<u64> {
    let left = |tier: TierStats| tier.budget.map(|budget| budget.saturating_sub(tier.in_use));
    let on_device = left(device)?;
    if on_device >= context { Some(on_device) } else { Some(on_device.max(left(host).unwrap_or(0))) }
}

#[cfg(test)]
mod tests {
    use models::presets;

    use super::*;

    fn config() -> GptConfig {
        // 2 x 12 layers x 12 heads x 64 features of 4 bytes: 72 KiB a token, 72 MiB a context.
        GptConfig { n_positions: 1024, ..presets::preset("gpt2").unwrap() }
    }

    fn room(budget: Option<Budget>, left: Option<u64>) -> KvRoom {
        KvRoom::new(&config(), 4, budget, left).unwrap()
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_default_is_half_of_what_the_weights_leave_between_one_context_and_two_per_slot() {
        for (left, mib) in [(Some(400), 200), (Some(50), 72), (Some(90_000), 576), (None, 576)] {
            let room = room(None, left.map(|left| left * MIB));
            assert_eq!(
                (room.bytes, room.positions as u64 * 73_728),
                (mib * MIB, room.bytes / 73_728 * 73_728)
            );
        }
    }

    #[test]
    fn a_budget_below_a_context_is_taken_in_steps_and_one_without_an_answer_is_refused() {
        assert_eq!(room(Some(Budget::Bytes(10 * MIB)), None).positions, 128);
        assert_eq!(room(Some(Budget::Share(0.1)), Some(100 * MIB)).positions, 128);
        let refused = KvRoom::new(&config(), 4, Some(Budget::Bytes(MIB)), None).unwrap_err().to_string();
        assert!(refused.contains("1.00 MiB") && refused.contains("4.50 MiB"), "{refused}");
    }

    #[test]
    fn the_room_is_described_in_answers_and_tokens() {
        for (mib, words) in [
            (144, "4 answers of 512 tokens"),
            (576, "4 answers of 1024 tokens"),
            (9, "2 answers of 64 tokens"),
        ] {
            let words = format!("{words} at once");
            let described = room(Some(Budget::Bytes(mib * MIB)), None).describe(&config(), 4);
            assert!(described.ends_with(&words), "{described}");
        }
    }

    #[test]
    fn keys_and_values_go_where_a_context_fits() {
        let tier = |budget, in_use| TierStats { budget, in_use, ..TierStats::default() };
        assert_eq!(bytes_left(tier(Some(100), 40), tier(Some(1000), 0), 50), Some(60));
        assert_eq!(bytes_left(tier(Some(100), 100), tier(Some(1000), 300), 50), Some(700));
        assert_eq!(bytes_left(tier(None, 40), tier(Some(1000), 0), 50), None);
    }
}
