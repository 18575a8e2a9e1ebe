//! The development engine: echoes the last user message by bytes, or answers from a script.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;

use crate::engine::{
    Counter, Decoder, EncodeError, Engine, EngineError, Key, KvMemory, Likelihood, Message, Model,
    PromptRead, Role, SequenceRequest, Token, Vocabulary,
};
use crate::grammar::Grammar;
use crate::worker::InferenceWorker;

/// Command-line options of the echo.
#[derive(Debug, Clone, clap::Args)]
pub struct EchoArgs {
    /// Milliseconds per byte of an echoed answer.
    #[arg(id = "echo_delay_ms", long = "echo-delay-ms", value_name = "MS", default_value_t = 20)]
    delay_ms: u64,
    /// File whose lines the echo answers, in turn.
    #[arg(id = "echo_script", long = "echo-script", value_name = "FILE")]
    script: Option<PathBuf>,
    /// Panic in every N-th answer of the echo.
    #[arg(id = "echo_fail_every", long = "echo-fail-every", value_name = "N")]
    fail_every: Option<u64>,
    /// Number of answers the echo gives at once.
    #[arg(id = "echo_slots", long = "echo-slots", value_name = "N", default_value_t = 8)]
    slots: usize,
}

/// The echo engine.
#[derive(Debug, Clone)]
pub struct Echo {
    /// Delay per byte of its answers.
    pub delay: Duration,
    /// Answers in turn, instead of the prompt.
    pub script: Vec<String>,
    /// Panics in every `n`th answer.
    pub fail_every: Option<u64>,
    /// Answers at once.
    pub slots: usize,
    /// Context length in tokens.
    pub context: usize,
    /// Whether it has a chat template.
    pub chats: bool,
    /// Questions that the page offers.
    pub examples: Vec<String>,
    /// Counters as of an engine on a device.
    pub counters: Vec<Counter>,
    /// Memory that its sequences share.
    pub kv: Option<KvMemory>,
}

struct EchoEngine {
    echo: Echo,
    answered: u64,
    sequences: BTreeMap<Key, EchoSequence>,
}

#[derive(Debug, Clone)]
struct EchoSequence {
    rest: VecDeque<u32>,
    alternatives: Option<usize>,
    fails: bool,
    longest: usize,
    prompt: Option<PromptRead>,
    grammar: Option<Grammar>,
}

impl EchoSequence {
    /// Where the grammar forbids the echo, a token that closes what is open.
    fn next(&mut self) -> u32 {
        let wanted = self.rest.front().copied().unwrap_or(END);
        let Some(grammar) = &mut self.grammar else {
            self.rest.pop_front();
            return wanted;
        };
        let mut logits = [0.0; TOKENS];
        grammar.mask(&mut logits);
        let closing = [END].into_iter().chain("\"}]:".bytes().map(u32::from)).chain(0..END);
        let mut candidates = [wanted].into_iter().chain(closing);
        let id = candidates.find(|id| logits[*id as usize] == 0.0).unwrap_or(END);
        if id == wanted {
            self.rest.pop_front();
        }
        grammar.accept(id);
        id
    }
}

pub(crate) struct ByteVocabulary {
    pub(crate) chats: bool,
}

pub(crate) const END: u32 = 256;
const SYSTEM: u32 = 257;
const USER: u32 = 258;
const ASSISTANT: u32 = 259;
pub(crate) const TOKENS: usize = 260;

impl Default for Echo {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            script: Vec::new(),
            fail_every: None,
            slots: 8,
            context: 4096,
            chats: true,
            examples: Vec::new(),
            counters: Vec::new(),
            kv: None,
        }
    }
}

impl EchoArgs {
    /// Reads the script.
    pub fn echo(&self) -> anyhow::Result<Echo> {
        let script = match &self.script {
            Some(path) => {
                std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?
            }
            None => String::new(),
        };
        Ok(Echo {
            delay: Duration::from_millis(self.delay_ms),
            script: script.lines().map(|line| line.replace("\\n", "\n")).collect(),
            fail_every: self.fail_every.filter(|every| *every > 0),
            slots: self.slots.max(1),
            ..Echo::default()
        })
    }
}

impl Echo {
    /// Answers until the server ends.
    pub fn answer(self, mut worker: InferenceWorker) {
        worker.offer_examples(self.examples.clone());
        let (vocabulary, counters) = (Arc::new(ByteVocabulary { chats: self.chats }), self.counters.clone());
        let model = Model {
            id: "echo".to_owned(),
            created: 0,
            context: self.context,
            vocabulary: TOKENS,
            kv: self.kv,
        };
        let mut engine = EchoEngine { echo: self, answered: 0, sequences: BTreeMap::new() };
        worker.answer(model, vocabulary, Box::new(move || counters.clone()), &mut engine);
    }
}

