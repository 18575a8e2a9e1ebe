//! Checksums of host copies, taken when a block leaves and compared before it returns (paranoid mode).

/// A cheap mixing checksum over eight bytes at a time. It guards against our own mistakes, not against an
/// adversary.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(0x9e37_79b9_7f4a_7c15, |sum, word| mixed(sum, *word));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mixed(sum, last)
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
    }
}
