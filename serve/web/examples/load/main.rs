//! `cargo run -p web --example load --release -- 127.0.0.1:8080`: how a running server does with 1, 8 and 64 streams.
//!
//! Every stream asks for the same number of tokens, again and again for some seconds. The first token is timed from the
//! request; `/health` is asked all the while. Speeds are told as ratios, too: those survive a busy machine better.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Parser;

#[derive(Parser)]
struct Args {
    /// Where the server listens.
    server: SocketAddr,
    /// Streams at once, each in a measurement of its own.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64])]
    streams: Vec<usize>,
    /// Seconds for each measurement, after which streams are no longer begun.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Tokens of every answer.
    #[arg(long, default_value_t = 48)]
    tokens: usize,
}

/// What one answer took.
struct Timed {
    first: Duration,
    tokens: usize,
}

struct Measured {
    tokens_per_second: f64,
    first: Vec<Duration>,
    health: Vec<Duration>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    println!(
        "| streams | tokens/s | of one stream | first token, median | slowest | /health, median | slowest |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut alone = None;
    for &streams in &args.streams {
        let Measured { tokens_per_second, mut first, mut health } = measure(&args, streams)?;
        let ratio = tokens_per_second / *alone.get_or_insert(tokens_per_second);
        let [first_median, first_most] = median_and_most(&mut first);
        let [health_median, health_most] = median_and_most(&mut health);
        println!(
            "| {streams} | {tokens_per_second:.0} | {ratio:.2} | {first_median:.0} ms | {first_most:.0} ms | \
             {health_median:.1} ms | {health_most:.1} ms |"
        );
    }
    Ok(())
}

fn measure(args: &Args, streams: usize) -> anyhow::Result<Measured> {
    let began = Instant::now();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let asking: Vec<_> = (0..streams)
            .map(|stream| {
                scope.spawn(move || {
                    let mut answers = Vec::new();
                    while began.elapsed() < Duration::from_secs(args.seconds) {
                        answers.push(stream_once(args, stream * 1000 + answers.len())?);
                    }
                    Ok::<_, anyhow::Error>(answers)
                })
            })
            .collect();
        let watching = scope.spawn(|| {
            let mut times = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let asked = Instant::now();
                ensure!(request(args.server, "GET /health HTTP/1.1", "")?.0.contains(" 200 "), "not healthy");
                times.push(asked.elapsed());
                thread::sleep(Duration::from_millis(50));
            }
            Ok(times)
        });
        let mut answers = Vec::new();
        for asked in asking {
            answers.extend(asked.join().expect("no stream panics")?);
        }
        let seconds = began.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
        let health = watching.join().expect("nor does the watch")?;
        let tokens: usize = answers.iter().map(|answer| answer.tokens).sum();
        let first = answers.iter().map(|answer| answer.first).collect();
        Ok(Measured { tokens_per_second: tokens as f64 / seconds, first, health })
    })
}

fn stream_once(args: &Args, number: usize) -> anyhow::Result<Timed> {
    // Hot, so that answers do not end early where the model would end them.
    let body = format!(
        "{{\"prompt\": \"Question {number}\", \"max_tokens\": {}, \"temperature\": 2, \"stream\": true, \
         \"stream_options\": {{\"include_usage\": true}}}}",
        args.tokens
    );
    let asked = Instant::now();
    let (head, reader) = request(args.server, "POST /v1/completions HTTP/1.1", &body)?;
    ensure!(head.contains(" 200 "), "the server answered {head}");
    let (mut first, mut tokens) = (None, 0);
    for line in reader.lines() {
        let line = line?;
        if line.starts_with("data: {") {
            first.get_or_insert_with(|| asked.elapsed());
        }
        if let Some((_, rest)) = line.split_once("\"completion_tokens\":") {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            tokens = digits.parse()?;
        }
    }
    Ok(Timed { first: first.context("an answer without a token")?, tokens })
}

/// The status line, and the rest to be read.
fn request(server: SocketAddr, line: &str, body: &str) -> anyhow::Result<(String, BufReader<TcpStream>)> {
    let mut stream = TcpStream::connect(server)?;
    let length = body.len();
    stream.write_all(
        format!(
            "{line}\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: \
             {length}\r\n\r\n{body}",
            server.ip()
        )
        .as_bytes(),
    )?;
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    reader.read_line(&mut head)?;
    Ok((head, reader))
}

/// In milliseconds.
fn median_and_most(times: &mut [Duration]) -> [f64; 2] {
    times.sort_unstable();
    let at = |at: usize| times.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
    [at(times.len() / 2), at(times.len().saturating_sub(1))]
}
