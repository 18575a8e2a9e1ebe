//! Checksums of host copies, taken when a block leaves and compared before it returns (paranoid mode).

/// A cheap mixing checksum over eight bytes at a time. It guards against our own mistakes, not against an
/// adversary.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    Checksum::default().of_last(bytes)
}

/// The checksum of bytes that come piece by piece.
#[derive(Debug)]
pub(super) struct Checksum(u64);

impl Default for Checksum {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Checksum {
    /// Adds a piece that others follow: a multiple of eight bytes.
    pub(super) fn add(&mut self, piece: &[u8]) {
        let (words, rest) = piece.as_chunks::<8>();
        debug_assert!(rest.is_empty(), "only the last piece may end within a word");
        self.0 = words.iter().fold(self.0, |sum, word| mixed(sum, *word));
    }

    /// The checksum after the last piece, of any length.
    pub(super) fn of_last(mut self, piece: &[u8]) -> u64 {
        let whole = piece.len() / 8 * 8;
        self.add(&piece[..whole]);
        let mut last = [0; 8];
        last[..piece.len() - whole].copy_from_slice(&piece[whole..]);
        mixed(self.0, last)
    }
}

fn mixed(sum: u64, word: [u8; 8]) -> u64 {
    (sum ^ u64::from_le_bytes(word)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_bit_and_any_swapped_words_change_the_checksum() {
        let bytes: Vec<u8> = (0..37).collect();
        let sum = checksum(&bytes);
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum(&other), sum, "bit {bit}");
        }
        let mut swapped = bytes.clone();
        swapped[..16].rotate_left(8);
        assert_ne!(checksum(&swapped), sum);
        for cut in [0, 8, 16, 32] {
            let mut running = Checksum::default();
            running.add(&bytes[..cut]);
            assert_eq!(running.of_last(&bytes[cut..]), sum, "in pieces of {cut} bytes and the rest");
        }
    }
}
