//! What clients get is what `generate` gives, whoever else asks.

use std::io::Write;
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use models::random::Random;
use models::{Gpt, Overflow, Request, Sampling, Stop, generate};
use serde_json::{Value, json};
use serve::Batching;
use web::Limits;

use crate::client::{Answer, post_request, settings, streamed_text};
use crate::models_at_work::{Cpu, model, served, tokenizer};

/// One client's question.
#[derive(Debug)]
struct Question {
    words: String,
    count: usize,
    sampling: Sampling,
    stop: Vec<String>,
    stream: bool,
    /// Leaves after its question was sent.
    leaves: bool,
    delay: Duration,
}

impl Question {
    fn any(random: &mut Random) -> Self {
        let below = |random: &mut Random, limit: u64| random.bits() % limit;
        let beginning = ["", "The river ", "The river rises and "][below(random, 3) as usize];
        let rest: String =
            (0..=below(random, 12)).map(|_| char::from(b'a' + below(random, 26) as u8)).collect();
        let sampling = match below(random, 3) {
            0 => Sampling {
                seed: below(random, 1 << 40),
                temperature: 1.2,
                top_k: Some(40),
                ..Sampling::default()
            },
            _ => Sampling::greedy(),
        };
        Self {
            words: format!("{beginning}{rest}"),
            count: 1 + below(random, 20) as usize,
            sampling,
            stop: if below(random, 3) == 0 { vec!["e".into(), "t".into(), "0x".into()] } else { Vec::new() },
            stream: below(random, 2) == 0,
            leaves: below(random, 5) == 0,
            delay: Duration::from_millis(below(random, 30)),
        }
    }

    fn body(&self) -> Value {
        let Sampling { temperature, top_k, seed, .. } = self.sampling;
        json!({
            "messages": [{ "role": "user", "content": self.words }], "max_tokens": self.count, "stream": self.stream,
            "temperature": temperature, "top_k": top_k.unwrap_or(0), "seed": seed, "stop": self.stop,
        })
    }

    /// Alone, without a server.
    fn expected(&self, model: &Gpt<Cpu>) -> String {
        let tokenizer = tokenizer();
        let message = tokenizer::Message::new(tokenizer::Role::User, self.words.clone());
        let prompts = [tokenizer.encode_prompt(&[message]).unwrap()];
        let decode = |ids: &[u32]| tokenizer.decode(ids).unwrap();
        let ends = runs::ends(&tokenizer);
        let request = Request {
            sampling: self.sampling,
            end_tokens: &ends,
            stop: Some(Stop { strings: &self.stop, decode: &decode }),
            overflow: Overflow::Refuse,
            ..Request::new(&prompts, self.count)
        };
        let mut answers = generate(model, &request, |_| ControlFlow::Continue(())).unwrap();
        answers.remove(0).text.unwrap()
    }
}

fn text_of(answer: &Answer, stream: bool) -> String {
    assert_eq!(answer.status, 200, "{}", answer.text());
    if stream {
        return streamed_text(&answer.chunks(), 0);
    }
    answer.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

#[test]
fn answers_are_those_of_generate_alone_or_with_others_who_come_and_go() {
    let model = model();
    let mut random = Random::new(11);
    for batching in
        [Batching { slots: 1, prompt_piece: 3 }, Batching { slots: 6, prompt_piece: 8 }, Batching::default()]
    {
        let server = served(settings(Limits::default()), batching);
        let questions: Vec<Question> = (0..24).map(|_| Question::any(&mut random)).collect();
        thread::scope(|clients| {
            let asking: Vec<_> = questions
                .iter()
                .map(|question| {
                    let server = &server;
                    clients.spawn(move || {
                        thread::sleep(question.delay);
                        let request = post_request("/v1/chat/completions", &question.body().to_string());
                        let mut connection = server.connect();
                        connection.write_all(request.as_bytes()).unwrap();
                        if question.leaves {
                            connection.shutdown(Shutdown::Both).unwrap();
                            return None;
                        }
                        Some(text_of(&Answer::read(&mut connection), question.stream))
                    })
                })
                .collect();
            for (client, question) in asking.into_iter().zip(&questions) {
                if let Some(text) = client.join().unwrap() {
                    assert_eq!(text, question.expected(&model), "{question:?} with {batching:?}");
                }
            }
        });
        server.wait_for("active_sequences", 0.0);
    }
}

#[test]
fn earlier_turns_are_not_read_again() {
    let server = served(settings(Limits::default()), Batching::default());
    let ask = |messages: Value| {
        let body = json!({ "messages": messages, "max_tokens": 4, "temperature": 0 });
        server.post_json("/v1/chat/completions", &body).json()
    };
    let first = ask(json!([{ "role": "user", "content": "a long beginning" }]));
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let said = &first["choices"][0]["message"]["content"];
    let again = ask(json!([{ "role": "user", "content": "a long beginning" }]));
    let prompt = again["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], prompt - 1);
    assert_eq!(&again["choices"][0]["message"]["content"], said, "what was read before changes no answer");
}

#[test]
fn choices_of_one_seed_are_told_apart_and_repeat() {
    let server = served(settings(Limits::default()), Batching::default());
    let ask = || {
        let body = json!({ "prompt": "river", "n": 4, "max_tokens": 12, "temperature": 2, "seed": 5, "logprobs": 2 });
        server.post_json("/v1/completions", &body).json()["choices"].clone()
    };
    let choices = ask();
    let texts: Vec<&str> = (0..4).map(|at| choices[at]["text"].as_str().unwrap()).collect();
    assert!(texts.iter().any(|text| *text != texts[0]), "{texts:?}");
    let again = ask();
    assert!((0..4).all(|at| again[at]["text"] == choices[at]["text"]));
    assert!(choices[0]["logprobs"]["token_logprobs"][0].as_f64().unwrap() < 0.0);
}
