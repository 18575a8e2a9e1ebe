//! `/v1/completions` over the echo.

use serde_json::{Value, json};
use web::{Adjustment, Echo, Limits, Sampling, SequenceRequest};

use super::client::{TestServer, settings};
use super::engines::RecordingEngine;

const PATH: &str = "/v1/completions";

#[test]
fn a_text_is_continued_by_sixteen_tokens_by_default() {
    let server = TestServer::echo(Echo::default());
    let text = "x".repeat(20);
    let body = server.post_json(PATH, &json!({ "prompt": text })).json();
    assert_eq!(
        (&body["object"], &body["choices"][0]["finish_reason"]),
        (&json!("text_completion"), &json!("length"))
    );
    assert_eq!(body["choices"][0]["text"], "x".repeat(16));
    let body = server.post_json(PATH, &json!({ "prompt": text, "max_tokens": 50 })).json();
    assert_eq!(body["choices"][0]["text"], text);
}

#[test]
fn several_prompts_are_answered_in_order_each_as_often_as_asked() {
    let server = TestServer::echo(Echo::default());
    let body = server.post_json(PATH, &json!({ "prompt": ["ab", "cd"], "n": 2 })).json();
    let texts: Vec<_> = body["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert_eq!(texts, ["ab", "ab", "cd", "cd"]);
    assert_eq!(body["usage"]["prompt_tokens"], 4);
}

#[test]
fn prompts_may_be_tokens_that_the_model_knows() {
    let server = TestServer::echo(Echo::default());
    assert_eq!(server.post_json(PATH, &json!({ "prompt": [97, 98] })).json()["choices"][0]["text"], "ab");
    for prompt in [json!([[97], [98]]), json!([[97, 98]])] {
        assert_eq!(server.post_json(PATH, &json!({ "prompt": prompt })).status, 200);
    }
    for prompt in [json!([260]), json!([-1]), json!([[]]), json!([]), json!(5), json!([1, "a"]), json!(null)]
    {
        let answer = server.post_json(PATH, &json!({ "prompt": prompt }));
        assert_eq!((answer.status, answer.error("param").as_str()), (400, "prompt"), "{prompt}");
    }
}

#[test]
fn a_stream_carries_texts_and_log_probabilities_with_offsets() {
    let server = TestServer::echo(Echo::default());
    let body = json!({ "prompt": "abc", "stream": true, "logprobs": 1 });
    let offsets = |chunks: &[Value]| -> Vec<u64> {
        let choices = chunks.iter().map(|chunk| &chunk["choices"][0]);
        choices.filter_map(|choice| choice["logprobs"]["text_offset"][0].as_u64()).collect()
    };
    let chunks = server.post_json(PATH, &body).chunks();
    let texts: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(texts, "abc");
    assert_eq!(offsets(&chunks), [0, 1, 2]);
    let wide = json!({ "prompt": "äb", "stream": true, "logprobs": 1 });
    let wide = server.post_json(PATH, &wide).chunks();
    assert_eq!(offsets(&wide), [0, 0, 1], "characters, and the first has two bytes");
    assert!(chunks[0]["choices"][0]["logprobs"]["top_logprobs"][0]["a"].is_f64());
}

#[test]
fn chat_parameters_are_refused() {
    let server = TestServer::echo(Echo::default());
    for name in ["messages", "top_logprobs", "max_completion_tokens", "tools"] {
        let answer = server.post_json(PATH, &json!({ "prompt": "a", name: 1 }));
        assert_eq!((answer.status, answer.error("param").as_str()), (400, name));
    }
}

#[test]
fn parameters_reach_the_engine_and_cached_tokens_are_reported() {
    let (engine, requests) = RecordingEngine::new();
    let server = TestServer::start(settings(Limits::default()), move |worker| engine.answer(worker));
    let body = server
        .post_json(
            PATH,
            &json!({
                "prompt": "abcd", "max_tokens": 2, "n": 2, "temperature": 0.5, "top_p": 0.75, "top_k": 7, "min_p": 0.25,
                "repetition_penalty": 1.5, "seed": 11, "logprobs": 3, "frequency_penalty": -2, "presence_penalty": 0.5,
                "logit_bias": { "97": -100, "5": 1.5 },
            }),
        )
        .json();

    assert_eq!(
        body["usage"]["prompt_tokens_details"]["cached_tokens"], 3,
        "of 4, although two choices read it"
    );
    for choice in 0..2 {
        let sampling = Sampling {
            temperature: 0.5,
            top_k: Some(7),
            top_p: Some(0.75),
            min_p: Some(0.25),
            repetition_penalty: Some(1.5),
            seed: 11,
            choice,
        };
        let adjustment = Adjustment {
            frequency_penalty: -2.0,
            presence_penalty: 0.5,
            biases: vec![(5, 1.5), (97, -100.0)],
        };
        let prompt = "abcd".bytes().map(u32::from).collect();
        let heard = requests.recv().unwrap();
        assert_eq!(
            (heard.prompt, heard.max_tokens, heard.sampling, heard.adjustment, heard.alternatives),
            (prompt, 2, sampling, adjustment, Some(3))
        );
    }

    let seeds = [(), ()].map(|()| {
        // 0 is no limit, as in llama.cpp.
        server.post_json(PATH, &json!({ "prompt": "a", "top_k": 0 }));
        let SequenceRequest { sampling, adjustment, alternatives, .. } = requests.recv().unwrap();
        assert_eq!(adjustment, Adjustment::default());
        let Sampling { temperature, top_k, top_p, min_p, repetition_penalty, seed, choice } = sampling;
        assert_eq!((temperature.to_bits(), choice, alternatives), (1.0_f64.to_bits(), 0, None));
        assert_eq!((top_k, top_p, min_p, repetition_penalty), (None, None, None, None));
        seed
    });
    assert_ne!(seeds[0], seeds[1], "without a seed answers differ");
}

#[test]
fn an_echo_begins_with_the_prompt_and_its_probabilities() {
    let server = TestServer::echo(Echo::default());
    let ask = |max_tokens: u32, stream: bool| {
        let body = json!({ "prompt": ["häh", "no"], "echo": true, "logprobs": 1, "max_tokens": max_tokens, "stream": stream });
        server.post_json(PATH, &body)
    };
    let scored = ask(0, false).json();
    let choice = &scored["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("häh"), &json!("length")));
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 4);
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 2]));
    assert_eq!((&logprobs["token_logprobs"][0], &logprobs["top_logprobs"][0]), (&json!(null), &json!(null)));
    assert!((1..4).all(|at| logprobs["token_logprobs"][at].as_f64().unwrap() < 0.0));
    assert_eq!(logprobs["top_logprobs"][1].as_object().unwrap().len(), 1);
    assert_eq!(
        (&scored["usage"]["completion_tokens"], &scored["usage"]["prompt_tokens"]),
        (&json!(0), &json!(6))
    );

    let longer = ask(1, false).json()["choices"][1].clone();
    assert_eq!((&longer["text"], longer["logprobs"]["tokens"].as_array().unwrap().len()), (&json!("non"), 3));
    assert_eq!(longer["logprobs"]["text_offset"], json!([0, 1, 2]));
    let chunks = ask(1, true).chunks();
    let texts = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
    let second: String =
        texts.filter(|choice| choice["index"] == 1).filter_map(|choice| choice["text"].as_str()).collect();
    assert_eq!(second, "non");
    let plain = server.post_json(PATH, &json!({ "prompt": "ab", "echo": true, "max_tokens": 2 })).json();
    assert_eq!(
        (&plain["choices"][0]["text"], &plain["choices"][0]["logprobs"]),
        (&json!("abab"), &json!(null))
    );
    let nothing = server.post_json(PATH, &json!({ "prompt": "ab", "max_tokens": 0 }));
    assert_eq!((nothing.status, nothing.error("param").as_str()), (400, "max_tokens"));
}

