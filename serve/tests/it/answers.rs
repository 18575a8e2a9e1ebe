//! Answers over HTTP equal those of `generate`, whatever else runs.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use models::random::Random;
use models::{Gpt, Overflow, Request, Sampling, Stop, generate};
use serde_json::{Value, json};
use tokenizer::{Message, Role};
use train::answering::Batching;
use web::Limits;

use crate::client::{Answer, TestServer, post_request, settings, streamed_text};
use crate::served_models::{Cpu, NextId, model, served, tokenizer};

#[derive(Debug)]
struct Question {
    turns: Vec<(&'static str, String)>,
    count: usize,
    choices: usize,
    sampling: Sampling,
    stop: Vec<String>,
    stream: bool,
    /// Pieces until the client leaves.
    leaves: Option<usize>,
    delay: Duration,
}

#[derive(Debug)]
enum Received {
    Whole(Vec<String>),
    /// The client left early.
    Partial(Vec<String>),
}

impl Question {
    fn any(random: &mut Random) -> Self {
        let below = |random: &mut Random, limit: u64| random.bits() % limit;
        let mut turns = Vec::new();
        if below(random, 2) == 0 {
            turns.push(("system", "Rhyme.".to_owned()));
        }
        if below(random, 3) == 0 {
            turns.extend([("user", "And you?".to_owned()), ("assistant", "I flow.".to_owned())]);
        }

        let beginning = ["", "The river ", "The river rises and "][below(random, 3) as usize];
        let rest: String =
            (0..=below(random, 12)).map(|_| char::from(b'a' + below(random, 26) as u8)).collect();
        turns.push(("user", format!("{beginning}{rest}")));

        let sampling = match below(random, 3) {
            0 => Sampling {
                seed: below(random, 1 << 40),
                temperature: 1.2,
                top_k: Some(40),
                ..Sampling::default()
            },
            _ => Sampling::greedy(),
        };

        let stream = below(random, 2) == 0;
        Self {
            turns,
            count: 1 + below(random, 20) as usize,
            choices: if below(random, 4) == 0 { 2 } else { 1 },
            sampling,
            stop: if below(random, 3) == 0 { vec!["e".into(), "t".into(), "0x".into()] } else { Vec::new() },
            stream,
            leaves: match below(random, 5) {
                0 => Some(0),
                1 if stream => Some(1 + below(random, 8) as usize),
                _ => None,
            },
            delay: Duration::from_millis(below(random, 30)),
        }
    }

    fn body(&self) -> Value {
        let Sampling { temperature, top_k, seed, .. } = self.sampling;
        let turns = self.turns.iter().map(|(role, content)| json!({ "role": role, "content": content }));
        json!({
            "messages": turns.collect::<Vec<_>>(), "max_tokens": self.count, "n": self.choices,
            "stream": self.stream, "temperature": temperature, "top_k": top_k.unwrap_or(0), "seed": seed,
            "stop": self.stop,
        })
    }

    fn expected(&self, model: &Gpt<Cpu>) -> Vec<String> {
        let tokenizer = tokenizer();
        let role = |role: &str| match role {
            "system" => Role::System,
            "user" => Role::User,
            _ => Role::Assistant,
        };

        let messages: Vec<Message> =
            self.turns.iter().map(|(by, content)| Message::new(role(by), content.clone())).collect();
        let prompts = vec![tokenizer.encode_prompt(&messages).unwrap(); self.choices];
        let decode = |ids: &[u32]| tokenizer.decode(ids).unwrap();
        let ends = tokenizer.ends_of_answers();

        let request = Request {
            sampling: self.sampling,
            end_tokens: &ends,
            stop: Some(Stop { strings: &self.stop, decode: &decode }),
            overflow: Overflow::Refuse,
            lookup: Some(&NextId),
            ..Request::new(&prompts, self.count)
        };

        let answers = generate(model, &request, |_| ControlFlow::Continue(())).unwrap();
        answers.into_iter().map(|answer| answer.text.unwrap()).collect()
    }

