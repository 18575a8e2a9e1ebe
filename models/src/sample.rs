//! Sampling: from logits to a token on the host.

use thiserror::Error;

use crate::random::Random;

/// Choice of the next token; plain sampling by default.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f64,
    /// Only the `k` most likely tokens.
    pub top_k: Option<usize>,
    /// Only the most likely tokens that together reach this.
    pub top_p: Option<f64>,
    /// Only tokens this likely relative to the most likely.
    pub min_p: Option<f64>,
    /// Divides positive and multiplies negative logits of tokens already in the sequence.
    pub repetition_penalty: Option<f64>,
    /// Seed of the choices.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 1.0, top_k: None, top_p: None, min_p: None, repetition_penalty: None, seed: 0 }
    }
}

/// An invalid sampling setting.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[error("`{key}` = {value} must be {expected}")]
pub struct SamplingError {
    /// The setting.
    pub key: &'static str,
    /// Its value.
    pub value: f64,
    /// The accepted range, in words.
    pub expected: &'static str,
}

impl Sampling {
    /// The most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Checks every setting.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let checks = [
            ("temperature", Some(self.temperature), 0.0, f64::MAX, "a finite number, 0 or above"),
            ("top_k", self.top_k.map(|k| k as f64), 1.0, f64::MAX, "at least 1"),
            ("top_p", self.top_p, f64::MIN_POSITIVE, 1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, 0.0, 1.0, "between 0 and 1"),
            ("repetition_penalty", self.repetition_penalty, f64::MIN_POSITIVE, f64::MAX, "above 0"),
        ];
        for (key, value, low, high, expected) in checks {
            if let Some(value) = value.filter(|value| !(low..=high).contains(value)) {
                return Err(SamplingError { key, value, expected });
            }
        }
        Ok(())
    }

    /// Chooses the token after `history`. Filters apply in field order.
    pub fn choose(&self, logits: &[f32], history: &[u32], random: &mut Random) -> u32 {
        let mut logits: Vec<f64> = logits.iter().map(|logit| f64::from(*logit)).collect();
        self.penalise(&mut logits, history);
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let logit = |token: &u32| logits[*token as usize];
        if self.temperature == 0.0 {
            let better = |a: u32, b: u32| if logit(&b) > logit(&a) { b } else { a };
            return order.into_iter().reduce(better).expect("a vocabulary is not empty");
        }

        let descending = |a: &u32, b: &u32| logit(b).total_cmp(&logit(a)).then(a.cmp(b));
        if let Some(k) = self.top_k.filter(|k| *k < order.len()) {
            order.select_nth_unstable_by(k - 1, descending);
            order.truncate(k);
        }
        order.sort_unstable_by(descending);
        let highest = logit(&order[0]);
        let weight = |token: &u32| ((logit(token) - highest) / self.temperature).exp();
        let mut weights: Vec<f64> = order.iter().map(weight).collect();

        if let Some(top_p) = self.top_p {
            let enough = top_p * weights.iter().sum::<f64>();
            let mut reached = 0.0;
            let kept = weights.iter().position(|weight| {
                reached += weight;
                reached >= enough
            });
            weights.truncate(kept.map_or(weights.len(), |last| last + 1));
        }
        if let Some(min_p) = self.min_p {
            // The most likely token has weight 1.
            weights.truncate(weights.partition_point(|weight| *weight >= min_p).max(1));
        }

        let mut left = random.uniform() * weights.iter().sum::<f64>();
        let chosen = weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        order[chosen.unwrap_or(weights.len() - 1)]
    }

    fn penalise(&self, logits: &mut [f64], history: &[u32]) {
        let Some(penalty) = self.repetition_penalty else {
            return;
        };
        let mut seen = history.to_vec();
        seen.sort_unstable();
        seen.dedup();
        for token in seen {
            let logit = &mut logits[token as usize];
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
    }
}
