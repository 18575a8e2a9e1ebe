//! Greedy answers depend neither on concurrent requests nor on cached prompts.

use std::thread;

use anyhow::ensure;
use serde_json::json;

use super::Args;
use super::client::{post, whole};

const QUESTIONS: usize = 64;

pub(crate) fn compare(args: &Args) -> anyhow::Result<()> {
    let alone: Vec<Reply> = (0..QUESTIONS).map(|number| ask(args, number)).collect::<Result<_, _>>()?;
    for time in ["first", "second"] {
        let together: Vec<Reply> = thread::scope(|scope| {
            let asking: Vec<_> =
                (0..QUESTIONS).map(|number| scope.spawn(move || ask(args, number))).collect();
            asking
                .into_iter()
                .map(|asked| asked.join().expect("no question panics"))
                .collect::<Result<_, _>>()
        })?;
        let equal = alone.iter().zip(&together).filter(|(a, b)| a.text == b.text).count();
        let known: u64 = together.iter().map(|reply| reply.known).sum();
        let read: u64 = together.iter().map(|reply| reply.prompt).sum();
        println!(
            "{equal} of {QUESTIONS} greedy answers equal alone and at once, the {time} time; {known} of {read} prompt tokens \
             were known from before"
        );
        ensure!(equal == QUESTIONS, "an answer depended on the others");
    }
    Ok(())
}

struct Reply {
    text: String,
    prompt: u64,
    known: u64,
}

fn ask(args: &Args, number: usize) -> anyhow::Result<Reply> {
    let words = ["day", "number", "animal", "river", "colour", "sound", "name"];
    let question = format!("What {} comes after {}?", words[number % words.len()], number * 37 % 101);
    let mut messages = vec![json!({ "role": "user", "content": question })];
    if number.is_multiple_of(2) {
        messages.insert(0, json!({ "role": "system", "content": "Be brief." }));
    }
    let body = json!({ "messages": messages, "temperature": 0, "max_tokens": 40 }).to_string();
    let (status, answer) = whole(args.server, &post("/v1/chat/completions", body.as_bytes()))?;
    ensure!(status == 200, "a question was answered with {status}: {answer}");
    let usage = &answer["usage"];
    let count = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
    Ok(Reply {
        text: answer["choices"][0]["message"]["content"].to_string(),
        prompt: count(&usage["prompt_tokens"]),
        known: count(&usage["prompt_tokens_details"]["cached_tokens"]),
    })
}
