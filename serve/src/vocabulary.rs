//! A trained tokenizer as the server's vocabulary.

use std::collections::HashSet;

use tokenizer::{DecodeStream, Message, Role, Tokenizer};
use web::{Decoder, EncodeError, Vocabulary};

pub(crate) struct TokenizerVocabulary {
    tokenizer: Tokenizer,
    ends: HashSet<u32>,
}

impl TokenizerVocabulary {
    pub(crate) fn new(tokenizer: Tokenizer) -> Self {
        let ends = tokenizer.ends_of_answers().into_iter().collect();
        Self { tokenizer, ends }
    }
}

impl Vocabulary for TokenizerVocabulary {
    fn encode(&self, text: &str) -> Result<Vec<u32>, EncodeError> {
        runs::opening(&self.tokenizer, text).map_err(|error| EncodeError(format!("{error:#}")))
    }

    fn encode_chat(&self, messages: &[web::Message]) -> Result<Vec<u32>, EncodeError> {
        let role = |role| match role {
            web::Role::System => Role::System,
            web::Role::User => Role::User,
            web::Role::Assistant => Role::Assistant,
        };
        let message = |message: &web::Message| Message::new(role(message.role), message.content.clone());
        let messages: Vec<Message> = messages.iter().map(message).collect();
        self.tokenizer.encode_prompt(&messages).map_err(|error| EncodeError(error.to_string()))
    }

    fn decoder(&self) -> Box<dyn Decoder + '_> {
        Box::new(Stream { tokenizer: &self.tokenizer, stream: Some(self.tokenizer.decode_stream()) })
    }

    fn decoder_after(&self, prompt: &[u32]) -> Box<dyn Decoder + '_> {
        let stream = Some(self.tokenizer.decode_stream_after(prompt));
        Box::new(Stream { tokenizer: &self.tokenizer, stream })
    }

    fn bytes(&self, token: u32) -> Vec<u8> {
        self.tokenizer.token_bytes(token)
    }

    fn is_text(&self, token: u32) -> bool {
        token < self.tokenizer.vocab_size() && !self.tokenizer.specials().contains(token)
    }

    fn ends(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }
}

struct Stream<'t> {
    tokenizer: &'t Tokenizer,
    stream: Option<DecodeStream<'t>>,
}

impl Decoder for Stream<'_> {
    /// An embedding may have ids beyond the vocabulary, without text.
    fn push(&mut self, token: u32) -> String {
        let known = token < self.tokenizer.vocab_size();
        let text = self.stream.as_mut().filter(|_| known).map(|stream| stream.push(token));
        text.and_then(Result::ok).unwrap_or_default()
    }

    fn finish(&mut self) -> String {
        self.stream.take().and_then(|stream| stream.finish().ok()).unwrap_or_default()
    }
}
