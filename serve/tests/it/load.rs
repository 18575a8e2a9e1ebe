//! Many concurrent requests.

use std::thread;

use backend_offload::stats;
use burn::backend::Flex;
use burn::backend::flex::FlexDevice;
use serde_json::json;
use train::answering::Batching;
use web::Limits;

use crate::client::settings;
use crate::served_models::served;

#[test]
fn sixty_four_streams_are_answered_and_their_caches_freed() {
    let server = served(settings(Limits::default()), Batching::default());
    thread::scope(|clients| {
        let streams: Vec<_> = (0..64)
            .map(|seed| {
                let server = &server;
                clients.spawn(move || {
                    let prompt = format!("stream {seed}");
                    let body = json!({ "prompt": prompt, "max_tokens": 24, "stream": true, "seed": seed });
                    let answer = server.post_json("/v1/completions", &body);
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    let chunks = answer.chunks();
                    assert!(chunks.last().unwrap()["choices"][0]["finish_reason"].is_string());
                    chunks.len()
                })
            })
            .collect();
        assert_eq!(server.get("/health").status, 200);
        // With random weights, an answer may end at its first token.
        let pieces: usize = streams.into_iter().map(|stream| stream.join().unwrap()).sum();
        assert!(pieces > 64 * 4, "{pieces} pieces are not streams");
    });

    server.wait_for("active_sequences", 0.0);
    let (steps, tokens) = (server.metric("steps_total"), server.metric("generated_tokens_total"));
    assert!(tokens > 4.0 * steps, "{tokens} tokens took {steps} steps: they were not answered together");
    assert!(stats::<Flex>(&FlexDevice).evictions > 0, "all of it at once is more than the device holds");
}

#[test]
fn as_many_answers_run_as_there_are_slots() {
    for slots in [1, 2, 4] {
        let server =
            served(settings(Limits::default()), Batching { slots, prompt_piece: 64, ..Batching::default() });
        let body = json!({ "prompt": [7, 8, 9], "n": 4, "max_tokens": 6, "temperature": 2, "seed": 1 });
        let answer = server.post_json("/v1/completions", &body).json();
        assert_eq!(answer["usage"]["completion_tokens"], 24, "none of them ended by itself");
        assert_eq!(server.metric("steps_total").to_bits(), (24.0 / slots as f64).to_bits(), "{slots} slots");
    }
}
