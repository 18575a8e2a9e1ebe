//! Generated conversations: a corpus without a download.
//!
//! To tell a model from a table of its text, training lacks a tenth of the filled-in forms ([`Dialogues::reserved`])
//! and a few forms ([`Dialogues::held_out`]). A dialogue depends on seed and number alone.

mod topics;

use std::path::Path;

use topics::{TOPICS, Topic};

use crate::{
    chat::message::{Message, Role},
    error::Error,
    permutation::mix,
};

/// Endless conversations of one to three questions.
#[derive(Clone, Debug)]
pub struct Dialogues {
    seed: u64,
    next: u64,
    part: Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Training,
    Reserved,
    HeldOut,
}

pub(crate) struct Draws {
    key: u64,
    drawn: u64,
}

impl Draws {
    fn below(&mut self, end: usize) -> usize {
        self.drawn += 1;
        (mix(self.key, self.drawn) % end as u64) as usize
    }

    fn pick<'i, T>(&mut self, items: &'i [T]) -> &'i T {
        &items[self.below(items.len())]
    }
}

impl Dialogues {
    /// Training questions.
    pub fn training(seed: u64) -> Self {
        Self { seed, next: 0, part: Part::Training }
    }

    /// Single questions in [`training`](Self::training)'s forms, with words that it never uses in them.
    pub fn reserved(seed: u64) -> Self {
        Self { seed, next: 0, part: Part::Reserved }
    }

    /// Questions in forms that [`training`](Self::training) never uses.
    pub fn held_out(seed: u64) -> Self {
        Self { seed, next: 0, part: Part::HeldOut }
    }

    /// Uniform, except in training.
    fn topic(&self, draws: &mut Draws) -> &'static Topic {
        if self.part != Part::Training {
            return draws.pick::<&Topic>(TOPICS);
        }
        let mut drawn = draws.below(TOPICS.iter().map(|topic| topic.share).sum());
        for topic in TOPICS {
            match drawn.checked_sub(topic.share) {
                Some(left) => drawn = left,
                None => return topic,
            }
        }
        unreachable!("a number below the sum of all shares falls into one")
    }

    fn exchange(&self, draws: &mut Draws) -> [Message; 2] {
        loop {
            let topic = self.topic(draws);
            let forms = if self.part == Part::HeldOut { topic.held_out } else { topic.training };
            let form = *draws.pick(forms);
            let (slots, answer) = (topic.draw)(draws);
            let question = slots
                .iter()
                .enumerate()
                .fold(form.to_owned(), |question, (at, slot)| question.replace(&format!("{{{at}}}"), slot));
            let reserved = !slots.is_empty() && is_reserved(&question);
            if self.part == Part::HeldOut || reserved == (self.part == Part::Reserved) {
                return [
                    Message::new(Role::User, capitalised(&question)),
                    Message::new(Role::Assistant, capitalised(&answer)),
                ];
            }
        }
    }
}

fn is_reserved(question: &str) -> bool {
    question.bytes().fold(RESERVED_SEED, |hash, byte| mix(hash, u64::from(byte))).is_multiple_of(10)
}

/// Decides which questions are reserved.
const RESERVED_SEED: u64 = 0x7265_7365_7276_6564;

impl Iterator for Dialogues {
    type Item = Vec<Message>;

    fn next(&mut self) -> Option<Vec<Message>> {
        let mut draws = Draws { key: mix(self.seed, self.next), drawn: 0 };
        self.next += 1;
        let questions = if self.part == Part::Reserved { 1 } else { *draws.pick(&[1, 1, 2, 3]) };
        Some((0..questions).flat_map(|_| self.exchange(&mut draws)).collect())
    }
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// Writes `count` training dialogues as JSON lines, `{"messages": […]}`, for [`crate::Preparation`].
pub fn write_json_lines(path: impl AsRef<Path>, count: usize, seed: u64) -> Result<(), Error> {
    let mut lines = Vec::new();
    for messages in Dialogues::training(seed).take(count) {
        let line = serde_json::json!({ "messages": messages });
        lines.extend_from_slice(line.to_string().as_bytes());
        lines.push(b'\n');
    }
    let path = path.as_ref();
    durable::write(path, &lines).map_err(Error::write(path))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn questions(dialogues: Dialogues, count: usize) -> HashSet<String> {
        let messages = dialogues.take(count).flatten();
        messages.filter(|message| message.role == Role::User).map(|message| message.content).collect()
    }

    #[test]
    fn held_out_questions_are_never_asked_in_training() {
        let training = questions(Dialogues::training(1), 20_000);
        let reserved = questions(Dialogues::reserved(2), 5_000);
        let held_out = questions(Dialogues::held_out(1), 20_000);
        assert!(training.is_disjoint(&held_out) && training.is_disjoint(&reserved));
        assert!(training.len() > 500 && held_out.len() > 300, "{} and {}", training.len(), held_out.len());
        assert!((100..250).contains(&reserved.len()), "{}", reserved.len());
    }

    #[test]
    fn every_slot_is_filled() {
        for topic in TOPICS {
            for forms in [topic.training, topic.held_out] {
                assert!(forms.len() >= 2, "{forms:?}");
            }
        }
        let all = Dialogues::training(3).take(2000).chain(Dialogues::held_out(3).take(2000)).flatten();
        all.for_each(|message| assert!(!message.content.contains(['{', '}']), "{}", message.content));
    }

    #[test]
    fn a_question_has_one_right_answer() {
        let mut answers = std::collections::HashMap::new();
        for messages in Dialogues::training(5).take(20_000) {
            for exchange in messages.chunks(2) {
                let [question, answer] = exchange else { panic!("questions and answers alternate") };
                let first = answers.entry(question.content.clone()).or_insert_with(|| answer.content.clone());
                assert_eq!(*first, answer.content, "{}", question.content);
            }
        }
    }

    #[test]
    fn training_asks_most_about_sums_and_held_out_asks_topics_equally() {
        let share_of_sums = |dialogues: Dialogues| {
            let answers: Vec<_> =
                dialogues.take(5000).flatten().filter(|message| message.role == Role::Assistant).collect();
            let sums = answers.iter().filter(|answer| answer.content.contains(" plus ")).count();
            sums as f64 / answers.len() as f64
        };
        let (training, quiz) = (share_of_sums(Dialogues::training(9)), share_of_sums(Dialogues::held_out(9)));
        assert!((0.19..0.24).contains(&training) && (0.07..0.10).contains(&quiz), "{training} and {quiz}");
    }

    #[test]
    fn a_seed_gives_one_series_of_any_length() {
        let some: Vec<_> = Dialogues::training(7).take(50).collect();
        assert_eq!(some[..20], Dialogues::training(7).take(20).collect::<Vec<_>>());
        assert_ne!(some, Dialogues::training(8).take(50).collect::<Vec<_>>());
    }
}
