//! Samples by stages: rank 0 chooses tokens, and the stages of its pipeline compute the logits in turn.
//!
//! The texts are those of one process (`stages_speak_the_words_of_one_process`). Other pipelines wait.

use anyhow::anyhow;
use burn::tensor::{Tensor, backend::Backend};
use models::{Decoder, GenerateError, Gpt, Reader, Stretch};

use super::super::Learner;
use super::{LOGITS, Line, ORDER, TEXTS, send};
use crate::ranks::{Pipe, Ranks};

/// What `speak` returns on rank 0; `None` on others. If it fails, all ranks fail.
pub(in crate::training) fn spoken_by_stages<B: Backend, T>(
    learner: &Learner<B>,
    ranks: &mut Ranks,
    speak: impl FnOnce(&mut dyn Reader) -> anyhow::Result<T>,
) -> anyhow::Result<Option<T>> {
    let mut spoken = Ok(None);
    if ranks.rank() < ranks.stages() {
        let mut stage = Speaking::begin(learner, ranks)?;
        if ranks.leads() {
            spoken = speak(&mut stage).map(Some);
            stage.order(Order::END, &[]);
        } else {
            stage.serve();
        }
        spoken = stage.end(ranks).and(spoken);
    } else {
        ranks.expect_work_of_lead();
    }
    ranks.if_all_succeeded(spoken)
}

