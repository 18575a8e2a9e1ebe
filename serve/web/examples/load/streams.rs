//! Speed of concurrent streams that repeat requests.

use std::io::BufRead;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::Args;
use super::client::{begin, get, post, resident};
use super::figures::{Csv, median_and_max};

struct Timed {
    stream: usize,
    first: Duration,
    all: Duration,
    tokens: usize,
}

pub(crate) fn measure(args: &Args) -> anyhow::Result<()> {
    println!(
        "| streams | tokens/s, of one stream | first token, median | slowest | of one stream | /health, median | slowest | resident after |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut answers_csv = Csv::new(args, "streams.csv", "streams,stream,first_ms,all_ms,tokens")?;
    let mut health_csv = Csv::new(args, "health.csv", "streams,ms")?;
    let mut alone = None;

    for &streams in &args.streams {
        let (answers, mut health, seconds) = at_once(args, streams)?;
        for Timed { stream, first, all, tokens } in &answers {
            let (first, all) = (first.as_secs_f64() * 1e3, all.as_secs_f64() * 1e3);
            answers_csv.row(&format!("{streams},{stream},{first:.3},{all:.3},{tokens}"))?;
        }
        for time in &health {
            health_csv.row(&format!("{streams},{:.3}", time.as_secs_f64() * 1e3))?;
        }

        let tokens: usize = answers.iter().map(|answer| answer.tokens).sum();
        let speed = tokens as f64 / seconds;
        let [median, most] = median_and_max(answers.iter().map(|answer| answer.first).collect());
        let (speed_alone, median_alone) = *alone.get_or_insert((speed, median));
        let [health_median, health_most] = median_and_max(std::mem::take(&mut health));
        println!(
            "| {streams} | {speed:.0}, {:.2} | {median:.0} ms | {most:.0} ms | {:.2} | {health_median:.1} ms | \
             {health_most:.1} ms | {} MiB |",
            speed / speed_alone,
            median / median_alone,
            resident(args)?,
        );
    }
    Ok(())
}

fn at_once(args: &Args, streams: usize) -> anyhow::Result<(Vec<Timed>, Vec<Duration>, f64)> {
    let began = Instant::now();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let asking: Vec<_> = (0..streams)
            .map(|stream| {
                scope.spawn(move || {
                    let mut answers = Vec::new();
                    while began.elapsed() < Duration::from_secs(args.seconds) {
                        answers.push(once(args, stream, answers.len())?);
                    }
                    Ok::<_, anyhow::Error>(answers)
                })
            })
            .collect();

        let watching = scope.spawn(|| {
            let mut times = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let asked = Instant::now();
                ensure!(begin(args.server, &get("/health"))?.0 == 200, "not healthy");
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
        Ok((answers, watching.join().expect("nor does the watch")?, seconds))
    })
}

fn once(args: &Args, stream: usize, number: usize) -> anyhow::Result<Timed> {
    // At a high temperature, answers are seldom short.
    let body = format!(
        "{{\"prompt\": \"Question {}\", \"max_tokens\": {}, \"temperature\": 2, \"stream\": true, \
         \"stream_options\": {{\"include_usage\": true}}}}",
        stream * 1000 + number,
        args.tokens
    );

    let asked = Instant::now();
    let (status, reader) = begin(args.server, &post("/v1/completions", body.as_bytes()))?;
    ensure!(status == 200, "the server answered {status}");

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

    let all = asked.elapsed();
    Ok(Timed { stream, first: first.context("an answer without a token")?, all, tokens })
}
