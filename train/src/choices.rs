//! Multiple-choice questions, answered by the likelihood of each choice.
//!
//! A choice's score is the log-likelihood of its tokens after the context: as a sum, and per byte of its text, whatever
//! the vocabulary. Each choice is computed alone: no score depends on other questions
//! (`choices_score_the_same_in_any_company`).

use std::fmt;
use std::path::Path;

use anyhow::{Context, bail};
use burn::tensor::backend::Backend;
use burn_train::InferenceStep;
use durable::regular;
use runs::BadInput;
use serde::{Deserialize, Serialize};
use tokenizer::{Tokenizer, Window};

use crate::data::MicroBatch;
use crate::training::Learner;

const MAX_BYTES: u64 = 1 << 30;
/// Kernels are tuned by shape: lengths are rounded up.
const LENGTHS: usize = 32;

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Question {
    context: String,
    choices: Vec<String>,
    answer: usize,
}

#[derive(Debug)]
pub(crate) struct Task(Vec<Question>);

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Score {
    questions: usize,
    /// Right answers by the sum of log-likelihoods.
    right: usize,
    /// Right answers by the log-likelihood per byte.
    right_by_byte: usize,
}

impl Task {
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text =
            regular::read_text(path, MAX_BYTES).with_context(|| format!("reading {}", path.display()))?;
        let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
        let questions = lines.map(|(line, number)| {
            question(line).map_err(|reason| {
                BadInput(format!(
                    "{} line {number}: {reason}. Each line is a JSON object with `context`, a text, `choices`, two texts or \
                     more, and `answer`, the number of the right one from 0",
                    path.display()
                ))
            })
        });
        let questions = questions.collect::<Result<Vec<_>, _>>()?;
        if questions.is_empty() {
            bail!(BadInput(format!("{} holds no question", path.display())));
        }
        Ok(Self(questions))
    }
}

fn question(line: &str) -> Result<Question, String> {
    let question: Question = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let count = question.choices.len();
    if count < 2 || question.answer >= count {
        return Err(format!("has {count} choices and the answer {}", question.answer));
    }
    match question.choices.iter().position(String::is_empty) {
        Some(at) => Err(format!("choice {at} is empty")),
        None => Ok(question),
    }
}

pub(crate) fn score<B: Backend>(
    learner: &Learner<B>,
    tokenizer: &Tokenizer,
    Task(questions): &Task,
) -> anyhow::Result<Score> {
    let mut score = Score { questions: questions.len(), ..Score::default() };
    for question in questions {
        let likelihoods = question
            .choices
            .iter()
            .map(|choice| likelihood(learner, tokenizer, &question.context, choice))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let per_byte =
            likelihoods.iter().zip(&question.choices).map(|(sum, choice)| sum / choice.len() as f64);
        score.right += usize::from(best(likelihoods.iter().copied()) == Some(question.answer));
        score.right_by_byte += usize::from(best(per_byte) == Some(question.answer));
    }
    Ok(score)
}

/// First of the likeliest.
fn best(scores: impl Iterator<Item = f64>) -> Option<usize> {
    scores.enumerate().reduce(|best, next| if next.1 > best.1 { next } else { best }).map(|(at, _)| at)
}

/// A long context loses its beginning.
fn likelihood<B: Backend>(
    learner: &Learner<B>,
    tokenizer: &Tokenizer,
    context: &str,
    choice: &str,
) -> anyhow::Result<f64> {
    let positions = learner.gpt.config().n_positions;
    let (mut ids, first) = encoded(tokenizer, context, choice)?;
    let asked = ids.len() - first;
    if asked >= positions {
        bail!(BadInput(format!("a choice has {asked} tokens, and the model reads {positions} at once")));
    }
    ids.drain(..ids.len().saturating_sub(positions + 1));

    let targets = ids.len() - 1;
    let length = targets.next_multiple_of(LENGTHS).min(positions);
    let mut mask = vec![false; length];
    mask[targets - asked..targets].fill(true);
    ids.resize(length + 1, ids[targets]);
    let window = Window { x: ids[..length].to_vec(), y: ids[1..].to_vec(), mask: Some(mask) };
    let mut batch = MicroBatch::new(&[window]);
    let config = learner.gpt.config();
    batch.followers = config.longest_match.then(|| vec![config.vocab_size as i32; length]);
    let measured = learner.step(batch);
    match measured.failure {
        Some(failure) => bail!("a choice could not be scored: {failure}"),
        None => Ok(-measured.sum),
    }
}

