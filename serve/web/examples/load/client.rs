//! Requests to the server, and its metrics and memory.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::Args;

/// Longer than any request takes.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(3);

pub(crate) fn connect(server: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

pub(crate) fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

pub(crate) fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").into_bytes()
}

pub(crate) fn begin(server: SocketAddr, request: &[u8]) -> anyhow::Result<(u16, BufReader<TcpStream>)> {
    let mut stream = connect(server)?;
    stream.write_all(request)?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.with_context(|| format!("the server answered {line:?}"))?, reader))
}

pub(crate) fn whole(server: SocketAddr, request: &[u8]) -> anyhow::Result<(u16, Value)> {
    let (status, mut reader) = begin(server, request)?;
    let mut rest = String::new();
    reader.read_to_string(&mut rest)?;
    let body = rest.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, serde_json::from_str(body).unwrap_or(Value::Null)))
}

pub(crate) fn metric(server: SocketAddr, begins: impl Fn(&str) -> bool) -> anyhow::Result<f64> {
    let (status, mut reader) = begin(server, &get("/metrics"))?;
    ensure!(status == 200, "/metrics answered {status}");
    let mut page = String::new();
    reader.read_to_string(&mut page)?;
    let lines = page.lines().filter(|line| begins(line));
    let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    Ok(values.fold(0.0, |sum, value| sum + value))
}

/// In MiB; empty without a process to ask for.
pub(crate) fn resident(args: &Args) -> anyhow::Result<String> {
    args.process.map_or(Ok(String::new()), |process| Ok(format!("{:.1}", memory(process)?[0])))
}

/// In MiB.
pub(crate) fn memory(process: u32) -> anyhow::Result<[f64; 2]> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let mebibytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_whitespace().next()?.parse::<f64>().ok()? / 1024.0)
    };
    Ok([mebibytes("VmRSS:").context("no VmRSS")?, mebibytes("VmHWM:").context("no VmHWM")?])
}
