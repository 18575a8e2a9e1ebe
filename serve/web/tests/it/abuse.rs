//! Slow, greedy or malformed clients are bounded; others are still answered.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use web::{Echo, Limits};

use super::client::{Answer, TIMEOUT, TestServer, post_request, settings};
use super::engines::SteppedEngine;

/// Tests shorten their limit alone, and repeat late requests.
const SHORT: Duration = Duration::from_millis(200);

fn short_heads() -> Limits {
    Limits { head_time: SHORT, ..Limits::default() }
}

fn echo(limits: Limits) -> TestServer {
    TestServer::start(settings(limits), |worker| Echo::default().answer(worker))
}

fn until_closed(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _reset = stream.read_to_end(&mut bytes);
    bytes
}

#[test]
fn connections_without_a_request_are_closed() {
    let server = echo(Limits { idle_time: SHORT, ..Limits::default() });
    let idle: Vec<TcpStream> = (0..20).map(|_| server.connect()).collect();
    still_answers(&server);
    for stream in idle {
        assert!(until_closed(stream).is_empty());
    }
}

#[test]
fn an_unfinished_head_times_out() {
    let server = echo(short_heads());
    let mut stream = server.connect();
    stream.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ").unwrap();
    until_closed(stream);
    still_answers(&server);
}

#[test]
fn an_idle_kept_connection_is_closed() {
    let server = echo(Limits { idle_time: SHORT, ..Limits::default() });
    let closed_after_an_answer = (0..100).any(|_| {
        let mut stream = server.connect();
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        until_closed(stream).starts_with(b"HTTP/1.1 200")
    });
    assert!(closed_after_an_answer);
}

#[test]
fn an_idle_connection_outlives_the_time_for_a_head() {
    let server = echo(short_heads());
    let mut stream = server.connect();
    let head = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for _ in 0..2 {
        std::thread::sleep(2 * SHORT);
        stream.write_all(head).unwrap();
        assert_eq!(Answer::read_measured(&mut stream).status, 200);
    }
}

