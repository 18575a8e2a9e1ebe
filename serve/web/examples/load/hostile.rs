//! Hostile requests: each answer, and the server's health afterwards.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use std::{iter, thread};

use anyhow::bail;
use serde_json::json;

use super::Args;
use super::client::{begin, connect, get, post, resident};
use super::figures::Csv;

const JSON: &str = "Host: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n";

pub(crate) fn attempt(args: &Args) -> anyhow::Result<()> {
    let mut table = Table {
        args,
        csv: Csv::new(args, "hostile.csv", "tried,answered,seconds,health_after_s,resident_mib")?,
    };
    println!("| tried | answered | all over after | /health 200 after | resident after |");
    println!("|---|---|---|---|---|");

    let request = |head: String| vec![head.into_bytes()];
    let completions = |body: Vec<u8>| vec![post("/v1/completions", &body)];
    let nested =
        |depth: usize| format!("{{\"prompt\": {}1{}}}", "[".repeat(depth), "]".repeat(depth)).into_bytes();
    let large = format!("{{\"prompt\": \"{}\"}}", "a".repeat(2 << 20)).into_bytes();
    let chunked = [
        format!(
            "POST /v1/completions HTTP/1.1\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n",
            large.len()
        )
        .into_bytes(),
        large.clone(),
        b"\r\n0\r\n\r\n".to_vec(),
    ]
    .concat();
    let lines = "X-Line: a\r\n".repeat(100);

    let one_by_one: [(&str, Vec<Vec<u8>>); 14] = [
        ("a body of 2 MiB", completions(large)),
        ("the same in chunks, without its length", vec![chunked]),
        (
            "a body said to have 100 GB",
            request(format!("POST /v1/completions HTTP/1.1\r\n{JSON}Content-Length: 99999999999\r\n\r\n")),
        ),
        ("no UTF-8", completions(b"{\"prompt\": \"\xff\xfe\"}".to_vec())),
        ("JSON that is cut off", completions(b"{\"prompt\": \"a".to_vec())),
        ("NaN", completions(b"{\"prompt\": \"a\", \"temperature\": NaN}".to_vec())),
        ("brackets 100,000 deep", completions(nested(100_000))),
        ("brackets 17 deep", completions(nested(17))),
        ("a negative number of tokens", completions(b"{\"prompt\": \"a\", \"max_tokens\": -1}".to_vec())),
        (
            "a parameter nobody knows",
            completions(b"{\"prompt\": \"a\", \"chat_template\": \"{{ x }}\"}".to_vec()),
        ),
        ("a head of 100 lines", request(format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n"))),
        (
            "a head of 1 MiB",
            request(format!("GET /health HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "a".repeat(1 << 20))),
        ),
        (
            "another host's name",
            request("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n".to_owned()),
        ),
        ("no HTTP", vec![vec![0x16, 0x03, 0x01, 0, 0xff, b'\r', b'\n', b'\r', b'\n']]),
    ];

    for (tried, requests) in one_by_one {
        table.row(tried, || requests.iter().map(|request| answered(args, request)).collect())?;
    }

    table.row("500 questions at once", || {
        at_once(500, |_| answered(args, &post("/v1/completions", b"{\"prompt\": \"a\", \"max_tokens\": 8}")))
    })?;
    table.row("200 clients that leave within their answer", || {
        let body = json!({ "prompt": "a", "max_tokens": 64, "stream": true }).to_string();
        at_once(200, |_| {
            let Ok((status, mut rest)) = begin(args.server, &post("/v1/completions", body.as_bytes())) else {
                return "closed".to_owned();
            };
            let _some = rest.read(&mut [0; 64]);
            format!("{status}")
        })
    })?;
    table.row("200 heads, a byte a second", || at_once(200, |_| trickled(args, &get("/health"))))?;
    table.row("200 bodies, a byte a second", || {
        let head = format!("POST /v1/completions HTTP/1.1\r\n{JSON}Content-Length: 1000\r\n\r\n");
        at_once(200, |_| begun_and_trickled(args, head.as_bytes(), &[b' '; 1000]))
    })?;
    table.row("32 readers that take nothing of answers as long as can be had", || {
        let (_, models) = super::client::whole(args.server, &get("/v1/models")).unwrap_or_default();
        let most = models["data"][0]["max_model_len"].as_u64().unwrap_or(128).min(4096) - 32;
        let body = json!({ "prompt": "a", "max_tokens": most, "n": 2, "logprobs": 5, "stream": true, "temperature": 2 });
        at_once(32, |_| unread(args, &post("/v1/completions", body.to_string().as_bytes())))
    })?;

    table.row("10,000 connections that ask nothing", || idle(args, 10_000))?;
    Ok(())
}

struct Table<'a> {
    args: &'a Args,
    csv: Csv,
}

impl Table<'_> {
    fn row(&mut self, tried: &str, attempt: impl FnOnce() -> Vec<String>) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut counts = BTreeMap::<String, usize>::new();
        for answer in attempt() {
            *counts.entry(answer).or_default() += 1;
        }
        let seconds = began.elapsed().as_secs_f64();
        let counted = counts.iter().map(|(answer, count)| match count {
            1 => answer.clone(),
            count => format!("{count} × {answer}"),
        });
        let answers = counted.collect::<Vec<_>>().join(", ");
        let after = healthy_after(self.args)?.as_secs_f64();
        let resident = resident(self.args)?;
        println!("| {tried} | {answers} | {seconds:.1} s | {after:.1} s | {resident} MiB |");
        self.csv.row(&format!("\"{tried}\",\"{answers}\",{seconds:.3},{after:.3},{resident}"))
    }
}

fn healthy_after(args: &Args) -> anyhow::Result<Duration> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_mins(2) {
        if begin(args.server, &get("/health")).is_ok_and(|(status, _)| status == 200) {
            return Ok(began.elapsed());
        }
        thread::sleep(Duration::from_millis(10));
    }
    bail!("the server does not answer any more")
}

