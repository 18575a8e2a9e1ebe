//! Checksums of spilled contents: always on disk, on the host in paranoid mode.

/// No sum waits for another.
const LANES: usize = 4;
const LINE: usize = LANES * size_of::<u64>();

/// Fast: detects mistakes, not adversaries.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    Checksum::default().of_last(bytes)
}

#[derive(Debug)]
pub(super) struct Checksum([u64; LANES]);

impl Default for Checksum {
    fn default() -> Self {
        Self([0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 0xd6e8_feb8_6659_fd93])
    }
}

impl Checksum {
    /// A piece before the last: a multiple of 32 bytes.
    pub(super) fn add(&mut self, piece: &[u8]) {
        let (lines, rest) = piece.as_chunks::<LINE>();
        debug_assert!(rest.is_empty(), "only the last piece may end within a line");
        self.0 = lines.iter().fold(self.0, mixed);
    }

    pub(super) fn of_last(mut self, piece: &[u8]) -> u64 {
        let whole = piece.len() / LINE * LINE;
        self.add(&piece[..whole]);
        let mut last = [0; LINE];
        last[..piece.len() - whole].copy_from_slice(&piece[whole..]);
        mixed(self.0, &last).into_iter().fold(0, mix)
    }
}

fn mixed(sums: [u64; LANES], line: &[u8; LINE]) -> [u64; LANES] {
    let (words, _) = line.as_chunks::<8>();
    std::array::from_fn(|lane| mix(sums[lane], u64::from_le_bytes(words[lane])))
}

fn mix(sum: u64, word: u64) -> u64 {
    (sum ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_bit_and_any_swapped_words_change_the_checksum() {
        let bytes: Vec<u8> = (0..101).collect();
        let sum = checksum(&bytes);
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum(&other), sum, "bit {bit}");
        }

        let mut swapped = bytes.clone();
        swapped[..16].rotate_left(8);
        assert_ne!(checksum(&swapped), sum);
        let mut swapped = bytes.clone();
        swapped[..64].rotate_left(32);
        assert_ne!(checksum(&swapped), sum);
        for cut in [0, 32, 64, 96] {
            let mut running = Checksum::default();
            running.add(&bytes[..cut]);
            assert_eq!(running.of_last(&bytes[cut..]), sum, "in pieces of {cut} bytes and the rest");
        }
    }
}
