//! Stalls of other streams during a long prompt.

use std::io::BufRead;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::json;

use super::Args;
use super::client::{begin, get, post, whole};
use super::figures::{Csv, median_and_max};

struct Gap {
    stream: usize,
    began: Duration,
    ended: Duration,
}

impl Gap {
    fn length(&self) -> Duration {
        self.ended.saturating_sub(self.began)
    }
}

pub(crate) fn measure(args: &Args) -> anyhow::Result<()> {
    let (_, models) = whole(args.server, &get("/v1/models"))?;
    let context = models["data"][0]["max_model_len"].as_u64().unwrap_or(128) as usize;
    let clock = Instant::now();
    let over = AtomicBool::new(false);
    let (gaps, readings) = thread::scope(|scope| {
        let streams: Vec<_> = (0..args.beside)
            .map(|stream| {
                let over = &over;
                scope.spawn(move || {
                    let mut gaps = Vec::new();
                    while !over.load(Ordering::Relaxed) {
                        gaps.extend(gaps_of_one(args, context, stream, clock)?);
                    }
                    Ok::<_, anyhow::Error>(gaps)
                })
            })
            .collect();
        let mut readings = Vec::new();
        for number in 0..args.long_prompts {
            thread::sleep(Duration::from_millis(700));
            // None is cached: prompts differ from the first token.
            let prompt: Vec<usize> = (0..context - 1).map(|at| 1 + (number * 31 + at * 7) % 200).collect();
            let body = json!({ "prompt": prompt, "max_tokens": 1, "temperature": 0 }).to_string();
            let began = clock.elapsed();
            let (status, _) = whole(args.server, &post("/v1/completions", body.as_bytes()))?;
            ensure!(status == 200, "a prompt of {} tokens was answered with {status}", context - 1);
            readings.push((began, clock.elapsed()));
        }
        over.store(true, Ordering::Relaxed);
        let mut gaps = Vec::new();
        for stream in streams {
            gaps.extend(stream.join().expect("no stream panics")?);
        }
        Ok::<_, anyhow::Error>((gaps, readings))
    })?;

    let reading = |gap: &Gap| readings.iter().position(|(from, to)| gap.began < *to && gap.ended > *from);
    let mut csv = Csv::new(args, "gaps.csv", "stream,began_ms,gap_ms,long_prompt")?;
    let mut usual = Vec::new();
    let mut longest = vec![Duration::ZERO; readings.len()];
    for gap in &gaps {
        let during = reading(gap);
        match during {
            Some(at) => longest[at] = longest[at].max(gap.length()),
            None => usual.push(gap.length()),
        }
        let number = during.map_or_else(String::new, |at| (at + 1).to_string());
        let (began, length) = (gap.began.as_secs_f64() * 1e3, gap.length().as_secs_f64() * 1e3);
        csv.row(&format!("{},{began:.3},{length:.3},{number}", gap.stream))?;
    }
    let times = readings.iter().map(|(from, to)| to.saturating_sub(*from)).collect();
    let ([usual, usual_most], [longest, longest_most]) = (median_and_max(usual), median_and_max(longest));
    let [read, _] = median_and_max(times);
    println!(
        "{} prompts of {} tokens beside {} streams. Gaps between two tokens of a stream, in medians of the usual ones: usual \
         1 (at most {:.1}), longest while a prompt is read {:.1} (at most {:.1}); a prompt is read in {:.1}.",
        readings.len(),
        context - 1,
        args.beside,
        usual_most / usual,
        longest / usual,
        longest_most / usual,
        read / usual
    );
    Ok(())
}

fn gaps_of_one(args: &Args, context: usize, stream: usize, clock: Instant) -> anyhow::Result<Vec<Gap>> {
    // With `logprobs`, every token is a piece.
    let body = json!({
        "prompt": format!("Stream {stream}"), "max_tokens": (context - 24).min(400), "temperature": 2, "stream": true,
        "logprobs": 0,
    });
    let (status, reader) = begin(args.server, &post("/v1/completions", body.to_string().as_bytes()))?;
    ensure!(status == 200, "a stream was answered with {status}");
    let mut last = None;
    let mut gaps = Vec::new();
    for line in reader.lines() {
        if line?.starts_with("data: {") {
            let ended = clock.elapsed();
            gaps.extend(last.replace(ended).map(|began| Gap { stream, began, ended }));
        }
    }
    Ok(gaps)
}
