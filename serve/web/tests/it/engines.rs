//! Small engines for single tests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use web::{
    Decoder, EncodeError, Engine, EngineError, InferenceWorker, Key, Message, Model, PromptRead,
    SequenceRequest, Token, Vocabulary,
};

/// A token per letter. `.` ends an answer; `_` is a blank, which a text cannot begin with; decoding `!` panics.
pub(crate) struct LetterVocabulary;

impl Vocabulary for LetterVocabulary {
    fn encode(&self, text: &str) -> Result<Vec<u32>, EncodeError> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, EncodeError> {
        self.encode(&messages.last().unwrap().content)
    }

    fn decoder(&self) -> Box<dyn Decoder + '_> {
        Box::new(LetterDecoder { begun: false })
    }

    fn decoder_after(&self, prompt: &[u32]) -> Box<dyn Decoder + '_> {
        Box::new(LetterDecoder { begun: !prompt.is_empty() })
    }

    fn bytes(&self, token: u32) -> Vec<u8> {
        vec![token as u8]
    }

    fn is_text(&self, token: u32) -> bool {
        !self.ends(token)
    }

    fn ends(&self, token: u32) -> bool {
        token == u32::from(b'.')
    }
}

struct LetterDecoder {
    begun: bool,
}

impl Decoder for LetterDecoder {
    fn push(&mut self, token: u32) -> String {
        assert_ne!(token, u32::from(b'!'), "no letter is as loud as that");
        match (std::mem::replace(&mut self.begun, true), token as u8) {
            (false, b'_') => String::new(),
            (true, b'_') => " ".to_owned(),
            (_, letter) => char::from(letter).to_string(),
        }
    }

    fn finish(&mut self) -> String {
        String::new()
    }
}

/// Waits for the test before each step, and reports its sequences. A step fails with `break` in it, and with `large`
/// among others or before caches were dropped.
pub(crate) struct SteppedEngine {
    slots: usize,
    allowed: Receiver<()>,
    seen: Sender<Vec<String>>,
    sequences: BTreeMap<Key, Vec<u8>>,
    has_caches: bool,
}

pub(crate) struct Steps {
    allow: Sender<()>,
    seen: Receiver<Vec<String>>,
}

impl Steps {
    pub(crate) fn one(&self) -> Vec<String> {
        self.allow.send(()).unwrap();
        self.seen.recv_timeout(super::client::TIMEOUT).unwrap()
    }
}

impl SteppedEngine {
    pub(crate) fn new(slots: usize) -> (Self, Steps) {
        let ((allow, allowed), (seen, heard)) = (channel(), channel());
        (
            Self { slots, allowed, seen, sequences: BTreeMap::new(), has_caches: true },
            Steps { allow, seen: heard },
        )
    }

    pub(crate) fn answer(mut self, worker: InferenceWorker) {
        let model = Model { id: "stepped".into(), created: 1, context: 1 << 20, vocabulary: 256, kv: None };
        worker.answer(model, Arc::new(LetterVocabulary), Box::new(Vec::new), &mut self);
    }
}

impl Engine for SteppedEngine {
    fn slots(&self) -> usize {
        self.slots
    }

    fn has_room(&self, _request: &SequenceRequest) -> bool {
        true
    }

    fn join(&mut self, key: Key, request: SequenceRequest) -> Result<(), EngineError> {
        let prompt: Vec<u8> = request.prompt.iter().map(|token| *token as u8).collect();
        if prompt.as_slice() == b"refuse" {
            Err(EngineError("no room on the device".into()))
        } else {
            self.sequences.insert(key, prompt);
            Ok(())
        }
    }

    fn leave(&mut self, key: Key) {
        assert!(self.sequences.remove(&key).is_some(), "only sequences that are in it leave");
    }

