//! Sequences that join and leave, failures, and the server's shutdown.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use web::{Echo, Limits};

use super::client::{Answer, TIMEOUT, TestServer, post_request, settings};
use super::engines::{PanickingEngine, SteppedEngine, Steps};

fn stepped(slots: usize, limits: Limits) -> (TestServer, Steps) {
    let (engine, steps) = SteppedEngine::new(slots);
    (TestServer::start(settings(limits), move |worker| engine.answer(worker)), steps)
}

/// Dropping the connection cancels it.
fn begin(server: &TestServer, prompt: &str, most: usize, stream: bool) -> TcpStream {
    let body = json!({ "prompt": prompt, "max_tokens": most, "stream": stream });
    let mut connection = server.connect();
    connection.write_all(post_request("/v1/completions", &body.to_string()).as_bytes()).unwrap();
    connection
}

fn text_of(mut connection: TcpStream) -> String {
    let answer = Answer::read(&mut connection);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn requests_join_and_leave_between_two_tokens() {
    let (server, steps) = stepped(4, Limits::default());
    let first = begin(&server, "first", 6, false);
    assert_eq!(steps.one(), ["first"]);
    let second = begin(&server, "second", 6, false);
    server.wait_for_arrivals(2.0);
    let mut seen: Vec<Vec<String>> = (0..6).map(|_| steps.one()).collect();
    // The second may arrive during a step.
    if seen[0] == ["first"] {
        seen.remove(0);
        seen.push(steps.one());
    }
    let both = vec!["first".to_owned(), "second".to_owned()];
    let joined = seen.iter().filter(|step| **step == both).count();
    assert!(joined >= 4 && seen[..joined].iter().all(|step| *step == both), "{seen:?}");
    assert!(seen[joined..].iter().all(|step| *step == ["second"]) && joined < seen.len(), "{seen:?}");
    assert_eq!([text_of(first), text_of(second)], ["xxxxxx", "xxxxxx"]);
}

#[test]
fn a_cancelled_request_frees_its_slot_within_one_token() {
    for stream in [false, true] {
        let (server, steps) = stepped(1, Limits::default());

        let mut leaving = begin(&server, "leaving", 4000, stream);
        server.wait_for("active_sequences", 1.0);
        let waiting = begin(&server, "waiting", 1, false);
        server.wait_for("queue_length", 1.0);
        steps.one();
        if stream {
            // The head comes with the first text.
            leaving.read_exact(&mut [0; 1]).unwrap();
        }
        drop(leaving);

        let (left, mut seen) = (Instant::now(), steps.one());
        while seen == ["leaving"] && left.elapsed() < TIMEOUT {
            thread::sleep(Duration::from_millis(20));
            seen = steps.one();
        }

        assert_eq!(seen, ["waiting"], "its place is free, and the engine has let go of it");
        assert_eq!(text_of(waiting), "x");
        assert_eq!(server.metric("cancelled_total").to_bits(), 1.0_f64.to_bits());
    }
}

#[test]
fn a_full_queue_answers_429_until_it_has_room() {
    let (server, steps) = stepped(1, Limits { queue: 2, ..Limits::default() });
    let active = begin(&server, "active", 1, false);
    server.wait_for("active_sequences", 1.0);
    let waiting = [begin(&server, "a", 1, false), begin(&server, "b", 1, false)];
    server.wait_for("queue_length", 2.0);

    let refused = server.post("/v1/completions", "{\"prompt\": \"c\"}");
    assert_eq!((refused.status, refused.error("code").as_str()), (429, "rate_limit_exceeded"));
    assert!((1..=60).contains(&refused.retry_after().unwrap()), "{}", refused.head);
    let [left, stays] = waiting;
    drop(left);

    let late = loop {
        let late = begin(&server, "late", 1, false);
        // A refusal arrives at once, an answer after the steps below.
        late.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let refused = late.peek(&mut [0; 1]).is_ok();
        late.set_read_timeout(Some(TIMEOUT)).unwrap();
        if !refused {
            break late;
        }
    };

    for connection in [active, stays, late] {
        steps.one();
        assert_eq!(text_of(connection), "x");
    }
}

#[test]
fn more_choices_than_the_queue_holds_are_a_400() {
    let (server, _steps) = stepped(1, Limits { queue: 2, ..Limits::default() });
    assert_eq!(server.post("/v1/completions", "{\"prompt\": \"a\", \"n\": 3}").status, 400);
}

#[test]
fn the_head_and_role_of_a_stream_leave_before_its_first_token() {
    let (server, steps) = stepped(1, Limits::default());
    let mut stream = server.connect();
    let body = json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 1, "stream": true });
    stream.write_all(post_request("/v1/chat/completions", &body.to_string()).as_bytes()).unwrap();
    let mut begun = Vec::new();
    while !String::from_utf8_lossy(&begun).contains("\"role\":\"assistant\"") {
        let mut some = [0; 1024];
        let count = stream.read(&mut some).unwrap();
        assert!(count > 0, "the stream ended");
        begun.extend_from_slice(&some[..count]);
    }
    let head = String::from_utf8_lossy(&begun).to_ascii_lowercase();
    assert!(head.contains("\r\nx-accel-buffering: no"), "{head}");
    steps.one();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("[DONE]"), "{rest}");
}