    fn asked(&self, server: &TestServer) -> Received {
        thread::sleep(self.delay);
        let mut connection = server.connect();
        connection
            .write_all(post_request("/v1/chat/completions", &self.body().to_string()).as_bytes())
            .unwrap();
        if let Some(pieces) = self.leaves {
            return Received::Partial(self.some(&connection, pieces));
        }
        let answer = Answer::read(&mut connection);
        assert_eq!(answer.status, 200, "{}", answer.text());
        Received::Whole(if self.stream {
            let chunks = answer.chunks();
            (0..self.choices as u64).map(|index| streamed_text(&chunks, index)).collect()
        } else {
            let body = answer.json();
            let text = |at: usize| body["choices"][at]["message"]["content"].as_str().unwrap().to_owned();
            (0..self.choices).map(text).collect()
        })
    }

    fn some(&self, connection: &TcpStream, pieces: usize) -> Vec<String> {
        let mut chunks: Vec<Value> = Vec::new();
        let mut lines = BufReader::new(connection).lines();
        while chunks.len() < pieces {
            let Some(line) = lines.next() else { break };
            let Some(data) = line.unwrap().strip_prefix("data: ").map(str::to_owned) else { continue };
            if data == "[DONE]" {
                break;
            }
            chunks.push(serde_json::from_str(&data).unwrap());
        }
        connection.shutdown(Shutdown::Both).unwrap();
        (0..self.choices as u64).map(|index| streamed_text(&chunks, index)).collect()
    }
}

fn rounds() -> usize {
    suite::size().pick(1, 1, 50)
}

#[test]
fn answers_equal_those_of_generate_in_a_changing_batch() {
    let model = model();
    let mut random = Random::new(11);
    for (clients, batching) in [
        (8, Batching { slots: 1, prompt_piece: 3, ..Batching::default() }),
        (24, Batching { slots: 6, prompt_piece: 8, ..Batching::default() }),
        (24, Batching::default()),
    ] {
        let server = served(settings(Limits::default()), batching);
        for _ in 0..rounds() {
            let questions: Vec<Question> = (0..clients).map(|_| Question::any(&mut random)).collect();
            thread::scope(|scope| {
                let asking: Vec<_> =
                    questions.iter().map(|question| scope.spawn(|| question.asked(&server))).collect();
                for (client, question) in asking.into_iter().zip(&questions) {
                    let expected = question.expected(&model);
                    match client.join().unwrap() {
                        Received::Whole(texts) => {
                            assert_eq!(texts, expected, "{question:?} with {batching:?}");
                        }
                        Received::Partial(texts) => assert!(
                            expected.iter().zip(&texts).all(|(whole, some)| whole.starts_with(some)),
                            "{texts:?} of {expected:?}, {question:?} with {batching:?}"
                        ),
                    }
                }
            });
            server.wait_for("active_sequences", 0.0);
        }
        assert!(server.metric("cached_prompt_tokens_total") > 0.0, "beginnings were shared");
    }
}

#[test]
fn a_long_prompt_is_read_in_pieces() {
    let batching = Batching { slots: 2, prompt_piece: 8, ..Batching::default() };
    let server = served(settings(Limits::default()), batching);
    let body = json!({ "prompt": vec![7; 44], "max_tokens": 3, "temperature": 0 });
    let answer = server.post_json("/v1/completions", &body).json();
    let made = answer["usage"]["completion_tokens"].as_f64().unwrap();
    // Five pieces of 8; the sixth brings the first token.
    assert_eq!(server.metric("steps_total").to_bits(), (5.0 + made).to_bits());
}

#[test]
fn earlier_turns_are_not_read_again() {
    let server = served(settings(Limits::default()), Batching::default());
    let ask = |messages: Value| {
        let body = json!({ "messages": messages, "max_tokens": 4, "temperature": 0 });
        server.post_json("/v1/chat/completions", &body).json()
    };
    let first = ask(json!([{ "role": "user", "content": "a long beginning of a conversation" }]));
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let said = &first["choices"][0]["message"]["content"];
    let again = ask(json!([{ "role": "user", "content": "a long beginning of a conversation" }]));
    let prompt = again["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], prompt - 1);
    assert_eq!(&again["choices"][0]["message"]["content"], said, "what was read before changes no answer");
}

#[test]
fn choices_of_one_seed_differ_and_repeat() {
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
