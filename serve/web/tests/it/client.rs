//! A small HTTP/1.1 client for raw bytes, and a server to test.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use web::{Echo, InferenceWorker, Limits, Settings, Web};

/// Longer than any answer takes.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(1);

pub(crate) struct TestServer {
    web: Option<Web>,
    pub(crate) address: SocketAddr,
}

pub(crate) fn settings(limits: Limits) -> Settings {
    let host = "127.0.0.1".parse().unwrap();
    Settings { host, port: 0, key: None, hosts: Vec::new(), origins: Vec::new(), limits }
}

impl TestServer {
    pub(crate) fn echo(echo: Echo) -> Self {
        Self::start(settings(Limits::default()), move |worker| echo.answer(worker))
    }

    pub(crate) fn start(settings: Settings, work: impl FnOnce(InferenceWorker) + Send + 'static) -> Self {
        let server = Self::loading(settings, work);
        while server.get("/health").status != 200 {
            std::thread::sleep(Duration::from_millis(2));
        }
        server
    }

    /// Does not wait for the model.
    pub(crate) fn loading(settings: Settings, work: impl FnOnce(InferenceWorker) + Send + 'static) -> Self {
        let web = Web::start(settings, move |worker| {
            work(worker);
            Ok(())
        });
        let web = web.unwrap();
        Self { address: web.address(), web: Some(web) }
    }

    pub(crate) fn stop(mut self) {
        self.web.take().expect("it stops once").stop().unwrap();
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Answer {
        self.send(post_request(path, body))
    }

    pub(crate) fn post_json(&self, path: &str, body: &Value) -> Answer {
        self.post(path, &body.to_string())
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    pub(crate) fn send(&self, request: impl AsRef<[u8]>) -> Answer {
        let mut stream = self.connect();
        stream.write_all(request.as_ref()).unwrap();
        Answer::read(&mut stream)
    }

    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").text();
        let line = page.lines().find_map(|line| line.strip_prefix(&format!("spillway_{name} ")));
        line.unwrap_or_else(|| panic!("no metric {name} in\n{page}")).parse().unwrap()
    }

    pub(crate) fn wait_for(&self, name: &str, value: f64) {
        self.wait_until(|| self.metric(name).to_bits() == value.to_bits(), name);
    }

    pub(crate) fn wait_for_arrivals(&self, count: f64) {
        let here = || self.metric("queue_length") + self.metric("active_sequences");
        self.wait_until(|| here().to_bits() == count.to_bits(), "arrivals");
    }

    fn wait_until(&self, condition: impl Fn() -> bool, what: &str) {
        for _ in 0..20_000 {
            if condition() {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("waited for {what} in vain:\n{}", self.get("/metrics").text());
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(web) = self.web.take() {
            web.stop().unwrap();
        }
    }
}

pub(crate) fn post_request(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn read(stream: &mut TcpStream) -> Self {
        let mut bytes = Vec::new();
        match stream.read_to_end(&mut bytes) {
            Ok(_) => {}
            // A refusing server closes early.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&bytes)),
        }
        let _already_closed = stream.shutdown(Shutdown::Both);
        Self::parse(&bytes)
    }

    /// From a server that keeps the connection.
    pub(crate) fn read_measured(stream: &mut TcpStream) -> Self {
        let mut bytes = Vec::new();
        loop {
            let answer = Self::parse(&bytes);
            let length = answer.head.lines().find_map(|line| line.strip_prefix("content-length:"));
            if length.is_some_and(|length| length.trim().parse() == Ok(answer.body.len())) {
                return answer;
            }
            let mut more = [0; 1 << 13];
            let count = stream.read(&mut more).unwrap();
            assert!(count > 0, "the answer ended too early: {answer:?}");
            bytes.extend_from_slice(&more[..count]);
        }
    }

    fn parse(bytes: &[u8]) -> Self {
        let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            return Self { status: 0, head: String::new(), body: bytes.to_vec() };
        };
        let head = String::from_utf8(bytes[..at].to_vec()).unwrap().to_ascii_lowercase();
        let body = &bytes[at + 4..];
        let body = if head.contains("transfer-encoding: chunked") { unchunked(body) } else { body.to_vec() };
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head, body }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn error(&self, member: &str) -> String {
        let value = &self.json()["error"][member];
        value.as_str().map_or_else(|| value.to_string(), str::to_owned)
    }

    /// In seconds.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        let wait = self.head.lines().find_map(|line| line.strip_prefix("retry-after: "))?;
        Some(wait.parse().unwrap())
    }

    pub(crate) fn events(&self) -> Vec<String> {
        let text = self.text();
        text.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
    }

    pub(crate) fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{}", self.text());
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(at) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..at]).unwrap(), 16).unwrap();
        let Some(chunk) = rest.get(at + 2..at + 2 + size) else { break };
        body.extend_from_slice(chunk);
        rest = rest.get(at + 4 + size..).unwrap_or_default();
    }
    body
}

pub(crate) fn streamed_text(chunks: &[Value], index: u64) -> String {
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
    let mine = choices.filter(|choice| choice["index"] == index);
    mine.filter_map(|choice| choice["delta"]["content"].as_str()).collect()
}