/// Tokens, and their followers.
type Text = (Vec<u32>, Option<Vec<u32>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Order {
    /// 0 for the end.
    texts: u64,
    /// Most tokens of each text; 0 for the next token of texts that have been read.
    capacity: u64,
    /// Of the message with the texts.
    words: u64,
}

impl Order {
    const END: Self = Self { texts: 0, capacity: 0, words: 0 };

    fn numbers(self) -> [u64; 3] {
        [self.texts, self.capacity, self.words]
    }

    fn of_numbers([texts, capacity, words]: [u64; 3]) -> Self {
        Self { texts, capacity, words }
    }
}

/// Each text's length, whether it has followers, its tokens and followers.
fn packed(texts: &[Stretch<'_>]) -> Vec<u32> {
    let mut words = Vec::new();
    for Stretch { tokens, followers } in texts {
        words.extend([tokens.len() as u32, u32::from(followers.is_some())]);
        words.extend_from_slice(tokens);
        words.extend_from_slice(followers.unwrap_or_default());
    }
    words
}

fn unpacked(mut words: &[u32]) -> Vec<Text> {
    let mut texts = Vec::new();
    while let [len, has_followers, rest @ ..] = words {
        let (tokens, rest) = rest.split_at(*len as usize);
        let (followers, rest) = rest.split_at(if *has_followers == 1 { tokens.len() } else { 0 });
        texts.push((tokens.to_vec(), (*has_followers == 1).then(|| followers.to_vec())));
        words = rest;
    }
    texts
}

struct Speaking<'m, B: Backend> {
    gpt: &'m Gpt<B>,
    line: Line,
    pipe: Pipe,
    decoder: Option<Decoder<'m, B>>,
    failure: Option<String>,
}

impl<'m, B: Backend> Speaking<'m, B> {
    fn begin(learner: &'m Learner<B>, ranks: &mut Ranks) -> anyhow::Result<Self> {
        let line = Line::new(learner, ranks);
        Ok(Self { gpt: &learner.gpt, line, pipe: ranks.begin_pipe()?, decoder: None, failure: None })
    }

    fn order(&self, order: Order, words: &[u32]) {
        for rank in self.line.first + 1..self.line.first + self.line.place.1 {
            self.pipe.send((rank, ORDER), bytemuck::bytes_of(&order.numbers()).to_vec());
            if !words.is_empty() {
                self.pipe.send((rank, TEXTS), bytemuck::cast_slice(words).to_vec());
            }
        }
    }

    /// Until the first stage says that it was all. Others go on after a failure.
    fn serve(&mut self) {
        while let Some((order, texts)) = self.heard() {
            let texts: Vec<Stretch<'_>> = texts
                .iter()
                .map(|(tokens, followers)| Stretch { tokens, followers: followers.as_deref() })
                .collect();
            match self.pass(&texts, order.capacity as usize) {
                Ok(None) => {}
                Ok(Some(logits)) => {
                    let numbers = self.numbers(logits);
                    let to = (self.line.first, LOGITS);
                    self.pipe.send(to, bytemuck::cast_slice(&numbers).to_vec());
                }
                Err(failure) => {
                    self.failure.get_or_insert(failure);
                    return;
                }
            }
        }
    }

    fn heard(&mut self) -> Option<(Order, Vec<Text>)> {
        let [order, texts] = [ORDER, TEXTS].map(|tag| (self.line.first, tag));
        self.pipe.expect(order, size_of::<[u64; 3]>());
        let numbers = bytemuck::pod_read_unaligned(&self.pipe.take(order)?);
        let order = Order::of_numbers(numbers);
        if order == Order::END {
            return None;
        }
        self.pipe.expect(texts, size_of::<u32>() * order.words as usize);
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(&self.pipe.take(texts)?);
        Some((order, unpacked(&words)))
    }

    /// Logits, on the last stage. `None`, too, if another stage is gone.
    fn pass(&mut self, texts: &[Stretch<'_>], capacity: usize) -> Result<Option<Tensor<B, 2>>, String> {
        let gpt = self.gpt;
        let input = if capacity > 0 {
            // Free a full cache before allocating another.
            self.decoder = None;
            let (decoder, input) = Decoder::for_prompts(gpt, texts, capacity);
            self.decoder = Some(decoder);
            input
        } else {
            let begun = self.decoder.as_ref().ok_or("no text has begun")?;
            begun.next_input(texts)
        };
        let decoder = self.decoder.as_mut().ok_or("no text has begun")?;
        let ([rows, time], device) = (input.tokens.dims(), gpt.wte.lazy_device());
        let shape = [rows, time, gpt.config().n_embd];
        let embed = || decoder.embed(input.clone()).map_err(|error| error.to_string());
        let stream = self.line.stream(&mut self.pipe, (shape, &device), &mut self.failure, embed)?;
        let Some(stream) = stream else { return Ok(None) };
        let passed = decoder.pass(self.line.stage.blocks(), stream);
        let stream = passed.map_err(|error| error.to_string())?;
        let Some(cut) = self.line.output else { return Ok(Some(decoder.logits(stream))) };
        send(&self.pipe, cut.forward(), stream, &mut self.failure);
        Ok(None)
    }

    /// Zeros after a failure.
    fn numbers(&mut self, logits: Tensor<B, 2>) -> Vec<f32> {
        let zeros = logits.shape().num_elements();
        match logits.try_into_data() {
            Ok(data) => data.iter::<f32>().collect(),
            Err(error) => {
                self.failure.get_or_insert(error.to_string());
                vec![0.0; zeros]
            }
        }
    }

    fn answer(&mut self, texts: &[Stretch<'_>], capacity: usize) -> Result<Vec<f32>, GenerateError> {
        let words = packed(texts);
        let [count, most, len] = [texts.len(), capacity, words.len()].map(|number| number as u64);
        self.order(Order { texts: count, capacity: most, words: len }, &words);
        let from = (self.line.first + self.line.place.1 - 1, LOGITS);
        self.pipe.expect(from, size_of::<f32>() * texts.len() * self.gpt.config().vocab_size);
        let unread = |reason| GenerateError::Unread { reason };
        self.pass(texts, capacity).map_err(unread)?;
        let logits = self.pipe.take(from).ok_or_else(|| unread("a stage is gone".to_owned()))?;
        Ok(bytemuck::pod_collect_to_vec(&logits))
    }

    fn end(self, ranks: &mut Ranks) -> anyhow::Result<()> {
        let ended = ranks.end_pipe(self.pipe);
        let failure = self.failure.map(|failure| anyhow!("sampling could not run: {failure}"));
        ended.and(failure.map_or(Ok(()), Err))
    }
}

impl<B: Backend> Reader for Speaking<'_, B> {
    fn read(&mut self, texts: &[Stretch<'_>], capacity: usize) -> Result<Vec<f32>, GenerateError> {
        self.answer(texts, capacity)
    }

    fn feed(&mut self, next: &[Stretch<'_>]) -> Result<Vec<f32>, GenerateError> {
        self.answer(next, 0)
    }

    fn has_room(&self) -> bool {
        self.decoder.as_ref().is_some_and(|decoder| !decoder.is_full())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_arrive_as_they_were_sent() {
        let texts: Vec<Text> = vec![(vec![1, 2, 3], Some(vec![9, 8, 7])), (vec![4], None), (vec![5], None)];
        let stretches: Vec<Stretch<'_>> = texts
            .iter()
            .map(|(tokens, followers)| Stretch { tokens, followers: followers.as_deref() })
            .collect();
        assert_eq!(unpacked(&packed(&stretches)), texts);
        assert_eq!(Order::of_numbers(Order::END.numbers()), Order::END);
    }
}
