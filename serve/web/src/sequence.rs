//! One answer in the making: tokens to text, stop strings, the end.

use std::collections::VecDeque;
use std::time::Instant;

use crate::engine::{Decoder, Likelihood, Token, Vocabulary};
use crate::queue::{Event, Finish, Outlet, Piece};
use crate::stop::StopStrings;

pub(crate) struct Sequence<'v> {
    pub(crate) outlet: Outlet,
    pub(crate) queued: Instant,
    vocabulary: &'v dyn Vocabulary,
    decoder: Box<dyn Decoder + 'v>,
    stop: StopStrings,
    most: usize,
    made: usize,
    /// Bytes of text decoded, and those of them that were sent.
    decoded: usize,
    sent: usize,
    /// Tokens whose text was not sent, with the byte each ends at.
    unsent: VecDeque<(usize, u32, Likelihood)>,
}

impl<'v> Sequence<'v> {
    pub(crate) fn new(
        outlet: Outlet,
        queued: Instant,
        stop: Vec<String>,
        most: usize,
        vocabulary: &'v dyn Vocabulary,
    ) -> Self {
        Self {
            outlet,
            queued,
            vocabulary,
            decoder: vocabulary.decoder(),
            stop: StopStrings::new(stop),
            most,
            made: 0,
            decoded: 0,
            sent: 0,
            unsent: VecDeque::new(),
        }
    }

    /// Sends what `token` settles. Whether there is more to come.
    pub(crate) fn take(&mut self, token: Token) -> bool {
        if self.vocabulary.ends(token.id) {
            return self.end(Finish::Stop);
        }
        self.made += 1;
        let text = self.decoder.push(token.id);
        self.decoded += text.len();
        if let Some(likelihood) = token.likelihood {
            self.unsent.push_back((self.decoded, token.id, likelihood));
        }
        let shown = self.stop.push(&text);
        if !shown.stopped && self.made < self.most {
            self.send(shown.text);
            return true;
        }
        if shown.stopped {
            self.send(shown.text);
            self.finish(Finish::Stop);
            return false;
        }
        self.send(shown.text);
        self.end(Finish::Length)
    }

    pub(crate) fn is_first(&self) -> bool {
        self.made == 0
    }

    /// Sends the text still held back and finishes.
    fn end(&mut self, finish: Finish) -> bool {
        let rest = self.decoder.finish();
        self.decoded += rest.len();
        let shown = self.stop.push(&rest);
        let rest = if shown.stopped { String::new() } else { self.stop.finish() };
        self.send(shown.text + &rest);
        self.finish(if shown.stopped { Finish::Stop } else { finish });
        false
    }

    fn send(&mut self, text: String) {
        self.sent += text.len();
        let mut tokens = Vec::new();
        while let Some((_, token, likelihood)) = self.unsent.pop_front_if(|(end, ..)| *end <= self.sent) {
            tokens.push((token, likelihood));
        }
        if !text.is_empty() || !tokens.is_empty() {
            self.outlet.send(Event::Piece(Piece { text, tokens }));
        }
    }

    fn finish(&mut self, finish: Finish) {
        self.outlet.send(Event::Finished { finish, made: self.made });
    }
}