#[test]
fn a_panic_in_inference_is_a_500_and_the_server_lives() {
    let server = TestServer::echo(Echo { fail_every: Some(2), ..Echo::default() });
    for stream in [false, true] {
        let body = json!({ "prompt": "a secret", "stream": stream });
        assert_eq!(server.post_json("/v1/completions", &body).status, 200);
        let failed = server.post_json("/v1/completions", &body);
        if stream {
            // A stream's head leaves once its sequence has a slot.
            let last = failed.events().pop().unwrap_or_default();
            assert!(failed.status == 200 && last.contains("\"server_error\""), "{last}");
        } else {
            assert_eq!((failed.status, failed.error("type").as_str()), (500, "server_error"));
        }
        assert!(!failed.text().contains("secret"), "{}", failed.text());
    }
    assert_eq!(server.post_json("/v1/completions", &json!({ "prompt": "a" })).status, 200);
    assert_eq!(server.metric("panics_total").to_bits(), 2.0_f64.to_bits());
}

#[test]
fn a_panic_while_decoding_a_token_is_a_500() {
    let (server, steps) = stepped(2, Limits::default());
    let mut shouting = begin(&server, "shout", 5, false);
    steps.one();
    assert_eq!(Answer::read(&mut shouting).status, 500);
    let next = begin(&server, "next", 1, false);
    assert_eq!(steps.one(), ["next"]);
    assert_eq!(text_of(next), "x");
}

#[test]
fn an_engine_error_reaches_no_client_and_the_next_request_is_served() {
    let (server, steps) = stepped(2, Limits::default());
    let refused = server.post("/v1/completions", "{\"prompt\": \"refuse\"}");
    let failed =
        "the model failed while it was answering; the server keeps running, and its log has the reason";
    assert_eq!((refused.status, refused.error("message").as_str()), (500, failed));
    let _other = begin(&server, "other", 99, true);
    steps.one();
    let mut breaks = begin(&server, "break", 9, false);
    server.wait_for_arrivals(2.0);
    while steps.one() != ["other", "break"] {}
    assert_eq!(steps.one(), ["other", "break"], "once more, without caches");
    let broken = Answer::read(&mut breaks);
    assert_eq!((broken.status, broken.error("message").as_str()), (500, failed));
    let next = begin(&server, "next", 1, false);
    server.wait_for_arrivals(2.0);
    while steps.one() != ["other", "next"] {}
    assert_eq!(text_of(next), "x");
}

#[test]
fn a_failed_step_ends_the_newest_answer_only() {
    let (server, steps) = stepped(3, Limits::default());
    let first = begin(&server, "large", 99, false);
    assert_eq!(steps.one(), ["large"], "it fails");
    assert_eq!(steps.one(), ["large"], "without caches there is room");
    let mut second = begin(&server, "second", 9, true);
    server.wait_for_arrivals(2.0);
    while steps.one() != ["large", "second"] {}
    assert_eq!(steps.one(), ["large", "second"]);
    let events = Answer::read(&mut second).events();
    let last = events.last().unwrap();
    assert!(last.contains("\"error\"") && !last.contains("no room on the device"), "{last}");
    assert_eq!(steps.one(), ["large"]);
    drop(steps);
    let text = text_of(first);
    assert!(text.len() >= 2 && text.bytes().all(|letter| letter == b'x'), "it goes on, to its end: {text}");
}

#[test]
fn a_stopping_server_completes_answers_and_refuses_connections() {
    let (server, steps) = stepped(1, Limits::default());
    let streaming = begin(&server, "streaming", 3, true);
    server.wait_for("active_sequences", 1.0);
    let waiting = begin(&server, "waiting", 1, false);
    server.wait_for("queue_length", 1.0);
    steps.one();
    let address = server.address;
    let ending = thread::spawn(move || server.stop());
    while TcpStream::connect(address).is_ok() {
        thread::sleep(Duration::from_millis(2));
    }
    for _ in 0..3 {
        steps.one();
    }
    let mut streaming = streaming;
    assert_eq!(Answer::read(&mut streaming).chunks().len(), 4, "three pieces and the end");
    assert_eq!(text_of(waiting), "x");
    ending.join().unwrap();
}

#[test]
fn answers_longer_than_the_drain_time_are_cut_off() {
    let (server, steps) = stepped(1, Limits { drain_time: Duration::from_millis(100), ..Limits::default() });
    let mut endless = begin(&server, "endless", 50, true);
    steps.one();
    // The head comes with the first text.
    endless.peek(&mut [0; 1]).unwrap();
    let ending = thread::spawn(move || server.stop());
    let broken_off = Answer::read(&mut endless).text();
    assert!(broken_off.contains("\"x\"") && !broken_off.contains("[DONE]"), "{broken_off}");
    drop(steps);
    ending.join().unwrap();
}

#[test]
fn requests_get_a_503_if_the_inference_thread_ends() {
    let (fall, falls) = channel();
    let server = TestServer::start(settings(Limits::default()), |worker| {
        catch_unwind(AssertUnwindSafe(|| PanickingEngine(falls).answer(worker))).unwrap_err();
    });
    let active = begin(&server, "active", 1, false);
    server.wait_for("active_sequences", 1.0);
    let waiting = begin(&server, "waiting", 1, true);
    server.wait_for("queue_length", 1.0);
    fall.send(()).unwrap();
    for mut connection in [active, waiting] {
        assert_eq!(Answer::read(&mut connection).status, 503);
    }
    assert_eq!(server.get("/health").json()["status"], "ended");
    assert_eq!(server.post("/v1/completions", "{\"prompt\": \"late\"}").status, 503);
}
