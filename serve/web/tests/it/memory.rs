//! Memory for keys and values: answers wait for it; others are refused.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use web::{Echo, KvMemory, Limits};

use super::client::{Answer, TestServer, post_request, settings};

fn server(queue: usize) -> TestServer {
    slow_server(queue, Duration::from_millis(20))
}

fn slow_server(queue: usize, delay: Duration) -> TestServer {
    let kv = KvMemory { budget: 100 << 20, bytes_per_token: 1 << 20, tokens: 100 };
    let echo = Echo { delay, kv: Some(kv), ..Echo::default() };
    let limits = Limits { queue, ..Limits::default() };
    TestServer::start(settings(limits), move |worker| echo.answer(worker))
}

fn begin(server: &TestServer, body: &Value) -> TcpStream {
    let mut connection = server.connect();
    connection.write_all(post_request("/v1/completions", &body.to_string()).as_bytes()).unwrap();
    connection
}

#[test]
fn an_answer_waits_until_its_keys_and_values_have_room() {
    let server = server(8);
    // 60 tokens each; the last is never read.
    let ask = || begin(&server, &json!({ "prompt": "x".repeat(30), "max_tokens": 31 }));
    let mut asked: Vec<TcpStream> = Vec::new();
    for arrivals in 1..=3 {
        asked.push(ask());
        server.wait_for_arrivals(f64::from(arrivals));
    }
    assert_eq!(server.metric("active_sequences").to_bits(), 1_f64.to_bits(), "eight slots, memory for one");
    for mut connection in asked {
        let answer = Answer::read(&mut connection);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["choices"][0]["text"], "x".repeat(30));
    }
}

#[test]
fn a_refusal_behind_full_memory_says_how_long_to_wait() {
    // An answer that ends meanwhile would leave room.
    let server = slow_server(2, Duration::from_millis(60));
    let ask = || begin(&server, &json!({ "prompt": "x".repeat(40), "max_tokens": 41 }));
    assert_eq!(Answer::read(&mut ask()).status, 200);
    let mut asked: Vec<TcpStream> = Vec::new();
    for arrivals in 1..=3 {
        asked.push(ask());
        server.wait_for_arrivals(f64::from(arrivals));
    }
    let refused = Answer::read(&mut ask());
    assert_eq!(refused.status, 429, "{}", refused.text());
    let wait = refused.retry_after().unwrap();
    assert!((2..=60).contains(&wait), "two answers of 2.4 s one after the other: {wait} s");
}

#[test]
fn a_prompt_that_never_fits_is_refused_with_its_size_and_a_long_answer_is_cut() {
    let server = server(8);
    let refused = server.post_json("/v1/completions", &json!({ "prompt": "x".repeat(150) }));
    assert_eq!((refused.status, refused.error("code").as_str()), (400, "context_length_exceeded"));
    let message = refused.error("message");
    for part in ["150 tokens take 150.0 MiB", "has 100.0 MiB", "100 tokens", "--kv-budget"] {
        assert!(message.contains(part), "{message}");
    }
    let body = json!({ "prompt": "x".repeat(90), "max_tokens": 50 });
    let cut = server.post_json("/v1/completions", &body).json();
    assert_eq!(
        (&cut["usage"]["completion_tokens"], &cut["choices"][0]["finish_reason"]),
        (&json!(11), &json!("length"))
    );
    let strict = post_request("/v1/completions", &body.to_string());
    let strict = server.send(strict.replacen("\r\n", "\r\nPrefer: handling=strict\r\n", 1));
    assert!(strict.error("message").contains("139 tokens take 139.0 MiB"), "{}", strict.text());
}
