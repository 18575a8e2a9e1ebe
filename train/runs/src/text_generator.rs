//! Generates text, in batches or streamed, up to an end token or stop string.

use std::io::Write;
use std::ops::ControlFlow;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use burn::tensor::backend::Backend;
use models::{Completion, Gpt, Lookup, Overflow, Reader, Request, Sampling, Stop, WholeReader, generate_by};
use tokenizer::{DecodeStream, Message, Role, Tokenizer};

/// Texts per batch. More take memory and save no time.
pub const TEXTS_AT_ONCE: usize = 32;

/// A model, its vocabulary and settings.
pub struct TextGenerator<'a, B: Backend> {
    /// The model.
    pub gpt: &'a Gpt<B>,
    /// Its vocabulary.
    pub tokenizer: &'a Tokenizer,
    /// Sampling parameters.
    pub sampling: Sampling,
    /// Most new tokens per text.
    pub max_new_tokens: usize,
    /// Strings that end a text, cut off.
    pub stop: &'a [String],
    /// Indexed texts (`longest_match`).
    pub lookup: Option<&'a dyn Lookup>,
}

/// Tokens that a model reads before its own.
#[derive(Debug, Clone)]
pub struct Prompt {
    ids: Vec<u32>,
    continues: bool,
}

impl Prompt {
    /// A text to continue, by [`opening`].
    pub fn text(tokenizer: &Tokenizer, text: &str) -> anyhow::Result<Self> {
        Ok(Self { ids: opening(tokenizer, text)?, continues: true })
    }

    /// A conversation that begins with the user's `text`.
    pub fn question(tokenizer: &Tokenizer, text: &str) -> anyhow::Result<Self> {
        Ok(Self::conversation(tokenizer.encode_prompt(&[Message::new(Role::User, text)])?))
    }

    /// A conversation whose next answer is a text by itself.
    pub fn conversation(ids: Vec<u32>) -> Self {
        Self { ids, continues: false }
    }

    /// Its tokens.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// What stands between it and what follows on a screen.
    pub fn between(&self) -> &'static str {
        if self.continues { "" } else { "\n" }
    }
}

impl<B: Backend> TextGenerator<'_, B> {
    /// Continues `prompts`; `show` gets the first's new tokens.
    pub fn speak(
        &self,
        prompts: &[Vec<u32>],
        show: impl FnMut(&[u32]) -> ControlFlow<()>,
    ) -> anyhow::Result<Vec<Completion>> {
        self.speak_by(&mut WholeReader::new(self.gpt), prompts, show)
    }

    /// As [`speak`](Self::speak), with a `reader` for the model.
    pub fn speak_by(
        &self,
        reader: &mut dyn Reader,
        prompts: &[Vec<u32>],
        mut show: impl FnMut(&[u32]) -> ControlFlow<()>,
    ) -> anyhow::Result<Vec<Completion>> {
        let ends = self.tokenizer.ends_of_answers();
        let decode = |ids: &[u32]| self.words(ids).unwrap_or_default();
        let request = Request {
            sampling: self.sampling,
            end_tokens: &ends,
            stop: (!self.stop.is_empty()).then_some(Stop { strings: self.stop, decode: &decode }),
            overflow: Overflow::Slide,
            lookup: self.lookup,
            ..Request::new(prompts, self.max_new_tokens)
        };

        let completions = generate_by(reader, self.gpt.config(), &request, |piece| {
            if piece.prompt == 0 { show(piece.tokens) } else { ControlFlow::Continue(()) }
        })?;
        Ok(completions)
    }

    /// Streams a continuation to `out` until `silenced`. Returns it.
    pub fn stream_to(
        &self,
        prompt: &Prompt,
        out: &mut impl Write,
        silenced: &AtomicBool,
    ) -> anyhow::Result<String> {
        let mut stream = self.stream(prompt);
        let (mut said, mut failure) = (String::new(), None);
        let show = |ids: &[u32]| {
            let piece = || -> anyhow::Result<String> {
                let text = self.known(ids).map(|id| stream.push(id)).collect::<Result<String, _>>()?;
                write!(out, "{text}")?;
                out.flush()?;
                Ok(text)
            };
            match { piece }() {
                Ok(text) => said += &text,
                Err(error) => failure = Some(error),
            }
            let ends = failure.is_some() || silenced.load(Ordering::Relaxed);
            if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };

        let completions = self.speak(slice::from_ref(&prompt.ids), show)?;
        if let Some(failure) = failure {
            return Err(failure);
        }

        let mut rest = stream.finish()?;
        // A stop string may begin within a token, whose first bytes wait.
        for completion in completions.iter().filter(|completion| completion.text.is_some()) {
            if let Some(left) = self.text(prompt, completion)?.strip_prefix(said.as_str()) {
                left.clone_into(&mut rest);
            }
        }
        write!(out, "{rest}")?;
        Ok(said + &rest)
    }

    /// The text of `prompt`'s completion, up to a stop string. A text's beginning may lose a blank, which a
    /// continuation keeps.
    pub fn text(&self, prompt: &Prompt, completion: &Completion) -> anyhow::Result<String> {
        let words = self.words(&completion.tokens)?;
        let mut stream = self.stream(prompt);
        let known =
            self.known(&completion.tokens).map(|id| stream.push(id)).collect::<Result<String, _>>()?;
        let behind = known + &stream.finish()?;
        let blank = behind.strip_suffix(words.as_str()).unwrap_or_default();
        Ok(format!("{blank}{}", completion.text.as_ref().unwrap_or(&words)))
    }

    fn stream(&self, prompt: &Prompt) -> DecodeStream<'_> {
        if prompt.continues {
            self.tokenizer.decode_stream_after(&prompt.ids)
        } else {
            self.tokenizer.decode_stream()
        }
    }

    /// Decodes `ids` of the vocabulary; an embedding may be larger.
    pub fn words(&self, ids: &[u32]) -> anyhow::Result<String> {
        let known: Vec<u32> = self.known(ids).collect();
        let bytes = self.tokenizer.decode_bytes(&known)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn known(&self, ids: &[u32]) -> impl Iterator<Item = u32> {
        let size = self.tokenizer.vocab_size();
        ids.iter().copied().filter(move |id| *id < size)
    }
}

