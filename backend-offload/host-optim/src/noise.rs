//! Random bits that depend on parameter, step and element, not on the order of draws.

use crate::codes::BLOCK;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Noise {
    bits: u32,
    begin: u32,
}

impl Noise {
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

/// Loading these multiples costs less than multiplying.
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
    use crate::codes::noises;

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

    /// The variance of an element's summed errors shows every correlation between steps.
    #[test]
    fn draws_of_one_element_are_uncorrelated_between_steps() {
        const STEPS: u32 = 512;
        const ELEMENTS: u32 = 4096;
        type Part = (&'static str, fn(u32) -> f64);
        // Each kind of rounding's bits, as a number from -0.5 to 0.5.
        let parts: [Part; 3] = [
            ("bf16", |drawn| f64::from(drawn >> 16) / 65_536.0 - 0.5),
            ("first moment", |drawn| f64::from(noises(drawn)[0]) / 1_048_576.0 - 0.5),
            ("second moment", |drawn| f64::from(noises(drawn)[1]) / 1_048_576.0 - 0.5),
        ];
        let whole = |step, element| Noise::new(7, step).draw(element);
        let in_block = |step, element: u32| {
            Noise::new(7, step).block(element - element % BLOCK as u32).draw(element as usize % BLOCK)
        };

        for draw in [whole as fn(u32, u32) -> u32, in_block] {
            for (name, part) in parts {
                let (mut squares, mut products) = (0.0, [0.0; 4]);
                for element in 0..ELEMENTS {
                    let errors: Vec<f64> = (1..=STEPS).map(|step| part(draw(step, element))).collect();
                    squares += errors.iter().sum::<f64>().powi(2);
                    for (lag, product) in (1..).zip(&mut products) {
                        *product += errors.iter().zip(&errors[lag..]).map(|(a, b)| a * b).sum::<f64>();
                    }
                }
                let draws = f64::from(STEPS * ELEMENTS) / 12.0;
                let variance = squares / draws;
                // Four standard deviations of independent draws.
                assert!(
                    (variance - 1.0).abs() < 0.09,
                    "{name}: the sum's variance is {variance} times a free one's"
                );
                for (lag, product) in (1..).zip(products) {
                    let correlation = product / draws;
                    assert!(correlation.abs() < 0.003, "{name}: {correlation} between steps {lag} apart");
                }
            }
        }
    }

    #[test]
    fn parameters_and_steps_draw_different_bits() {
        let first = |noise: Noise| [noise.draw(0), noise.draw(1), noise.draw(2)];
        assert_ne!(first(Noise::new(1, 1)), first(Noise::new(2, 1)));
        assert_ne!(first(Noise::new(1, 1)), first(Noise::new(1, 2)));
    }
}
