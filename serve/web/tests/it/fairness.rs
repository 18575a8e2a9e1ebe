//! Clients take turns in the queue; a refusal states the wait.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use web::{Echo, Limits};

use super::client::{Answer, TestServer, post_request, settings};
use super::engines::SteppedEngine;

fn begin(server: &TestServer, body: &Value) -> TcpStream {
    let mut connection = server.connect();
    connection.write_all(post_request("/v1/completions", &body.to_string()).as_bytes()).unwrap();
    connection
}

#[test]
fn a_request_of_many_answers_does_not_starve_another_connection() {
    let (engine, steps) = SteppedEngine::new(1);
    let server = TestServer::start(settings(Limits::default()), move |worker| engine.answer(worker));
    let mut many = begin(&server, &json!({ "prompt": ["a", "b", "c", "d"], "n": 4, "max_tokens": 1 }));
    server.wait_for_arrivals(16.0);
    let mut single = begin(&server, &json!({ "prompt": "single", "max_tokens": 1 }));
    server.wait_for_arrivals(17.0);

    let seen: Vec<String> = (0..17).flat_map(|_| steps.one()).collect();
    assert_eq!(seen[2], "single", "after one answer under way and one whose turn it was: {seen:?}");
    assert_eq!(Answer::read(&mut single).status, 200);
    let choices = Answer::read(&mut many).json()["choices"].clone();
    assert_eq!(choices.as_array().unwrap().len(), 16);
}

#[test]
fn a_refusal_estimates_the_wait_from_the_rate_of_finished_answers() {
    let limits = Limits { queue: 4, ..Limits::default() };
    let echo = Echo { slots: 1, delay: Duration::from_millis(20), ..Echo::default() };
    let server = TestServer::start(settings(limits), move |worker| echo.answer(worker));
    // Each answer takes half a second or more.
    let ask = || begin(&server, &json!({ "prompt": "x".repeat(25), "max_tokens": 25 }));
    let mut first = ask();
    assert_eq!(Answer::read(&mut first).status, 200);

    let mut asked: Vec<TcpStream> = (0..10).map(|_| ask()).collect();
    let mut answers = asked.iter_mut().map(Answer::read);
    let refused = answers.find(|answer| answer.status == 429).expect("the queue is full");
    let wait = refused.retry_after().unwrap();
    assert!((2..=60).contains(&wait), "four answers of half a second each: {wait} s");
}
