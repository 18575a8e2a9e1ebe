//! nginx and Caddy in front of the server, as documented.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use suite::Need;
use tempfile::TempDir;
use web::{Echo, Limits, Settings};

use super::client::{Answer, TIMEOUT, TestServer, post_request, settings};
use super::page::{answers, ask, browser};
use super::webdriver::Screen;

const NAME: &str = "spillway.example";

struct Proxy {
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl Proxy {
    fn start(program: &Path, text: &str, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = text.rsplit_once("127.0.0.1:").unwrap().1;
        let port = port.split(|other: char| !other.is_ascii_digit()).next().unwrap().parse().unwrap();
        let file = folder.path().join("configuration");
        fs::write(&file, text).unwrap();
        let mut command = Command::new(program);
        command.args(arguments).arg(&file).current_dir(&folder).env("HOME", folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut proxy = Self { child: command.spawn().unwrap(), port, _folder: folder };
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            assert!(proxy.child.try_wait().unwrap().is_none(), "{} ended: {text}", program.display());
            std::thread::sleep(Duration::from_millis(10));
        }
        proxy
    }

    fn begin(&self, body: &Value) -> TcpStream {
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        connection.set_read_timeout(Some(TIMEOUT)).unwrap();
        let request = post_request("/v1/completions", &body.to_string());
        connection.write_all(request.replacen("localhost", NAME, 1).as_bytes()).unwrap();
        connection
    }

    fn ask(&self, body: &Value) -> Answer {
        Answer::read(&mut self.begin(body))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn found(need: Need, name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&folders).chain(["/usr/sbin".into()]);
    let program = folders.map(|folder| folder.join(name)).find(|program| program.exists());
    need.found(program.ok_or_else(|| format!("{name} is not here")))
}

fn server() -> TestServer {
    let settings =
        Settings { hosts: vec![NAME.to_owned()], ..settings(Limits { queue: 1, ..Limits::default() }) };
    let echo = Echo { slots: 1, delay: Duration::from_millis(100), ..Echo::default() };
    TestServer::start(settings, move |worker| echo.answer(worker))
}

fn shown(file: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proxies").join(file);
    fs::read_to_string(file).unwrap()
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

fn nginx(program: &Path, server: &TestServer, change: impl Fn(&str) -> String) -> Proxy {
    let block = shown("nginx.conf").replace("127.0.0.1:8080", &server.address.to_string());
    let plain = block.lines().filter(|line| !line.contains("ssl_") && !line.contains("listen "));
    let plain: Vec<&str> = plain.collect();
    let block = change(&plain.join("\n"))
        .replace("server_name", &format!("listen 127.0.0.1:{}; server_name", free_port()));
    let (head, tail) = block.split_once("location").unwrap();
    let text = format!(
        "daemon off; master_process off; pid nginx.pid; error_log stderr crit; events {{}}\n\
         http {{ access_log off; proxy_read_timeout 1s; proxy_buffering on;\n{}\nlocation{tail}\n}}\n# {}",
        head,
        head.split_once("listen ").unwrap().1.split_once(';').unwrap().0
    );
    Proxy::start(program, &text, &["-p", ".", "-e", "stderr", "-c"])
}

fn caddy(program: &Path, server: &TestServer) -> Proxy {
    let address = format!("127.0.0.1:{}", free_port());
    let site = shown("Caddyfile").replace("127.0.0.1:8080", &server.address.to_string());
    let site =
        site.replace("spillway.example {", &format!("http://{NAME}:{} {{\n\tbind 127.0.0.1", &address[10..]));
    let text = format!("{{\n\tadmin off\n\tauto_https off\n}}\n{site}\n# {address}");
    Proxy::start(program, &text, &["run", "--adapter", "caddyfile", "--config"])
}

fn check(proxy: &Proxy, server: &TestServer) {
    let stream = json!({ "prompt": "0123456789", "max_tokens": 10, "stream": true });
    let mut connection = proxy.begin(&stream);
    let (mut received, mut first) = (Vec::new(), None);
    let mut bytes = [0; 1 << 12];
    loop {
        let count = connection.read(&mut bytes).unwrap();
        if count == 0 {
            break;
        }
        received.extend_from_slice(&bytes[..count]);
        if first.is_none() && received.windows(5).any(|five| five == b"data:") {
            first = Some(Instant::now());
        }
    }
    let early = first.expect("a stream has events").elapsed();
    assert!(String::from_utf8_lossy(&received).contains("[DONE]"));
    assert!(early > Duration::from_millis(500), "a second of answer came within {early:?}");

    // The stream's last event precedes its end in the engine: the next request would queue, and the second be refused.
    server.wait_for("active_sequences", 0.0);
    // Longer than nginx around the block waits.
    let slow = json!({ "prompt": "x".repeat(25), "max_tokens": 25 });
    let first = proxy.begin(&slow);
    server.wait_for("active_sequences", 1.0);
    let slow = [first, proxy.begin(&slow)];
    server.wait_for("queue_length", 1.0);
    let refused = proxy.ask(&json!({ "prompt": "a" }));
    assert_eq!(refused.status, 429, "{}", refused.text());
    let wait = refused.retry_after().expect("the proxy passes Retry-After on");
    assert!((1..=60).contains(&wait), "{wait} s");
    for mut connection in slow {
        assert_eq!(Answer::read(&mut connection).status, 200, "it waited and was answered");
    }
}

mod gate {
    use super::*;

    #[test]
    #[ignore = "gate: starts nginx"]
    fn nginx_passes_streams_waits_and_refusals_on() {
        let Some(program) = found(Need::Nginx, "nginx") else { return };
        let server = server();
        check(&nginx(&program, &server, str::to_owned), &server);
        let hasty = nginx(&program, &server, |block| block.replace("proxy_read_timeout 1h;", ""));
        let late = hasty.ask(&json!({ "prompt": "x".repeat(25), "max_tokens": 25 }));
        assert_eq!(late.status, 504, "without its line the block is as hasty as nginx: {}", late.text());
    }

    #[test]
    #[ignore = "gate: starts nginx and Chromium"]
    fn the_page_answers_below_a_path_of_a_proxy() {
        let Some(program) = found(Need::Nginx, "nginx") else { return };
        let Some(browser) = browser(Screen::Desktop) else { return };
        let server = TestServer::echo(Echo::default());
        let proxy = nginx(&program, &server, |block| {
            let address = server.address.to_string();
            block.replace("location / {", "location /model/ {").replace(&address, &format!("{address}/"))
        });
        browser.visit(&format!("http://127.0.0.1:{}/model/", proxy.port));
        browser.until("document.querySelector('#model').textContent.startsWith('echo')");
        ask(&browser, "a question");
        assert_eq!(answers(&browser), ["a question"]);
        browser.until("!document.querySelector('#banner').textContent");
    }
}

mod full {
    use super::*;

    #[test]
    #[ignore = "full: starts Caddy"]
    fn caddy_passes_streams_waits_and_refusals_on() {
        let Some(program) = found(Need::Caddy, "caddy") else { return };
        let server = server();
        check(&caddy(&program, &server), &server);
    }
}
