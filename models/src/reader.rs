//! Logits of texts that grow: of a model here, or of its stages in several processes.

use burn::tensor::{Tensor, backend::Backend};

use crate::decode::Decoder;
use crate::generate::GenerateError;
use crate::gpt::Gpt;
use crate::lookup::Stretch;

/// Reads texts for [`generate_by`](crate::generate_by).
pub trait Reader {
    /// Begins anew with `texts`. Returns the logits after each, `[texts, vocabulary]`. Up to `capacity` tokens of each will
    /// be read.
    fn read(&mut self, texts: &[Stretch<'_>], capacity: usize) -> Result<Vec<f32>, GenerateError>;

    /// Reads the next token of each text. Returns as [`read`](Self::read).
    fn feed(&mut self, next: &[Stretch<'_>]) -> Result<Vec<f32>, GenerateError>;

    /// Whether another token of each text fits.
    fn has_room(&self) -> bool;
}

/// Reads with a model of this process.
#[derive(Debug)]
pub struct WholeReader<'a, B: Backend> {
    model: &'a Gpt<B>,
    decoder: Option<Decoder<'a, B>>,
}

impl<'a, B: Backend> WholeReader<'a, B> {
    /// One that has read nothing.
    pub fn new(model: &'a Gpt<B>) -> Self {
        Self { model, decoder: None }
    }
}

impl<B: Backend> Reader for WholeReader<'_, B> {
    fn read(&mut self, texts: &[Stretch<'_>], capacity: usize) -> Result<Vec<f32>, GenerateError> {
        // Free a full cache before allocating another.
        self.decoder = None;
        let (decoder, logits) = Decoder::with_prompts(self.model, texts, capacity)?;
        self.decoder = Some(decoder);
        numbers(logits)
    }

    fn feed(&mut self, next: &[Stretch<'_>]) -> Result<Vec<f32>, GenerateError> {
        let decoder = self.decoder.get_or_insert_with(|| Decoder::new(self.model, usize::MAX));
        let input = decoder.next_input(next);
        numbers(decoder.feed(input)?)
    }

    fn has_room(&self) -> bool {
        self.decoder.as_ref().is_some_and(|decoder| !decoder.is_full())
    }
}

fn numbers<B: Backend>(logits: Tensor<B, 2>) -> Result<Vec<f32>, GenerateError> {
    let read = logits.try_into_data();
    let read = read.map_err(|error| GenerateError::Unread { reason: error.to_string() })?;
    Ok(read.iter::<f32>().collect())
}