#[test]
fn a_continuation_keeps_its_first_blank_and_an_answer_of_its_own_has_none() {
    let (engine, _requests) = RecordingEngine::new();
    let server = TestServer::start(settings(Limits::default()), move |worker| engine.answer(worker));
    let text = |more: Value| {
        let mut body = json!({ "prompt": "ab_", "max_tokens": 2 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post_json(PATH, &body).json()["choices"][0]["text"].clone()
    };
    assert_eq!((text(json!({})), text(json!({ "echo": true }))), (json!("  "), json!("ab   ")));

    let body = json!({ "messages": [{ "role": "user", "content": "ab_" }], "max_tokens": 2 });
    let answer = server.post_json("/v1/chat/completions", &body).json();
    assert_eq!(answer["choices"][0]["message"]["content"], " ");
}

#[test]
fn each_prompt_of_a_request_without_a_seed_gets_its_own() {
    let (engine, requests) = RecordingEngine::new();
    let server = TestServer::start(settings(Limits::default()), move |worker| engine.answer(worker));
    let seeds = |seed: Value| {
        let body = json!({ "prompt": ["a", "a"], "n": 2, "seed": seed, "max_tokens": 1 });
        assert_eq!(server.post_json(PATH, &body).status, 200);
        let mut heard: Vec<_> = (0..4).map(|_| requests.recv().unwrap().sampling).collect();
        heard.sort_by_key(|sampling| sampling.choice);
        heard.iter().map(|sampling| sampling.seed).collect::<Vec<_>>()
    };
    for absent in [json!(null), json!(-1)] {
        let [a, b, c, d] = seeds(absent)[..] else { panic!("four answers") };
        assert_ne!(a, b);
        assert!([a, b] == [c, d], "choices of one prompt share its seed");
    }
    assert_eq!(seeds(json!(5)), [5; 4]);
}

#[test]
fn a_top_p_of_zero_leaves_the_likeliest_token_alone() {
    let (engine, requests) = RecordingEngine::new();
    let server = TestServer::start(settings(Limits::default()), move |worker| engine.answer(worker));
    let ask = |top_p: f64| server.post_json(PATH, &json!({ "prompt": "a", "top_p": top_p }));
    assert_eq!(ask(0.0).status, 200);
    assert_eq!(requests.recv().unwrap().sampling.top_p, Some(f64::MIN_POSITIVE));
    assert_eq!(ask(1.5).error("message"), "`top_p` must be a number from 0 to 1");
    let response =
        server.post_json("/v1/responses", &json!({ "input": "a", "top_p": 0, "max_output_tokens": 1 }));
    assert_eq!(response.json()["top_p"], json!(0.0), "as it was sent");
}
