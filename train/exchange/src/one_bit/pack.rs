//! Packs a block of numbers into one scale and a sign bit each.

/// Elements per scale: 4 bytes of scale per 256 bytes of signs.
pub const BLOCK: usize = 2048;

pub(super) fn packed_len(len: usize) -> usize {
    len.div_ceil(BLOCK) * size_of::<f32>() + len / BLOCK * (BLOCK / 8) + (len % BLOCK).div_ceil(8)
}

/// Appends the packed sum of `values` and `owed`, and writes the remainder to `owing`.
pub(super) fn pack(values: &[f32], owed: &[f32], owing: &mut [f32], out: &mut Vec<u8>) {
    let blocks = values.chunks(BLOCK).zip(owed.chunks(BLOCK)).zip(owing.chunks_mut(BLOCK));
    let mut sums = [0.0_f64; BLOCK];
    for ((values, owed), owing) in blocks {
        let sums = &mut sums[..values.len()];
        for ((sum, value), owed) in sums.iter_mut().zip(values).zip(owed) {
            *sum = f64::from(*value) + f64::from(*owed);
        }
        let scale = (sums.iter().map(|sum| sum.abs()).sum::<f64>() / sums.len() as f64) as f32;
        let scale = if scale.is_finite() { scale } else { f32::NAN };
        out.extend_from_slice(&scale.to_le_bytes());
        for eight in sums.chunks(8) {
            let bit = |(at, sum): (usize, &f64)| u8::from(sum.is_sign_negative()) << at;
            out.push(eight.iter().enumerate().map(bit).sum());
        }
        if scale.is_nan() {
            owing.copy_from_slice(owed);
            continue;
        }
        for (owing, sum) in owing.iter_mut().zip(sums) {
            *owing = (*sum - f64::from(scale).copysign(*sum)) as f32;
        }
    }
}

pub(super) fn unpack(packed: &[u8], out: &mut [f32]) {
    let mut rest = packed;
    for block in out.chunks_mut(BLOCK) {
        let (scale, signs) = rest.split_at(size_of::<f32>());
        let (signs, others) = signs.split_at(block.len().div_ceil(8));
        rest = others;
        let mut bits = [0; 4];
        bits.copy_from_slice(scale);
        let scale = u32::from_le_bytes(bits);
        for (eight, signs) in block.chunks_mut(8).zip(signs) {
            for (at, value) in eight.iter_mut().enumerate() {
                *value = f32::from_bits(scale ^ (u32::from(signs >> at & 1) << 31));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(values: &[f32], owed: &[f32], owing: &mut [f32]) -> Vec<f32> {
        let mut packed = Vec::new();
        pack(values, owed, owing, &mut packed);
        assert_eq!(packed.len(), packed_len(values.len()));
        let mut sent = vec![0.0; values.len()];
        unpack(&packed, &mut sent);
        sent
    }

    #[test]
    fn one_bit_sends_the_mean_magnitude_with_each_sign() {
        let mut owing = [0.0; 4];
        let sent = sent(&[1.0, -2.0, 3.0, -6.0], &[0.0; 4], &mut owing);
        assert_eq!(
            sent.iter().map(|sent| sent.to_bits()).collect::<Vec<_>>(),
            [3.0_f32, -3.0, 3.0, -3.0].map(f32::to_bits)
        );
        assert_eq!(owing.map(f32::to_bits), [-2.0_f32, 1.0, 0.0, -3.0].map(f32::to_bits));
    }

    #[test]
    fn sent_and_residual_are_the_gradient_and_the_old_residual_exactly_where_f32_holds_them() {
        // Multiples of 2^-8 with mean magnitude one.
        let values: Vec<f32> = (0..4096).map(|n| ((n * 37 % 512) as f32 - 256.0) / 256.0).collect();
        let owed: Vec<f32> = (0..4096).map(|n| ((n * 11 % 64) as f32 - 32.0) / 256.0).collect();
        let mut owing = vec![0.0; 4096];
        let sent = sent(&values, &owed, &mut owing);
        for n in 0..4096 {
            let given = f64::from(values[n]) + f64::from(owed[n]);
            assert_eq!((f64::from(sent[n]) + f64::from(owing[n])).to_bits(), (given + 0.0).to_bits(), "{n}");
        }
    }

    #[test]
    fn a_block_with_a_number_that_is_not_finite_is_nan_and_leaves_its_residual() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut values = vec![1.0; BLOCK + 3];
            values[5] = bad;
            let mut owing = vec![9.0; BLOCK + 3];
            let sent = sent(&values, &vec![0.25; BLOCK + 3], &mut owing);
            assert!(sent[..BLOCK].iter().all(|value| value.is_nan()));
            assert_eq!(&sent[BLOCK..], [1.25; 3]);
            assert_eq!(&owing[..BLOCK], [0.25; BLOCK]);
        }
    }
}
