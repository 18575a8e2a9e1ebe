//! Additions to logits before a choice: biases, and penalties on the answer's tokens, as in OpenAI's API.

use std::borrow::Cow;

use crate::sample::SamplingError;

/// By default none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Adjustment {
    /// Lowers a token's logit by this for each occurrence in the answer, not the prompt.
    pub frequency_penalty: f64,
    /// Lowers the logits of the answer's tokens by this.
    pub presence_penalty: f64,
    /// Tokens, and numbers added to their logits.
    pub biases: Vec<(u32, f64)>,
}

impl Adjustment {
    /// Checks that all numbers are finite and all tokens known.
    pub fn validate(&self, vocab_size: usize) -> Result<(), SamplingError> {
        let penalties =
            [("frequency_penalty", self.frequency_penalty), ("presence_penalty", self.presence_penalty)];
        let biases = self.biases.iter().map(|(_, bias)| ("logit_bias", *bias));
        if let Some((key, value)) = penalties.into_iter().chain(biases).find(|(_, value)| !value.is_finite())
        {
            return Err(SamplingError { key, value, expected: "a finite number" });
        }
        if let Some((token, _)) = self.biases.iter().find(|(token, _)| *token as usize >= vocab_size) {
            let expected = "the bias of a token in the vocabulary";
            return Err(SamplingError { key: "logit_bias", value: f64::from(*token), expected });
        }
        Ok(())
    }

    /// The logits of the token after `answer`.
    pub fn apply<'l>(&self, logits: &'l [f32], answer: &[u32]) -> Cow<'l, [f32]> {
        let is_penalised = self.frequency_penalty != 0.0 || self.presence_penalty != 0.0;
        if self.biases.is_empty() && !is_penalised {
            return Cow::Borrowed(logits);
        }

        let mut logits = logits.to_vec();
        let mut add = |token: u32, more: f64| {
            let logit = &mut logits[token as usize];
            *logit = (f64::from(*logit) + more) as f32;
        };
        for (token, bias) in &self.biases {
            add(*token, *bias);
        }
        if is_penalised {
            let mut answer = answer.to_vec();
            answer.sort_unstable();
            for equal in answer.chunk_by(|a, b| a == b) {
                add(equal[0], -self.presence_penalty - self.frequency_penalty * equal.len() as f64);
            }
        }
        Cow::Owned(logits)
    }
}
