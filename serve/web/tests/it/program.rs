//! The program `web` as a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

#[cfg(unix)]
use rustix::process::{Pid, Signal, kill_process};

use super::client::{Answer, TIMEOUT, post_request};

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_web"));
    command.args(["--port", "0"]).args(arguments).env_remove("SPILLWAY_API_KEY").env_remove("RUST_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn address(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address =
        line.trim().strip_prefix("http://").unwrap_or_else(|| panic!("no URL: {line:?}")).to_owned();
    while ask(&address, "/health") != 200 {}
    address
}

fn ask(address: &str, path: &str) -> u16 {
    let mut asking = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    asking.write_all(request.as_bytes()).unwrap();
    Answer::read(&mut asking).status
}

#[cfg(unix)]
#[test]
fn a_terminated_program_completes_its_streams_and_logs_no_text() {
    let mut child = program(&["--echo-delay-ms", "5"]).spawn().unwrap();
    let address = address(&mut child);
    let mut streaming = TcpStream::connect(&address).unwrap();
    streaming.set_read_timeout(Some(TIMEOUT)).unwrap();
    let secret = "a secret of many words ".repeat(10);
    let body = format!(
        "{{\"prompt\": \"{secret}\", \"max_tokens\": 1000, \"stream\": true, \"secret_parameter\": null}}"
    );
    // An unknown parameter's name must not be logged.
    let mut refused = TcpStream::connect(&address).unwrap();
    refused.write_all(post_request("/v1/completions?secret=1", &body).as_bytes()).unwrap();
    assert_eq!(Answer::read(&mut refused).status, 400);
    let body = body.replace(", \"secret_parameter\": null", "");
    streaming.write_all(post_request("/v1/completions", &body).as_bytes()).unwrap();
    streaming.peek(&mut [0; 1]).unwrap();

    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let texts: String = Answer::read(&mut streaming)
        .chunks()
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["text"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(texts, secret);
    assert!(child.wait().unwrap().success());
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("POST /v1/completions 200") && log.contains("POST /v1/completions 400"), "{log}");
    assert!(!log.contains("secret"), "{log}");
}

#[cfg(unix)]
#[test]
fn a_second_signal_ends_the_program_while_an_answer_runs() {
    let mut child = program(&["--echo-delay-ms", "1000"]).spawn().unwrap();
    let address = address(&mut child);
    let mut streaming = TcpStream::connect(&address).unwrap();
    let body = r#"{"prompt": "twenty seconds of it", "max_tokens": 20, "stream": true}"#;
    streaming.write_all(post_request("/v1/completions", body).as_bytes()).unwrap();
    streaming.peek(&mut [0; 1]).unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().starts_with("ending;")), "the first signal is heard");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "it did not wait for the answer");
}

#[cfg(unix)]
#[test]
fn a_signal_while_the_model_loads_ends_the_program_and_a_second_one_at_once() {
    const LOADS: &str = "SPILLWAY_TEST_LOADS";
    const LIMIT: Duration = Duration::from_mins(1);
    if std::env::var_os(LOADS).is_some() {
        let settings = super::client::settings(web::Limits::default());
        return web::run(settings, |_worker| {
            std::thread::sleep(LIMIT);
            anyhow::bail!("no signal has ended it");
        })
        .unwrap();
    }
    for (signals, code) in [(1, 0), (2, 130)] {
        let mut loading = Command::new(std::env::current_exe().unwrap());
        let name = "program::a_signal_while_the_model_loads_ends_the_program_and_a_second_one_at_once";
        loading.args(["--exact", name, "--nocapture"]).env(LOADS, "1").stdin(Stdio::null());
        let mut child = loading.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap().contains("http://")), "it listens");
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap().starts_with("ending;")), "the first signal is heard");
        if signals == 2 {
            kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        }
        assert_eq!(child.wait().unwrap().code(), Some(code), "after {signals}");
    }
}

