//! Questions that are not in the training data, with answers.

use tokenizer::{Message, Tokenizer, dialogues::Dialogues};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Question {
    pub(crate) prompt: Vec<u32>,
    pub(crate) answer: String,
}

/// Unlikely as a training seed.
const SEED: u64 = 0x5155_495A;

/// `count` questions in known forms, and as many in forms unknown to training.
pub(crate) fn questions(tokenizer: &Tokenizer, count: usize) -> Result<[Vec<Question>; 2], tokenizer::Error> {
    let of = |dialogues: Dialogues| {
        dialogues.take(count).map(|messages| question(tokenizer, &messages)).collect::<Result<Vec<_>, _>>()
    };
    Ok([of(Dialogues::reserved(SEED))?, of(Dialogues::held_out(SEED))?])
}

fn question(tokenizer: &Tokenizer, messages: &[Message]) -> Result<Question, tokenizer::Error> {
    let [asked, answered, ..] = messages else { unreachable!("every dialogue is asked and answered") };
    let prompt = tokenizer.encode_prompt(std::slice::from_ref(asked))?;
    Ok(Question { prompt, answer: answered.content.clone() })
}
