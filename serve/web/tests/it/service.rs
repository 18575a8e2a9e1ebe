//! Models, health, metrics and tokenization.

use std::sync::Arc;
use std::sync::mpsc::channel;

use serde_json::json;
use web::{Counter, Echo, Limits, Model};

use super::client::{TestServer, settings};
use super::engines::{LetterVocabulary, RecordingEngine};

#[test]
fn the_model_is_listed_and_found_by_its_name() {
    let server = TestServer::echo(Echo::default());
    let list = server.get("/v1/models").json();
    assert_eq!(list["data"][0]["id"], "echo");
    assert_eq!(list["data"][0]["max_model_len"], 4096);
    assert_eq!((&list["data"][0]["chat"], &list["data"][0]["examples"]), (&json!(true), &json!([])));
    assert_eq!(server.get("/v1/models/echo").json(), list["data"][0]);
    assert_eq!(server.get("/v1/models/other").status, 404);
}

#[test]
fn the_list_of_models_tells_the_page_of_a_missing_template_and_of_examples() {
    let server = TestServer::echo(Echo { chats: false, examples: vec!["Why?".into()], ..Echo::default() });
    let model = server.get("/v1/models").json()["data"][0].take();
    assert_eq!((&model["chat"], &model["examples"]), (&json!(false), &json!(["Why?"])));
}

#[test]
fn a_loading_server_reports_progress_and_answers_afterwards() {
    let (go, gone) = channel::<()>();
    let server = TestServer::loading(settings(Limits::default()), move |worker| {
        worker.report_progress("step 3 of 500");
        let _waits = gone.recv();
        Echo::default().answer(worker);
    });
    let health = loop {
        let health = server.get("/health");
        if health.text().contains("step 3") {
            break health;
        }
    };
    assert_eq!((health.status, health.json()["status"].as_str()), (503, Some("loading")));
    assert!(health.head.contains("\r\ncache-control: no-store"), "{}", health.head);
    let early = server.post("/v1/completions", "{\"prompt\": \"a\"}");
    assert_eq!((early.status, early.head.contains("\r\nretry-after: 1")), (503, true));
    assert_eq!(server.get("/").status, 200, "the page is there to say what is going on");
    drop(go);
    while server.get("/health").status != 200 {}
    assert_eq!(server.post("/v1/completions", "{\"prompt\": \"a\"}").status, 200);
}

#[test]
fn metrics_count_requests_tokens_and_times() {
    let server = TestServer::echo(Echo::default());
    server.post_json("/v1/completions", &json!({ "prompt": "abc" }));
    server.get("/nowhere/at/all");
    let page = server.get("/metrics");
    assert!(page.head.contains("content-type: text/plain; version=0.0.4"), "{}", page.head);
    let text = page.text();
    for line in [
        "spillway_requests_total{route=\"/v1/completions\",status=\"200\"} 1",
        "spillway_requests_total{route=\"unknown\",status=\"404\"} 1",
        "spillway_prompt_tokens_total 3",
        "spillway_generated_tokens_total 4",
        "spillway_queue_length 0",
        "spillway_first_token_seconds_count 1",
        "spillway_first_token_seconds_bucket{le=\"+Inf\"} 1",
        "# TYPE spillway_request_seconds histogram",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn only_the_inference_thread_reads_the_engines_counters() {
    let (read, reads) = channel();
    let server = TestServer::start(settings(Limits::default()), move |worker| {
        let counters = Box::new(move || {
            read.send(std::thread::current().name().map(str::to_owned)).unwrap();
            vec![Counter { name: "spilled", help: "Spilled bytes.", total: false, value: 7.0 }]
        });
        let model = Model { id: "counted".into(), created: 1, context: 64, vocabulary: 256, kv: None };
        worker.answer(model, Arc::new(LetterVocabulary), counters, &mut RecordingEngine::new().0);
    });
    while !server.get("/metrics").text().contains("spillway_spilled 7") {}
    drop(server);
    assert!(reads.iter().all(|name| name.as_deref() == Some("inference")));
}

#[test]
fn health_names_the_bytes_of_memory_and_their_limits() {
    let counter = |name, total, value| Counter { name, help: "A number.", total, value };
    let counters = vec![
        counter("disk_bytes", false, 7.0),
        counter("device_budget_bytes", false, 9.0),
        counter("bytes_out_total", true, 3.0),
        counter("evictions", false, 3.0),
    ];
    let server = TestServer::echo(Echo { counters, ..Echo::default() });
    let memory = || server.get("/health").json()["memory"].clone();
    while memory() != json!({ "disk_bytes": 7.0, "device_budget_bytes": 9.0 }) {
        assert!(["{}", "null"].contains(&memory().to_string().as_str()), "{}", memory());
    }
}

#[test]
fn tokenize_returns_the_tokens_of_a_text() {
    let server = TestServer::echo(Echo::default());
    let body = server.post_json("/tokenize", &json!({ "content": "ab" })).json();
    assert_eq!(body, json!({ "tokens": [97, 98], "count": 2 }));
    assert_eq!(server.post_json("/tokenize", &json!({ "text": "ab" })).error("param"), "content");
}

#[test]
fn detokenize_returns_the_text_of_tokens() {
    let server = TestServer::echo(Echo::default());
    // Two bytes of a character of three: one mark stands for it.
    let body = server.post_json("/detokenize", &json!({ "tokens": [97, 98, 0xE6, 0x97] })).json();
    assert_eq!(body, json!({ "content": "ab\u{FFFD}" }));
    let beyond = server.post_json("/detokenize", &json!({ "tokens": [97, 4_000_000] }));
    assert_eq!((beyond.status, beyond.error("param").as_str()), (400, "tokens"));
    assert_eq!(server.get("/models").json(), server.get("/v1/models").json());
}
