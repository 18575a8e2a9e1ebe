//! A running answer: tokens to text that ends with whole characters (`no_piece_of_a_stream_ends_within_a_character`).

use std::collections::VecDeque;

use crate::engine::{Decoder, Likelihood, Token, Vocabulary};
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
    max_tokens: usize,
    /// Bytes.
    decoded: usize,
    /// Bytes.
    sent: usize,
    /// With the end of their text in bytes.
    unsent: VecDeque<(usize, u32, Likelihood)>,
}

impl<'v> Sequence<'v> {
    pub(crate) fn new(
        sender: EventSender,
        record: Record,
        stop: Vec<String>,
        max_tokens: usize,
        vocabulary: &'v dyn Vocabulary,
    ) -> Self {
        Self {
            sender,
            record,
            vocabulary,
            decoder: vocabulary.decoder(),
            stop: StopStrings::new(stop),
            max_tokens,
            decoded: 0,
            sent: 0,
            unsent: VecDeque::new(),
        }
    }

    /// Sends final text. Returns whether the answer continues.
    pub(crate) fn take(&mut self, token: Token) -> bool {
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

    pub(crate) fn cancel(self) {
        self.record.log("cancelled");
    }

    pub(crate) fn fail(self, error: ApiError) {
        self.record.log("failed");
        self.sender.send(Event::Failed(error));
    }

    /// Sends the text held back. Returns false.
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
            tokens.push((token, likelihood));
        }
        if !text.is_empty() || !tokens.is_empty() {
            self.sender.send(Event::Piece(Piece { text, tokens }));
        }
    }

    fn finish(&mut self, finish: FinishReason) {
        self.record.log(finish.name());
        self.sender.send(Event::Finished { finish, made: self.record.answer_tokens });
    }
}