impl EchoEngine {
    fn reply(&self, prompt: &[u32]) -> Vec<u32> {
        let script = &self.echo.script;
        if !script.is_empty() {
            let line = &script[self.answered as usize % script.len()];
            return line.bytes().map(u32::from).collect();
        }
        // The last user message, or a whole completion.
        let said = prompt.iter().rposition(|token| *token == USER).map_or(0, |at| at + 1);
        prompt[said..].iter().copied().filter(|token| *token < END).collect()
    }
}

impl Engine for EchoEngine {
    fn slots(&self) -> usize {
        self.echo.slots
    }

    fn has_room(&self, request: &SequenceRequest) -> bool {
        let held: usize = self.sequences.values().map(|sequence| sequence.longest).sum();
        self.echo.kv.is_none_or(|kv| held + longest(request) <= kv.tokens)
    }

    fn join(&mut self, key: Key, request: SequenceRequest) -> Result<(), EngineError> {
        let mut rest: VecDeque<u32> = self.reply(&request.prompt).into();
        rest.push_back(END);
        self.answered += 1;
        let fails = self.echo.fail_every.is_some_and(|every| self.answered.is_multiple_of(every));
        let longest = longest(&request);
        let SequenceRequest { prompt, alternatives, score_prompt, grammar, .. } = request;
        let scored = if score_prompt { &prompt[1..] } else { &[] };
        let likelihoods =
            scored.iter().map(|token| invented_likelihood(*token, 0, alternatives.unwrap_or(0)));
        let prompt = Some(PromptRead { cached: 0, likelihoods: likelihoods.collect() });
        let sequence = EchoSequence { rest, alternatives, fails, longest, prompt, grammar };
        self.sequences.insert(key, sequence);
        Ok(())
    }

    fn leave(&mut self, key: Key) {
        self.sequences.remove(&key);
    }

    fn step(&mut self) -> Result<Vec<(Key, Token)>, EngineError> {
        thread::sleep(self.echo.delay);
        let mut tokens = Vec::with_capacity(self.sequences.len());
        for (key, sequence) in &mut self.sequences {
            let id = sequence.next();
            assert!(!sequence.fails, "the echo was asked to fail");
            let likelihood =
                sequence.alternatives.map(|count| invented_likelihood(id, sequence.rest.len(), count));
            tokens.push((*key, Token { id, likelihood, prompt: sequence.prompt.take() }));
        }
        Ok(tokens)
    }

    fn forget(&mut self) {}

    fn reset(&mut self) {
        self.sequences.clear();
    }
}

fn longest(request: &SequenceRequest) -> usize {
    request.prompt.len() + request.max_tokens - 1
}

/// Equal for equal arguments.
fn invented_likelihood(id: u32, left: usize, count: usize) -> Likelihood {
    let chosen = (0.05 + 0.95 * ((id as usize * 7 + left * 13) % 100) as f64 / 100.0).ln();
    let others = (1..count as u32).map(|n| (id ^ n, chosen - f64::from(n)));
    let first = (count > 0).then_some((id, chosen));
    Likelihood { chosen, alternatives: first.into_iter().chain(others).collect() }
}

impl Vocabulary for ByteVocabulary {
    fn encode(&self, text: &str) -> Result<Vec<u32>, EncodeError> {
        if text.is_empty() {
            return Err(EncodeError("the echo needs a text to repeat".to_owned()));
        }
        Ok(text.bytes().map(u32::from).collect())
    }

    fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, EncodeError> {
        if !self.chats {
            return Err(EncodeError("the echo was asked for no chat template".to_owned()));
        }
        if messages.last().is_none_or(|message| message.role != Role::User) {
            return Err(EncodeError("a conversation ends with the user's message".to_owned()));
        }
        let mut tokens = Vec::new();
        for Message { role, content } in messages {
            tokens.push(match role {
                Role::System => SYSTEM,
                Role::User => USER,
                Role::Assistant => ASSISTANT,
            });
            tokens.extend(content.bytes().map(u32::from));
        }
        Ok(tokens)
    }

    fn decoder(&self) -> Box<dyn Decoder + '_> {
        Box::new(Utf8Decoder(Vec::new()))
    }

    fn decoder_after(&self, _prompt: &[u32]) -> Box<dyn Decoder + '_> {
        self.decoder()
    }

    fn bytes(&self, token: u32) -> Vec<u8> {
        u8::try_from(token).into_iter().collect()
    }

    fn is_text(&self, token: u32) -> bool {
        token < END
    }

    fn ends(&self, token: u32) -> bool {
        token == END
    }
}

struct Utf8Decoder(Vec<u8>);

impl Decoder for Utf8Decoder {
    fn push(&mut self, token: u32) -> String {
        self.0.extend(u8::try_from(token));
        match std::str::from_utf8(&self.0) {
            Err(error) if error.error_len().is_none() => String::new(),
            _ => self.finish(),
        }
    }

    fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.0)).into_owned()
    }
}
