//! A running answer: text that ends with whole characters (`no_piece_of_a_stream_ends_within_a_character`).

use std::collections::VecDeque;

use crate::engine::{Decoder, Likelihood, PromptRead, Token, Vocabulary};
use crate::error::ApiError;
use crate::queue::{Event, EventSender, FinishReason, Piece};
use crate::record::Record;
use crate::stop::StopStrings;

pub(crate) struct Sequence<'v> {
    pub(crate) sender: EventSender,
    pub(crate) record: Record,
    vocabulary: &'v dyn Vocabulary,
    decoder: Box<dyn Decoder + 'v>,
    stop: StopStrings,
    echo: Option<Vec<u32>>,
    max_tokens: usize,
    /// Bytes.
    decoded: usize,
    /// Bytes.
    sent: usize,
    /// Tokens with the end of their text in bytes.
    unsent: VecDeque<(usize, u32, Likelihood)>,
}

impl<'v> Sequence<'v> {
    pub(crate) fn new(
        sender: EventSender,
        record: Record,
        decoder: Box<dyn Decoder + 'v>,
        (stop, echo): (Vec<String>, Option<Vec<u32>>),
        max_tokens: usize,
        vocabulary: &'v dyn Vocabulary,
    ) -> Self {
        Self {
            sender,
            record,
            vocabulary,
            decoder,
            stop: StopStrings::new(stop),
            echo,
            max_tokens,
            decoded: 0,
            sent: 0,
            unsent: VecDeque::new(),
        }
    }

    /// Sends final text. Returns whether the answer continues.
    pub(crate) fn take(&mut self, token: Token) -> bool {
        if let Some(PromptRead { cached, likelihoods }) = token.prompt {
            self.record.cached_tokens = cached;
            self.send_prompt(likelihoods);
        }
        if self.max_tokens == 0 {
            self.finish(FinishReason::Length);
            return false;
        }
        if self.vocabulary.ends(token.id) {
            return self.end(FinishReason::Stop);
        }

        self.record.answer_tokens += 1;
        let text = self.decoder.push(token.id);
        self.decoded += text.len();
        if let Some(likelihood) = token.likelihood {
            self.unsent.push_back((self.decoded, token.id, likelihood));
        }

        let shown = self.stop.push(&text);
        if !shown.stopped && self.record.answer_tokens < self.max_tokens {
            self.send(shown.text);
            return true;
        }
        if shown.stopped {
            self.send(shown.text);
            self.finish(FinishReason::Stop);
            return false;
        }
        self.send(shown.text);
        self.end(FinishReason::Length)
    }

    fn send_prompt(&mut self, likelihoods: Vec<Likelihood>) {
        let Some(prompt) = self.echo.take() else { return };
        let mut decoder = self.vocabulary.decoder();
        let mut text: String = prompt.iter().map(|token| decoder.push(*token)).collect();
        text += &decoder.finish();
        let likelihoods = std::iter::once(None).chain(likelihoods.into_iter().map(Some));
        self.sender.send(Event::Piece(Piece { text, tokens: prompt.into_iter().zip(likelihoods).collect() }));
    }

    pub(crate) fn cancel(self) {
        self.record.log("cancelled");
    }

    pub(crate) fn fail(self, error: ApiError) {
        self.record.log("failed");
        self.sender.send(Event::Failed(error));
    }

    fn end(&mut self, finish: FinishReason) -> bool {
        let rest = self.decoder.finish();
        self.decoded += rest.len();
        let shown = self.stop.push(&rest);
        let rest = if shown.stopped { String::new() } else { self.stop.finish() };
        self.send(shown.text + &rest);
        self.finish(if shown.stopped { FinishReason::Stop } else { finish });
        false
    }

    fn send(&mut self, text: String) {
        self.sent += text.len();
        let mut tokens = Vec::new();
        while let Some((_, token, likelihood)) = self.unsent.pop_front_if(|(end, ..)| *end <= self.sent) {
            tokens.push((token, Some(likelihood)));
        }
        if !text.is_empty() || !tokens.is_empty() {
            self.sender.send(Event::Piece(Piece { text, tokens }));
        }
    }

    fn finish(&mut self, finish: FinishReason) {
        self.record.log(finish.name());
        self.sender.send(Event::Finished {
            finish,
            made: self.record.answer_tokens,
            cached: self.record.cached_tokens,
        });
    }
}
