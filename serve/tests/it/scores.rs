//! Probabilities of prompts, and answers of a given form, from a real model.

use models::{Decoder, Gpt, Lookup, Stretch};
use serde_json::{Value, json};
use train::answering::Batching;
use web::Limits;

use crate::client::settings;
use crate::served_models::{Cpu, NextId, model, served, tokenizer};

pub(crate) fn own(model: &Gpt<Cpu>, before: &[u32], token: u32) -> (f64, f64) {
    let mut matching = NextId.begin();
    let none = tokenizer().vocab_size();
    let followers: Vec<u32> =
        before.iter().map(|token| matching.follower_after(*token).unwrap_or(none)).collect();
    let stretch = Stretch { tokens: before, followers: Some(&followers) };
    let (_, logits) = Decoder::with_prompts(model, &[stretch], before.len()).unwrap();
    let logits: Vec<f64> = logits.to_data().iter::<f64>().collect();
    let best = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total = best + logits.iter().map(|logit| (logit - best).exp()).sum::<f64>().ln();
    (logits[token as usize] - total, best - total)
}

#[test]
fn probabilities_of_a_prompt_are_the_models_own() {
    let model = model();
    let server = served(settings(Limits::default()), Batching { prompt_piece: 16, ..Batching::default() });
    let prompts =
        [(0..60).map(|at| at * 7 % 200).collect(), (0..50).map(|at| at * 7 % 200).collect::<Vec<u32>>()];
    let body = json!({ "prompt": prompts, "echo": true, "logprobs": 1, "max_tokens": 0, "temperature": 0 });
    let answer = server.post_json("/v1/completions", &body).json();
    for (prompt, choice) in prompts.iter().zip(answer["choices"].as_array().unwrap()) {
        let (scores, tops) = (&choice["logprobs"]["token_logprobs"], &choice["logprobs"]["top_logprobs"]);
        assert_eq!((scores.as_array().unwrap().len(), &scores[0]), (prompt.len(), &Value::Null));
        for at in 1..prompt.len() {
            let (expected, best) = own(&model, &prompt[..at], prompt[at]);
            let score = scores[at].as_f64().unwrap();
            assert!((score - expected).abs() < 1e-3, "token {at}: {score} instead of {expected}");
            let top = tops[at].as_object().unwrap().values().next().unwrap().as_f64().unwrap();
            assert!((top - best).abs() < 1e-3, "token {at}: {top} instead of {best}");
        }
    }
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "a score needs all logits");
}

#[cfg(feature = "structured")]
#[test]
fn a_model_of_random_weights_answers_in_the_form_that_was_asked_for() {
    let server = served(settings(Limits::default()), Batching::default());
    let parameters = json!({
        "type": "object", "properties": { "day": { "enum": ["Monday", "Tuesday"] } }, "required": ["day"],
        "additionalProperties": false,
    });
    let said = json!([{ "role": "user", "content": "When?" }]);
    for seed in 0..4 {
        let format = json!({ "type": "json_schema", "json_schema": { "name": "day", "schema": parameters } });
        let body = json!({ "messages": said, "response_format": format, "seed": seed, "temperature": 1.5 });
        let answer = server.post_json("/v1/chat/completions", &body).json();
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        let day: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(["Monday", "Tuesday"].contains(&day["day"].as_str().unwrap()), "{text}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
}
