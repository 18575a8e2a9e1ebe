//! Seeded numbers, and permutations of `0..n` without memory.

/// Equal in every version: shards and splits depend on it.
pub(crate) fn mix(seed: u64, number: u64) -> u64 {
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    scatter(scatter(seed.wrapping_add(STEP)).wrapping_add(number.wrapping_mul(STEP)))
}

fn scatter(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}

/// A Feistel network over the next power of four, repeated until below `length`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permutation {
    length: u64,
    half_bits: u32,
    key: u64,
}

const ROUNDS: u64 = 4;

impl Permutation {
    pub(crate) fn new(length: u64, seed: u64, epoch: u64) -> Self {
        let bits = u64::BITS - length.saturating_sub(1).leading_zeros();
        Self { length, half_bits: bits.div_ceil(2).max(1), key: mix(seed, epoch) }
    }

    /// Takes under four rounds on average.
    pub(crate) fn apply(&self, index: u64) -> u64 {
        debug_assert!(index < self.length, "{index} is not below {}", self.length);
        let mut place = self.round_trip(index);
        while place >= self.length {
            place = self.round_trip(place);
        }
        place
    }

    fn round_trip(&self, value: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..ROUNDS {
            let mixed = mix(self.key ^ round, right) & mask;
            (left, right) = (right, left ^ mixed);
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_taken_exactly_once() {
        for length in [1, 2, 3, 5, 16, 17, 1000] {
            let order = Permutation::new(length, 42, 3);
            let mut places: Vec<u64> = (0..length).map(|index| order.apply(index)).collect();
            places.sort_unstable();
            assert_eq!(places, (0..length).collect::<Vec<_>>());
        }
    }

    #[test]
    fn seeds_and_epochs_give_different_orders() {
        let order = |seed, epoch| {
            let order = Permutation::new(1000, seed, epoch);
            (0..1000).map(|index| order.apply(index)).collect::<Vec<_>>()
        };
        assert_ne!(order(1, 0), order(2, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), (0..1000).collect::<Vec<_>>());
        assert_eq!(order(1, 0), order(1, 0));
    }

    #[test]
    fn mix_is_stable_across_versions() {
        assert_eq!([mix(0, 0), mix(1, 0), mix(0, 1)].map(|value| value % 1000), [871, 944, 55]);
    }
}
