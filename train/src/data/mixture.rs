//! The order of a mixture: which source gives each sequence.
//!
//! Sources follow a period of fixed length, as evenly as their weights allow: after any number of sequences each is at
//! most one behind its share. A sequence's place in its source follows from its number: a run resumes exactly
//! (`a_mixture_gives_each_source_its_share_and_resumes_anywhere`).

/// Sequences in a period: weights are rounded to this share.
const PERIOD: usize = 1 << 12;

#[derive(Debug)]
pub(super) struct Mixture {
    slots: Vec<(u32, u32)>,
    counts: Vec<u64>,
}

impl Mixture {
    pub(super) fn new(weights: &[f64]) -> Self {
        let all: f64 = weights.iter().sum();
        let mut counts = vec![0; weights.len()];
        let slots = (1..=PERIOD).map(|taken| {
            let lacks = |source: &usize| weights[*source] / all * taken as f64 - counts[*source] as f64;
            let next = (0..weights.len()).max_by(|one, other| lacks(one).total_cmp(&lacks(other)));
            let source = next.unwrap_or(0);
            counts[source] += 1;
            (source as u32, (counts[source] - 1) as u32)
        });
        let slots = slots.collect();
        Self { slots, counts }
    }

    pub(super) fn place(&self, number: u64) -> (usize, u64) {
        let (source, before) = self.slots[(number % PERIOD as u64) as usize];
        let source = source as usize;
        (source, number / PERIOD as u64 * self.counts[source] + u64::from(before))
    }

    pub(super) fn share(&self, source: usize) -> f64 {
        self.counts[source] as f64 / PERIOD as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixture_gives_each_source_its_share_and_resumes_anywhere() {
        let weights = [5.0, 2.0, 1.0];
        let mixture = Mixture::new(&weights);
        let mut next = [0; 3];
        for number in 0..3 * PERIOD as u64 {
            let (source, before) = mixture.place(number);
            assert_eq!(before, next[source], "sequence {number}");
            next[source] += 1;
            for (taken, weight) in next.iter().zip(weights) {
                let due = weight / 8.0 * (number + 1) as f64;
                assert!((*taken as f64 - due).abs() <= 1.5, "{next:?} after {number}");
            }
        }
        assert_eq!(next.map(|taken| taken * 8 / (3 * PERIOD as u64)), [5, 2, 1]);
        assert_eq!(Mixture::new(&[0.3]).place(9999), (0, 9999));
    }
}