/// Tokens of both, and where the choice's begin. Blanks at the context's end belong to the choice.
fn encoded(tokenizer: &Tokenizer, context: &str, choice: &str) -> anyhow::Result<(Vec<u32>, usize)> {
    let opening = context.trim_end_matches(' ');
    let choice = format!("{}{choice}", &context[opening.len()..]);
    let before = runs::opening(tokenizer, opening)?;
    let whole = runs::opening(tokenizer, &format!("{opening}{choice}"))?;
    if whole.starts_with(&before) && whole.len() > before.len() {
        return Ok((whole, before.len()));
    }
    // A token spans both.
    let mut ids = before;
    let first = ids.len();
    ids.extend(tokenizer.encode(&choice)?);
    Ok((ids, first))
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { questions, right, right_by_byte } = *self;
        let percent = |right: usize| 100.0 * right as f64 / questions as f64;
        let share = right as f64 / questions as f64;
        let error = 100.0 * (share * (1.0 - share) / questions as f64).sqrt();
        write!(
            f,
            "{questions} questions: {:.1} % right by likelihood (standard error {error:.1}), {:.1} % by likelihood per byte",
            percent(right),
            percent(right_by_byte)
        )
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::{Flex, flex::FlexDevice};
    use models::Gpt;
    use runs::config::Config;

    use super::*;

    fn learner(positions: usize) -> Learner<Flex> {
        let description = serde_json::json!({
            "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": positions, "vocab_size": 261},
            "tokenizer": {"kind": "bytes"},
        });
        let config = Config::from_text(&description.to_string(), "a tiny run", &[]).expect("valid");
        let gpt = Gpt::<Flex>::new(&config.model, 1, &FlexDevice).expect("valid");
        Learner::new(gpt, &config)
    }

    fn task(lines: &str) -> anyhow::Result<Task> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), lines).expect("writing");
        Task::read(file.path())
    }

    #[test]
    fn choices_score_the_same_in_any_company() {
        let (learner, tokenizer) = (learner(64), Tokenizer::bytes(&tokenizer::CHAT_SPECIALS));
        let alone = |choice| likelihood(&learner, &tokenizer, "The sky is", choice).expect("scored");
        let [blue, green] = [" blue", " green as grass"].map(alone);
        assert!(blue < 0.0 && green < blue, "fewer tokens are likelier at first: {blue} {green}");
        assert!((blue / 5.0 + 261_f64.ln()).abs() < 0.5, "{blue}");
        let line = r#"{"context": "The sky is", "choices": [" green as grass", " blue"], "answer": 1}"#;
        let score = |lines: &str| score(&learner, &tokenizer, &task(lines).expect("a task")).expect("scored");
        assert_eq!(score(line).right, 1);
        let other = r#"{"context": "x", "choices": ["aaaaaaaa", "b"], "answer": 0}"#;
        let [first, many] = [score(other), score(&format!("{other}\n{line}\n\n{line}"))];
        assert_eq!((many.questions, many.right), (3, first.right + 2));
        assert_eq!(alone(" blue").to_bits(), blue.to_bits());
    }

    #[test]
    fn blanks_between_context_and_choice_belong_to_the_choice() {
        let tokenizer = Tokenizer::bytes(&tokenizer::CHAT_SPECIALS);
        for (context, choice) in [("a ", "b"), ("a", " b")] {
            let (ids, first) = encoded(&tokenizer, context, choice).expect("encoded");
            assert_eq!(ids[first..], [u32::from(b' '), u32::from(b'b')]);
        }
    }

    #[test]
    fn a_long_context_loses_its_beginning_and_a_long_choice_is_refused() {
        let (learner, tokenizer) = (learner(32), Tokenizer::bytes(&tokenizer::CHAT_SPECIALS));
        let scored = |context: &str, choice: &str| likelihood(&learner, &tokenizer, context, choice);
        let long = "y".repeat(40);
        let shorter = scored(&long[..32], "z").expect("scored");
        assert_eq!(scored(&long, "z").expect("scored").to_bits(), shorter.to_bits());
        assert!(scored("y", &long).is_err());
    }

    #[test]
    fn a_bad_question_names_file_line_and_what_was_expected() {
        let good = r#"{"context": "a", "choices": ["b", "c"], "answer": 0}"#;
        for bad in [
            "{",
            r#"{"context": "a", "choices": ["b", "c"]}"#,
            r#"{"context": "a", "choices": ["b", "c"], "answer": 2}"#,
            r#"{"context": "a", "choices": ["b", ""], "answer": 0}"#,
        ] {
            let refused = task(&format!("{good}\n{bad}")).expect_err("refused").to_string();
            assert!(refused.contains(" line 2: ") && refused.contains("`choices`"), "{refused}");
        }
    }
}
