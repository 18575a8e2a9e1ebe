//! Random bits that depend only on parameter, step and element, not on the order of draws.

use crate::codes::BLOCK;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Noise {
    bits: u32,
    begin: u32,
}

impl Noise {
    /// `time` is the step's number.
    pub(crate) fn new(parameter: u32, time: u32) -> Self {
        Self { bits: mixed(parameter ^ mixed(time.wrapping_mul(STRIDE))), begin: 0 }
    }

    pub(crate) fn starting_at(self, begin: usize) -> Self {
        Self { begin: self.begin.wrapping_add(begin as u32), ..self }
    }

    #[inline(always)]
    pub(crate) fn draw(self, element: u32) -> u32 {
        // The compiler replaces the product with a sum.
        drawn(self.bits ^ self.begin.wrapping_add(element).wrapping_mul(STRIDE))
    }

    #[inline(always)]
    pub(crate) fn block(self, begin: u32) -> BlockNoise {
        BlockNoise(self.draw(begin))
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockNoise(u32);

impl BlockNoise {
    #[inline(always)]
    pub(crate) fn draw(self, element: usize) -> u32 {
        drawn(self.0 ^ STRIDES[element])
    }
}

/// 2³² divided by the golden ratio: its multiples spread far apart.
const STRIDE: u32 = 0x9e37_79b9;

/// Loading a vector of these costs less than multiplying.
static STRIDES: [u32; BLOCK] = {
    let mut strides = [0; BLOCK];
    let mut element = 1;
    while element < BLOCK {
        strides[element] = STRIDE.wrapping_add(strides[element - 1]);
        element += 1;
    }
    strides
};

#[inline(always)]
fn drawn(x: u32) -> u32 {
    let x = (x ^ (x >> 16)).wrapping_mul(0x21f0_aaad);
    x ^ (x >> 15)
}

/// Invertible.
fn mixed(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x21f0_aaad);
    x ^= x >> 15;
    x = x.wrapping_mul(0x735a_2d97);
    x ^ (x >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_is_set_half_of_the_time_and_neighbours_differ() {
        let noise = Noise::new(7, 3);
        are_random(&(0..1 << 16).map(|n| noise.draw(n)).collect::<Vec<_>>());
        let blocks = (0..1 << 16).step_by(BLOCK).map(|begin| noise.block(begin));
        are_random(&blocks.flat_map(|block| (0..BLOCK).map(move |n| block.draw(n))).collect::<Vec<_>>());
    }

    fn are_random(drawn: &[u32]) {
        for bit in 0..32 {
            let set = drawn.iter().filter(|x| *x >> bit & 1 == 1).count();
            assert!((32_000..33_536).contains(&set), "bit {bit} is set {set} times of 65,536");
        }
        let differing: u32 = drawn.windows(2).map(|pair| (pair[0] ^ pair[1]).count_ones()).sum();
        let mean = f64::from(differing) / (drawn.len() - 1) as f64;
        assert!((15.9..16.1).contains(&mean), "{mean}");
    }

    #[test]
    fn parameters_and_steps_draw_different_bits() {
        let first = |noise: Noise| [noise.draw(0), noise.draw(1), noise.draw(2)];
        assert_ne!(first(Noise::new(1, 1)), first(Noise::new(2, 1)));
        assert_ne!(first(Noise::new(1, 1)), first(Noise::new(1, 2)));
    }
}
