//! Continuous batching as the server's engine (`answers_equal_those_of_generate_in_a_changing_batch`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use models::{Chosen, Constraint, Continuation, Continuing, GenerateError};
use tokenizer::Tokenizer;
use web::{
    Adjustment, Counter, Counters, Engine, EngineError, Grammar, InferenceWorker, Key, KvMemory, Likelihood,
    Model, PromptRead, Sampling, SequenceRequest, Token,
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
    let held = Arc::new(AtomicUsize::new(0));
    let mut engine = BatchEngine { slots, batch, held: Arc::clone(&held) };
    let kv = model.kv;
    let counters = Box::new(move || {
        let mut counters = counters();
        if let Some(KvMemory { budget, bytes_per_token, .. }) = kv {
            let bytes = held.load(Relaxed) as u64 * bytes_per_token;
            let count = |name, help, value: u64| Counter { name, help, total: false, value: value as f64 };
            counters.push(count("kv_bytes", "Bytes of keys and values, of ended answers too.", bytes));
            counters.push(count("kv_budget_bytes", "Limit on kv_bytes.", budget));
        }
        counters
    });
    worker.answer(model, Arc::new(TokenizerVocabulary::new(tokenizer)), counters, &mut engine);
}

struct BatchEngine<'b> {
    slots: usize,
    batch: &'b mut dyn Continuing,
    /// Positions.
    held: Arc<AtomicUsize>,
}

impl Engine for BatchEngine<'_> {
    fn slots(&self) -> usize {
        self.slots
    }

    fn has_room(&self, request: &SequenceRequest) -> bool {
        self.batch.has_room(request.prompt.len(), request.max_tokens)
    }

    fn join(&mut self, key: Key, request: SequenceRequest) -> Result<(), EngineError> {
        let SequenceRequest { prompt, sampling, adjustment, alternatives, max_tokens, score_prompt, grammar } =
            request;
        let Sampling { temperature, top_k, top_p, min_p, repetition_penalty, seed, choice } = sampling;
        let sampling = models::Sampling { temperature, top_k, top_p, min_p, repetition_penalty, seed };
        let Adjustment { frequency_penalty, presence_penalty, biases } = adjustment;
        let adjustment = models::Adjustment { frequency_penalty, presence_penalty, biases };
        let constraint = grammar.map(|grammar| Box::new(Masked(grammar)) as Box<dyn Constraint>);
        let wanted = Continuation {
            prompt,
            sampling,
            adjustment,
            row: choice,
            alternatives,
            max_tokens,
            score_prompt,
            constraint,
        };
        self.batch.join(key.0, wanted).map_err(|error| failed(&error))
    }

    fn leave(&mut self, key: Key) {
        self.batch.leave(key.0);
        self.held.store(self.batch.held(), Relaxed);
    }

    fn step(&mut self) -> Result<Vec<(Key, Token)>, EngineError> {
        let chosen = self.batch.step().map_err(|error| failed(&error))?;
        self.held.store(self.batch.held(), Relaxed);
        Ok(chosen.into_iter().map(|(key, chosen)| (Key(key), token(chosen))).collect())
    }

    fn forget(&mut self) {
        self.batch.forget();
    }

    fn reset(&mut self) {
        self.batch.clear();
    }
}

#[derive(Debug)]
struct Masked(Grammar);

impl Constraint for Masked {
    fn mask(&mut self, logits: &mut [f32]) {
        self.0.mask(logits);
    }

    fn accept(&mut self, token: u32) {
        self.0.accept(token);
    }
}

fn token(Chosen { token, likelihood, prompt }: Chosen) -> Token {
    let own = |models::Likelihood { chosen, alternatives }| Likelihood { chosen, alternatives };
    let prompt = prompt.map(|models::PromptRead { cached, likelihoods }| PromptRead {
        cached,
        likelihoods: likelihoods.into_iter().map(own).collect(),
    });
    Token { id: token, likelihood: likelihood.map(own), prompt }
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
        let mut engine = BatchEngine { slots: 2, batch: &mut batch, held: Arc::default() };

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
            score_prompt: false,
            grammar: None,
        };
        engine.join(Key(1), request.clone()).unwrap();
        assert_eq!(engine.step().unwrap().len(), 1);

        engine.reset();
        assert_eq!(engine.step(), Ok(Vec::new()));
        engine.join(Key(2), request).unwrap();
        assert_eq!(engine.step().unwrap().len(), 1, "the other one is gone");
    }
}