#[test]
fn a_server_on_all_addresses_prints_one_that_answers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, "0123456789abcdef").unwrap();
    let arguments = ["--host", "0.0.0.0", "--api-key-file", file.to_str().unwrap()];
    let mut child = program(&arguments).spawn().unwrap();
    let address = address(&mut child);
    assert!(address.starts_with("localhost:"), "{address}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_key_comes_from_a_file_and_a_bad_one_is_refused_without_being_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    for (key, starts) in [("0123456789abcdef-good\n", true), ("hunter2", false), ("", false)] {
        std::fs::write(&file, key).unwrap();
        let mut child = program(&["--api-key-file", file.to_str().unwrap()]).spawn().unwrap();
        if starts {
            let address = address(&mut child);
            assert_eq!(ask(&address, "/v1/models"), 401);
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(!said.contains("hunter2") && !said.contains("0123456789"), "{said}");
        assert_eq!(said.contains("at least 16 characters"), !starts, "{said}");
    }
}

#[cfg(unix)]
#[test]
fn a_key_that_others_may_read_is_warned_of() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, "0123456789abcdef").unwrap();
    for (mode, warned) in [(0o644, true), (0o600, false)] {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let mut child = program(&["--api-key-file", file.to_str().unwrap()]).spawn().unwrap();
        address(&mut child);
        child.kill().unwrap();
        let said = child.wait_with_output().unwrap().stderr;
        assert_eq!(String::from_utf8_lossy(&said).contains("chmod 600"), warned, "{mode:o}");
    }
}

#[test]
fn an_empty_variable_is_no_key() {
    let mut child = program(&[]).env("SPILLWAY_API_KEY", "").spawn().unwrap();
    let address = address(&mut child);
    assert_eq!(ask(&address, "/v1/models"), 200);
    child.kill().unwrap();
    child.wait().unwrap();
    let mut open = program(&["--host", "0.0.0.0"]);
    let output = open.env("SPILLWAY_API_KEY", "").output().unwrap();
    assert!(!output.status.success(), "an empty variable opens no server to the network");
}

#[test]
fn a_taken_port_is_named_with_the_way_out() {
    let mut first = program(&[]).spawn().unwrap();
    let address = address(&mut first);
    let port = address.rsplit(':').next().unwrap();
    let mut second = Command::new(env!("CARGO_BIN_EXE_web"));
    let output = second.args(["--port", port]).stdin(Stdio::null()).output();
    first.kill().unwrap();
    first.wait().unwrap();
    let said = String::from_utf8_lossy(&output.unwrap().stderr).into_owned();
    assert!(said.contains(port) && said.contains("--port"), "{said}");
}

#[cfg(unix)]
#[test]
fn an_answer_that_ends_is_logged_once() {
    let mut child = program(&["--echo-delay-ms", "2"]).spawn().unwrap();
    let address = address(&mut child);
    let begin = |id: &str, body: &str| {
        let mut asking = TcpStream::connect(&address).unwrap();
        let request = post_request("/v1/completions", body);
        let request = request.replacen("\r\n", &format!("\r\nX-Request-Id: {id}\r\n"), 1);
        asking.write_all(request.as_bytes()).unwrap();
        asking
    };
    let whole = r#"{"prompt": "abcd", "max_tokens": 3, "n": 2}"#;
    assert_eq!(Answer::read(&mut begin("run-1.a_b", whole)).status, 200);
    let leaving = begin("leaves", &format!(r#"{{"prompt": "{}", "max_tokens": 2000}}"#, "x".repeat(2000)));
    while !metrics(&address).contains("active_sequences 1") {}
    drop(leaving);
    while !metrics(&address).contains("cancelled_total 1") {}
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();

    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    let lines = |id: &str| -> Vec<String> {
        log.lines().filter(|line| line.contains(&format!("answer id={id} "))).map(str::to_owned).collect()
    };
    let whole = lines("run-1.a_b");
    assert_eq!(whole.len(), 2, "one for each choice: {log}");
    for (choice, line) in whole.iter().enumerate() {
        assert!(
            line.contains(&format!(
                " choice={choice} prompt_tokens=4 cached_tokens=0 answer_tokens=3 first_token_ms="
            )),
            "{line}"
        );
        assert!(line.contains(" total_ms=") && line.ends_with(" finish=length"), "{line}");
    }
    assert!(lines("leaves").iter().any(|line| line.ends_with(" finish=cancelled")), "{log}");
    assert_eq!(lines("leaves").len(), 1);
    assert!(!log.contains("/health") && !log.contains("/metrics"), "{log}");
}

#[cfg(unix)]
fn metrics(address: &str) -> String {
    let mut asking = TcpStream::connect(address).unwrap();
    asking.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    Answer::read(&mut asking).text()
}