/// Token ids of a text to continue, after the token that opens texts; never empty.
pub fn opening(tokenizer: &Tokenizer, text: &str) -> anyhow::Result<Vec<u32>> {
    let text = tokenizer.encode(text)?;
    let bos = tokenizer.bos().filter(|_| text.is_empty() || tokenizer.opens_texts());
    let mut ids: Vec<u32> = bos.into_iter().chain(text).collect();
    if ids.is_empty() {
        ids = tokenizer.encode("\n").context("an empty prompt begins with a line break")?;
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use burn::backend::{Flex, flex::FlexDevice};
    use models::{Finish, GptConfig};

    use super::*;

    const METASPACE: &[u8] = include_bytes!("../../../tokenizer/tests/it/goldens/metaspace.json");

    #[test]
    fn a_text_begins_with_the_opening_token_where_the_vocabulary_writes_it() {
        let ids = |post_processor: &str, text: &str| {
            let json = format!(
                r#"{{
                    "added_tokens": [{{ "id": 1, "content": "<|endoftext|>", "special": true }}],
                    "post_processor": {post_processor}, "decoder": {{ "type": "Fuse" }},
                    "model": {{ "type": "BPE", "vocab": {{ "a": 0 }}, "merges": [] }}
                }}"#
            );
            let tokenizer = Tokenizer::from_json(json.as_bytes()).expect("a vocabulary of characters");
            opening(&tokenizer, text).expect("it encodes")
        };
        assert_eq!(ids("null", "a"), [1, 0]);
        let bytes = r#"{ "type": "ByteLevel" }"#;
        assert_eq!(ids(bytes, "a"), [0]);
        assert_eq!(ids(bytes, ""), [1], "a model reads a token at least");
    }

    #[test]
    fn a_continuation_keeps_its_first_blank_and_an_answer_does_not() {
        let tokenizer = Tokenizer::from_json(METASPACE).expect("the golden loads");
        let shape = format!(
            r#"{{"n_layer": 1, "n_embd": 8, "n_head": 1, "n_positions": 64, "vocab_size": {}}}"#,
            tokenizer.vocab_size()
        );
        let gpt: Gpt<Flex> =
            Gpt::new(&GptConfig::from_json(&shape).expect("a small shape"), 7, &FlexDevice).expect("valid");
        let speaker = TextGenerator {
            gpt: &gpt,
            tokenizer: &tokenizer,
            sampling: Sampling { seed: 3, ..Sampling::default() },
            max_new_tokens: 20,
            stop: &[],
            lookup: None,
        };

        let text = Prompt::text(&tokenizer, "The water").expect("it encodes");
        let conversation = Prompt::conversation(text.ids().to_vec());
        let tokens = tokenizer.encode("rises now").expect("it encodes");
        let mut completion = Completion { tokens, text: None, finish: Finish::Length };
        assert_eq!(speaker.text(&text, &completion).expect("it decodes"), " rises now");
        assert_eq!(speaker.text(&conversation, &completion).expect("it decodes"), "rises now");
        completion.text = Some("rises n".to_owned());
        assert_eq!(speaker.text(&text, &completion).expect("cut at a stop string"), " rises n");

        for prompt in [&text, &conversation] {
            let all =
                speaker.speak(&[prompt.ids().to_vec()], |_| ControlFlow::Continue(())).expect("it speaks");
            let mut screen = Vec::new();
            let said = speaker.stream_to(prompt, &mut screen, &AtomicBool::new(false)).expect("it streams");
            assert_eq!(said, speaker.text(prompt, &all[0]).expect("it decodes"));
            assert_eq!(said.as_bytes(), screen);
        }
    }
}
