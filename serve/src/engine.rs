//! Continuous batching as an engine of the server, one answer independent of others
//! (`answers_equal_those_of_generate_in_a_changing_batch`).

use std::sync::Arc;

use models::{Chosen, Continuation, Continuing, GenerateError};
use tokenizer::Tokenizer;
use web::{
    Adjustment, Counters, Engine, EngineError, InferenceWorker, Key, Likelihood, Model, Sampling,
    SequenceRequest, Token,
};

use crate::vocabulary::TokenizerVocabulary;

/// Answers requests with `batch` until the server ends.
pub fn answer(
    worker: InferenceWorker,
    batch: &mut dyn Continuing,
    slots: usize,
    tokenizer: Tokenizer,
    model: Model,
    counters: Counters,
) {
    let mut engine = BatchEngine { slots, batch };
    worker.answer(model, Arc::new(TokenizerVocabulary::new(tokenizer)), counters, &mut engine);
}

struct BatchEngine<'b> {
    slots: usize,
    batch: &'b mut dyn Continuing,
}

impl Engine for BatchEngine<'_> {
    fn slots(&self) -> usize {
        self.slots
    }

    fn join(&mut self, key: Key, request: SequenceRequest) -> Result<usize, EngineError> {
        let SequenceRequest { prompt, sampling, adjustment, alternatives, .. } = request;
        let Sampling { temperature, top_k, top_p, min_p, repetition_penalty, seed, choice } = sampling;
        let sampling = models::Sampling { temperature, top_k, top_p, min_p, repetition_penalty, seed };
        let Adjustment { frequency_penalty, presence_penalty, biases } = adjustment;
        let adjustment = models::Adjustment { frequency_penalty, presence_penalty, biases };
        let wanted = Continuation { prompt, sampling, adjustment, row: choice, alternatives };
        self.batch.join(key.0, wanted).map_err(|error| failed(&error))
    }

    fn leave(&mut self, key: Key) {
        self.batch.leave(key.0);
    }

    fn step(&mut self) -> Result<Vec<(Key, Token)>, EngineError> {
        let chosen = self.batch.step().map_err(|error| failed(&error))?;
        Ok(chosen.into_iter().map(|(key, chosen)| (Key(key), token(chosen))).collect())
    }

    fn forget(&mut self) {
        self.batch.forget();
    }

    fn reset(&mut self) {
        self.batch.clear();
    }
}

fn token(Chosen { token, likelihood }: Chosen) -> Token {
    let likelihood = likelihood.map(|likelihood| {
        let models::Likelihood { chosen, alternatives } = likelihood;
        Likelihood { chosen, alternatives }
    });
    Token { id: token, likelihood }
}

fn failed(error: &GenerateError) -> EngineError {
    EngineError(error.to_string())
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;
    use burn::backend::flex::FlexDevice;
    use models::{Continuous, Gpt, GptConfig, presets};

    use super::*;

    #[test]
    fn a_failed_batch_is_emptied() {
        let small = GptConfig {
            n_layer: 1,
            n_head: 2,
            n_kv_head: None,
            n_embd: 16,
            n_inner: None,
            n_positions: 8,
            vocab_size: 32,
            ..presets::preset("nanochat").unwrap()
        };
        let gpt = Gpt::<Flex>::new(&small, 3, &FlexDevice).unwrap();
        let mut batch = Continuous::new(&gpt, 4, 100);
        let mut engine = BatchEngine { slots: 2, batch: &mut batch };

        let sampling = Sampling {
            temperature: 0.0,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: None,
            seed: 0,
            choice: 0,
        };
        let request = SequenceRequest {
            prompt: vec![1, 2, 3],
            max_tokens: 2,
            sampling,
            adjustment: Adjustment::default(),
            alternatives: None,
        };
        engine.join(Key(1), request.clone()).unwrap();
        assert_eq!(engine.step().unwrap().len(), 1);

        engine.reset();
        assert_eq!(engine.step(), Ok(Vec::new()));
        assert_eq!(engine.join(Key(2), request), Ok(0), "cached prompts are discarded too");
    }
}