    /// Answers end once [`Steps`] is dropped.
    fn step(&mut self) -> Result<Vec<(Key, Token)>, EngineError> {
        let allowed = self.allowed.recv().is_ok();
        let names =
            self.sequences.values().map(|prompt| String::from_utf8(prompt.clone()).unwrap()).collect();
        let _test_ended = self.seen.send(names);
        if self.sequences.values().any(|prompt| prompt == b"break") {
            return Err(EngineError("the device is gone".into()));
        }
        let is_large = self.sequences.values().any(|prompt| prompt == b"large");
        if is_large && (self.has_caches || self.sequences.len() > 1) {
            return Err(EngineError("no room on the device".into()));
        }
        let letter = |prompt: &[u8]| match (prompt, allowed) {
            (b"shout", _) => b'!',
            (_, true) => b'x',
            (_, false) => b'.',
        };
        let token =
            |prompt: &Vec<u8>| Token { id: u32::from(letter(prompt)), likelihood: None, prompt: None };
        Ok(self.sequences.iter().map(|(key, prompt)| (*key, token(prompt))).collect())
    }

    fn forget(&mut self) {
        self.has_caches = false;
    }

    fn reset(&mut self) {
        self.sequences.clear();
    }
}

/// Sends its requests to the test, and repeats the last letter of each prompt.
pub(crate) struct RecordingEngine {
    requests: Sender<SequenceRequest>,
    sequences: Vec<(Key, u32, Option<PromptRead>)>,
}

impl RecordingEngine {
    pub(crate) fn new() -> (Self, Receiver<SequenceRequest>) {
        let (requests, heard) = channel();
        (Self { requests, sequences: Vec::new() }, heard)
    }

    pub(crate) fn answer(mut self, worker: InferenceWorker) {
        let model = Model { id: "listening".into(), created: 1, context: 64, vocabulary: 256, kv: None };
        worker.answer(model, Arc::new(LetterVocabulary), Box::new(Vec::new), &mut self);
    }
}

impl Engine for RecordingEngine {
    fn slots(&self) -> usize {
        4
    }

    fn has_room(&self, _request: &SequenceRequest) -> bool {
        true
    }

    fn join(&mut self, key: Key, request: SequenceRequest) -> Result<(), EngineError> {
        let last = *request.prompt.last().unwrap();
        self.sequences.push((key, last, Some(PromptRead { cached: 3, likelihoods: Vec::new() })));
        self.requests.send(request).unwrap();
        Ok(())
    }

    fn leave(&mut self, key: Key) {
        self.sequences.retain(|(other, ..)| *other != key);
    }

    fn step(&mut self) -> Result<Vec<(Key, Token)>, EngineError> {
        let token = |id: u32, prompt: &mut Option<_>| Token { id, likelihood: None, prompt: prompt.take() };
        Ok(self.sequences.iter_mut().map(|(key, last, prompt)| (*key, token(*last, prompt))).collect())
    }

    fn forget(&mut self) {}

    fn reset(&mut self) {
        self.sequences.clear();
    }
}

pub(crate) struct PanickingEngine(pub(crate) Receiver<()>);

impl PanickingEngine {
    pub(crate) fn answer(mut self, worker: InferenceWorker) {
        let model = Model { id: "falling".into(), created: 1, context: 64, vocabulary: 256, kv: None };
        worker.answer(model, Arc::new(LetterVocabulary), Box::new(Vec::new), &mut self);
    }
}

impl Engine for PanickingEngine {
    fn slots(&self) -> usize {
        1
    }

    fn has_room(&self, _request: &SequenceRequest) -> bool {
        true
    }

    fn join(&mut self, _key: Key, _request: SequenceRequest) -> Result<(), EngineError> {
        Ok(())
    }

    fn leave(&mut self, _key: Key) {}

    fn step(&mut self) -> Result<Vec<(Key, Token)>, EngineError> {
        self.0.recv().unwrap();
        panic!("a step fails")
    }

    fn forget(&mut self) {}

    fn reset(&mut self) {
        panic!("and so does what comes after it")
    }
}