#[test]
fn an_unfinished_body_is_a_408() {
    let server = echo(Limits { body_time: SHORT, ..Limits::default() });
    let mut stream = server.connect();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Connection: close\r\nContent-Length: 100\r\n\r\n{\"prompt\"";
    stream.write_all(head.as_bytes()).unwrap();
    let answer = Answer::read(&mut stream);
    assert_eq!(answer.status, 408);
}

#[test]
fn a_reader_that_takes_nothing_is_disconnected_and_frees_its_place() {
    let limits = Limits { tokens: 1 << 20, body_bytes: 8 << 20, write_time: SHORT, ..Limits::default() };
    let server = TestServer::start(settings(limits), |worker| {
        // Far more than sockets buffer.
        Echo { slots: 1, context: 1 << 20, script: vec!["x".repeat(200_000)], ..Echo::default() }
            .answer(worker);
    });
    let mut stream = server.connect();
    let body = "{\"prompt\": \"a\", \"max_tokens\": 200000, \"stream\": true}";
    stream.write_all(post_request("/v1/completions", body).as_bytes()).unwrap();
    let mut first = [0; 1];
    stream.read_exact(&mut first).unwrap();
    server.wait_for("connections", 1.0);
    server.wait_for("active_sequences", 0.0);
    drop(stream);
}

#[test]
fn requests_beyond_a_limit_are_refused_before_they_are_read() {
    let limits = Limits { body_bytes: 1000, head_bytes: 8192, head_lines: 20, ..Limits::default() };
    let server = echo(limits);
    let long = format!("{{\"prompt\": \"{}\"}}", "a".repeat(1000));
    assert_eq!(server.post("/v1/completions", &long).status, 413);
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n";
    let declared = format!("{head}Content-Length: 99999999999\r\n\r\n");
    assert_eq!(server.send(declared).status, 413);
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{long}\r\n0\r\n\r\n", long.len());
    assert_eq!(server.send(chunked).status, 413);
    let lines = "X-Line: a\r\n".repeat(30);
    assert_eq!(server.send(format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n")).status, 431);
    let line = "a".repeat(20_000);
    assert_eq!(
        server.send(format!("GET /health HTTP/1.1\r\nHost: localhost\r\nX: {line}\r\n\r\n")).status,
        431
    );
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn bodies_beyond_the_common_limit_are_a_503_until_others_are_read() {
    let limits = Limits { body_bytes: 1 << 20, body_time: 2 * TIMEOUT, ..Limits::default() };
    let body = format!("{{\"prompt\": \"{}\"}}", "a".repeat(limits.body_bytes - 20));
    let held = body.len() - 1;
    let server = echo(Limits { all_body_bytes: 4 * held, ..limits });
    let small = || server.post("/v1/completions", "{\"prompt\": \"a\"}");
    let begin = || {
        let (mut stream, request) = (server.connect(), post_request("/v1/completions", &body));
        // A refused body may be cut off.
        let sent = stream.write_all(&request.as_bytes()[..request.len() - 1]);
        sent.map(|()| stream)
    };
    let mut large: Vec<TcpStream> = (0..4)
        .map(|n| {
            let stream = begin().unwrap();
            server.wait_for("body_bytes", (held * (n + 1)) as f64);
            stream
        })
        .collect();

    for _ in 0..40 {
        if let Ok(mut stream) = begin() {
            let status = Answer::read(&mut stream).status;
            assert!(status == 503 || status == 0, "{status}");
        }
        assert!(server.metric("body_bytes") <= (4 * held) as f64);
    }
    let refused = small();
    assert_eq!((refused.status, refused.error("code").as_str()), (503, "unavailable"));
    assert_eq!(refused.retry_after(), Some(1));

    drop(large.pop());
    server.wait_for("body_bytes", (3 * held) as f64);
    assert_eq!(small().status, 200, "whoever leaves frees his bytes");
    for mut stream in large {
        stream.write_all(b"}").unwrap();
        assert_eq!(Answer::read(&mut stream).error("code"), "context_length_exceeded");
    }
    server.wait_for("body_bytes", 0.0);
}

#[test]
fn bodies_other_than_json_objects_in_utf8_are_refused_with_the_reason() {
    let server = echo(Limits::default());
    let deep = format!("{{\"prompt\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let cases: [(&[u8], &str); 8] = [
        (b"{\"prompt\": \"\xff\"}", "no UTF-8"),
        (b"{\"prompt\": \"\xc3\"}", "no UTF-8"),
        (b"{\"prompt\"", "no JSON"),
        (b"", "no JSON"),
        (b"{\"prompt\": \"a\"} trailing", "no JSON"),
        (b"{\"prompt\": NaN}", "no JSON"),
        (b"[1]", "must be a JSON object"),
        (deep.as_bytes(), "nested deeper"),
    ];

    for (body, reason) in cases {
        let mut request =
            post_request("/v1/completions", "").replace("Length: 0", &format!("Length: {}", body.len()));
        request.truncate(request.len());
        let answer = server.send([request.as_bytes(), body].concat());
        assert_eq!(answer.status, 400, "{reason}");
        assert_eq!(answer.error("type"), "invalid_request_error");
        assert!(answer.error("message").contains(reason), "{}", answer.text());
    }
}

#[test]
fn bytes_that_are_not_http_are_refused() {
    let server = echo(short_heads());
    for garbage in
        ["\r\n\r\n\0\0\0", "GET / HTTP/9.9\r\n\r\n", "GET /\u{1}\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    {
        let status = server.send(garbage).status;
        assert!(status == 0 || (400..600).contains(&status), "{garbage:?}: {status}");
    }
    still_answers(&server);
}

#[test]
fn ten_thousand_connections_stay_within_the_limit_and_are_freed() {
    let server = echo(Limits { connections: 32, ..Limits::default() });
    let mut open = Vec::new();
    for _ in 0..10_000 {
        // This process may open few files.
        if open.len() == 200 {
            open.drain(..100).for_each(drop);
        }
        open.extend(TcpStream::connect(server.address));
    }
    drop(open);
    still_answers(&server);
    assert!(server.metric("connections") <= 32.0);
    let beyond = server.metric("refused_connections_total") + server.metric("dismissed_connections_total");
    assert!(beyond > 1_000.0, "{beyond}");
}

fn limits_without_timeouts(connections: usize) -> Limits {
    Limits { connections, idle_time: 2 * TIMEOUT, ..Limits::default() }
}

#[test]
fn health_answers_while_idle_connections_hold_every_slot() {
    let server = echo(limits_without_timeouts(8));
    let mut idle: Vec<TcpStream> = (0..8).map(|_| server.connect()).collect();
    assert_eq!(server.get("/health").status, 200);
    assert!(until_closed(idle.remove(0)).is_empty(), "the first has asked nothing for longest");
    for mut stream in idle {
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        assert_eq!(Answer::read(&mut stream).status, 200, "no other connection was closed");
    }
}

#[test]
fn only_a_connection_without_a_running_answer_is_displaced() {
    let (engine, steps) = SteppedEngine::new(2);
    let limits = Limits { tokens: 1 << 20, ..limits_without_timeouts(2) };
    let server = TestServer::start(settings(limits), move |worker| engine.answer(worker));

    let mut answered = server.connect();
    answered.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert_eq!(Answer::read_measured(&mut answered).status, 200);
    let first = endless(&server);
    assert_eq!(steps.one(), ["a"]);
    // A connection is idle once its answer is sent.
    let second = 'let_in: loop {
        let newcomer = endless(&server);
        while !is_closed(&newcomer) {
            if steps.one().len() == 2 {
                break 'let_in newcomer;
            }
        }
    };

    assert!(until_closed(answered).is_empty());
    assert!(until_closed(server.connect()).is_empty(), "both slots have a request");

    drop(steps);
    for mut stream in [first, second] {
        assert!(!Answer::read(&mut stream).chunks().is_empty());
    }
}

fn endless(server: &TestServer) -> TcpStream {
    let mut stream = server.connect();
    let body = r#"{"prompt": "a", "max_tokens": 1000000, "stream": true}"#;
    // A refused connection may be closed.
    let _turned_away = stream.write_all(post_request("/v1/completions", body).as_bytes());
    stream
}

fn is_closed(stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
    let closed = match stream.peek(&mut [0]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    };
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    closed
}

fn still_answers(server: &TestServer) {
    for _ in 0..20_000 {
        let answered = TcpStream::connect(server.address).ok().is_some_and(|mut stream| {
            let sent =
                stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            let mut bytes = Vec::new();
            sent.is_ok() && stream.read_to_end(&mut bytes).is_ok() && bytes.starts_with(b"HTTP/1.1 200")
        });
        if answered {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("the server does not answer any more");
}