fn at_once(count: usize, one: impl Fn(usize) -> String + Sync) -> Vec<String> {
    thread::scope(|scope| {
        let one = &one;
        let under_way: Vec<_> = (0..count).map(|at| scope.spawn(move || one(at))).collect();
        under_way.into_iter().map(|one| one.join().expect("no client panics")).collect()
    })
}

fn answered(args: &Args, request: &[u8]) -> String {
    let Ok(mut stream) = connect(args.server) else { return "closed".to_owned() };
    // A refusing server may close early.
    let _closed = stream.write_all(request);
    read_status(stream)
}

fn read_status(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    let _reset = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let Some(status) = text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)) else {
        return "closed".to_owned();
    };
    status.to_owned()
}

fn trickled(args: &Args, bytes: &[u8]) -> String {
    begun_and_trickled(args, b"", bytes)
}

/// Sends `rest` a byte per second until the server closes.
fn begun_and_trickled(args: &Args, beginning: &[u8], rest: &[u8]) -> String {
    let Ok(mut stream) = connect(args.server) else { return "closed".to_owned() };
    let mut sent = stream.write_all(beginning);
    for byte in rest {
        sent = sent.and_then(|()| stream.write_all(&[*byte]));
        if sent.is_err() || !is_open(&stream) {
            break;
        }
        thread::sleep(Duration::from_secs(1));
    }
    read_status(stream)
}

/// Reads only after the server's write timeout of 30 s.
fn unread(args: &Args, request: &[u8]) -> String {
    let Ok(mut stream) = connect(args.server) else { return "closed".to_owned() };
    let _closed = stream.write_all(request);
    thread::sleep(Duration::from_secs(45));
    let mut bytes = Vec::new();
    let _reset = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    if text.contains("[DONE]") {
        "whole, it fitted the sockets".to_owned()
    } else if bytes.is_empty() {
        "closed".to_owned()
    } else if text.starts_with("HTTP/1.1 200") {
        "broken off".to_owned()
    } else {
        text.get(9..12).unwrap_or("closed").to_owned()
    }
}

fn idle(args: &Args, count: usize) -> Vec<String> {
    let open: Vec<_> = (0..count).filter_map(|_| connect(args.server).ok()).collect();
    let unreached = count - open.len();
    thread::sleep(Duration::from_secs(1));
    let (held, refused): (Vec<_>, Vec<_>) = open.into_iter().partition(is_open);
    let waited = held.into_iter().map(|mut stream| match stream.read(&mut [0; 1]) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => "left open",
        _ => "closed when idle",
    });
    let all = waited
        .chain(refused.iter().map(|_| "closed at once"))
        .chain(iter::repeat_n("not reached", unreached));
    all.map(str::to_owned).collect()
}

fn is_open(stream: &TcpStream) -> bool {
    let peeked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0; 1]));
    stream.set_nonblocking(false).is_ok() && peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}
