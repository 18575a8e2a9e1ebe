//! Engines that do what one test needs: they are small, but they keep the promises of the interface.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use web::{Ask, Decoder, Desk, EncodeError, Engine, EngineError, Key, Message, Model, Token, Vocabulary};

/// One letter a token; `.` ends an answer, and `!` cannot be decoded.
pub(crate) struct Letters;

impl Vocabulary for Letters {
    fn encode(&self, text: &str) -> Result<Vec<u32>, EncodeError> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, EncodeError> {
        self.encode(&messages.last().unwrap().content)
    }

    fn decoder(&self) -> Box<dyn Decoder + '_> {
        Box::new(Plain)
    }

    fn bytes(&self, token: u32) -> Vec<u8> {
        vec![token as u8]
    }

    fn ends(&self, token: u32) -> bool {
        token == u32::from(b'.')
    }
}

struct Plain;

impl Decoder for Plain {
    fn push(&mut self, token: u32) -> String {
        assert_ne!(token, u32::from(b'!'), "no letter is as loud as that");
        char::from(token as u8).to_string()
    }

    fn finish(&mut self) -> String {
        String::new()
    }
}

/// An engine whose steps a test allows one by one, and which tells who was in it at each.
pub(crate) struct Stepped {
    slots: usize,
    allowed: Receiver<()>,
    seen: Sender<Vec<String>>,
    sequences: BTreeMap<Key, Vec<u8>>,
}

/// The test's side of it.
pub(crate) struct Steps {
    allow: Sender<()>,
    seen: Receiver<Vec<String>>,
}

impl Steps {
    /// Lets one step happen and returns the prompts that were in the engine, in order of arrival.
    pub(crate) fn one(&self) -> Vec<String> {
        self.allow.send(()).unwrap();
        self.seen.recv_timeout(super::client::PATIENCE).unwrap()
    }
}

impl Stepped {
    pub(crate) fn new(slots: usize) -> (Self, Steps) {
        let ((allow, allowed), (seen, heard)) = (channel(), channel());
        (Self { slots, allowed, seen, sequences: BTreeMap::new() }, Steps { allow, seen: heard })
    }

    pub(crate) fn answer(mut self, desk: Desk) {
        let model = Model { id: "stepped".into(), created: 1, context: 1 << 20, vocabulary: 256 };
        desk.answer(model, Arc::new(Letters), Box::new(Vec::new), &mut self);
    }
}

impl Engine for Stepped {
    fn slots(&self) -> usize {
        self.slots
    }

    fn join(&mut self, key: Key, ask: Ask) -> Result<usize, EngineError> {
        let prompt: Vec<u8> = ask.prompt.iter().map(|token| *token as u8).collect();
        if prompt.as_slice() == b"refuse" {
            Err(EngineError("no room on the device".into()))
        } else {
            self.sequences.insert(key, prompt);
            Ok(0)
        }
    }

    fn leave(&mut self, key: Key) {
        assert!(self.sequences.remove(&key).is_some(), "only sequences that are in it leave");
    }

    /// The letter `x` for everybody but `shout`. Without a test that allows it, a step does not wait.
    fn step(&mut self) -> Result<Vec<(Key, Token)>, EngineError> {
        let allowed = self.allowed.recv().is_ok();
        let names =
            self.sequences.values().map(|prompt| String::from_utf8(prompt.clone()).unwrap()).collect();
        let _nobody_asks = self.seen.send(names);
        if self.sequences.values().any(|prompt| prompt == b"break") {
            return Err(EngineError("the device is gone".into()));
        }
        let letter = |prompt: &[u8]| match (prompt, allowed) {
            (b"shout", _) => b'!',
            (_, true) => b'x',
            (_, false) => b'.',
        };
        let token = |prompt: &Vec<u8>| Token { id: u32::from(letter(prompt)), likelihood: None };
        Ok(self.sequences.iter().map(|(key, prompt)| (*key, token(prompt))).collect())
    }

    fn reset(&mut self) {
        self.sequences.clear();
    }
}

/// An engine that tells what it is asked and answers with a letter.
pub(crate) struct Listening {
    asks: Sender<Ask>,
    keys: Vec<Key>,
}

impl Listening {
    pub(crate) fn new() -> (Self, Receiver<Ask>) {
        let (asks, heard) = channel();
        (Self { asks, keys: Vec::new() }, heard)
    }

    pub(crate) fn answer(mut self, desk: Desk) {
        let model = Model { id: "listening".into(), created: 1, context: 64, vocabulary: 256 };
        desk.answer(model, Arc::new(Letters), Box::new(Vec::new), &mut self);
    }
}

impl Engine for Listening {
    fn slots(&self) -> usize {
        4
    }

    fn join(&mut self, key: Key, ask: Ask) -> Result<usize, EngineError> {
        self.keys.push(key);
        self.asks.send(ask).unwrap();
        Ok(3)
    }

    fn leave(&mut self, key: Key) {
        self.keys.retain(|other| *other != key);
    }

    fn step(&mut self) -> Result<Vec<(Key, Token)>, EngineError> {
        Ok(self.keys.iter().map(|key| (*key, Token { id: u32::from(b'x'), likelihood: None })).collect())
    }

    fn reset(&mut self) {
        self.keys.clear();
    }
}

/// An engine that breaks where the scheduler does not expect it, after a step that a test allows.
pub(crate) struct Falling(pub(crate) Receiver<()>);

impl Falling {
    pub(crate) fn answer(mut self, desk: Desk) {
        let model = Model { id: "falling".into(), created: 1, context: 64, vocabulary: 256 };
        desk.answer(model, Arc::new(Letters), Box::new(Vec::new), &mut self);
    }
}

impl Engine for Falling {
    fn slots(&self) -> usize {
        1
    }

    fn join(&mut self, _key: Key, _ask: Ask) -> Result<usize, EngineError> {
        Ok(0)
    }

    fn leave(&mut self, _key: Key) {}

    fn step(&mut self) -> Result<Vec<(Key, Token)>, EngineError> {
        self.0.recv().unwrap();
        panic!("a step fails")
    }

    fn reset(&mut self) {
        panic!("and so does what comes after it")
    }
}
