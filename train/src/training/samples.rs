//! A run's samples, and its score in the quiz of the embedded corpus.

use std::fmt;
use std::ops::ControlFlow;

use backend_offload::{Managed, Offloadable};
use burn::module::AutodiffModule;
use burn::tensor::backend::Backend;
use models::{Gpt, Reader, Sampling, WholeReader};
use runs::config::{Config, EvalSection};
use runs::{Prompt, TEXTS_AT_ONCE, TextGenerator};
use serde::Serialize;
use serde_json::json;

use super::pipeline::spoken_by_stages;
use super::{Learner, Session, Trainer};
use crate::data::{Data, Question, questions};
use crate::optimizer::{GatherSession, WeightWindow};
use crate::ranks::Ranks;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Sample {
    pub(crate) prompt: String,
    pub(crate) text: String,
}

/// Right word for word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Score {
    pub(crate) right: usize,
    pub(crate) asked: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct QuizScore {
    /// Known forms, about subjects never asked in that form.
    pub(crate) held_out: Score,
    /// Forms unknown to training.
    pub(crate) unseen_phrasings: Score,
}

impl fmt::Display for QuizScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (held_out, unseen) = (self.held_out, self.unseen_phrasings);
        write!(
            f,
            "questions never asked in training: {} of {} right; in phrasings never seen: {} of {}",
            held_out.right, held_out.asked, unseen.right, unseen.asked
        )
    }
}

pub(crate) fn speaker<'a, B: Backend>(
    gpt: &'a Gpt<B>,
    data: &'a Data,
    eval: &EvalSection,
    seed: u64,
) -> TextGenerator<'a, B> {
    let sampling = Sampling { temperature: eval.temperature, top_k: eval.top_k, seed, ..Sampling::default() };
    speaking(gpt, data, sampling, eval.max_new_tokens)
}

fn speaking<'a, B: Backend>(
    gpt: &'a Gpt<B>,
    data: &'a Data,
    sampling: Sampling,
    max_new_tokens: usize,
) -> TextGenerator<'a, B> {
    TextGenerator {
        gpt,
        tokenizer: &data.tokenizer,
        sampling,
        max_new_tokens,
        stop: &[],
        lookup: data.lookup(),
    }
}

pub(crate) fn prompts<B: Backend>(
    speaker: &TextGenerator<'_, B>,
    eval: &EvalSection,
) -> anyhow::Result<Vec<(String, Prompt)>> {
    let mut prompts = Vec::new();
    for text in &eval.prompts {
        prompts.push((text.clone(), Prompt::text(speaker.tokenizer, text)?));
    }
    for question in &eval.questions {
        prompts.push((question.clone(), Prompt::question(speaker.tokenizer, question)?));
    }
    Ok(prompts)
}

pub(crate) fn samples<B: Backend>(
    speaker: &TextGenerator<'_, B>,
    reader: &mut dyn Reader,
    eval: &EvalSection,
) -> anyhow::Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for prompts in prompts(speaker, eval)?.chunks(TEXTS_AT_ONCE) {
        let ids: Vec<_> = prompts.iter().map(|(_, prompt)| prompt.ids().to_vec()).collect();
        let completions = speaker.speak_by(reader, &ids, |_| ControlFlow::Continue(()))?;
        for ((text, prompt), completion) in prompts.iter().zip(&completions) {
            samples.push(Sample { prompt: text.clone(), text: speaker.text(prompt, completion)? });
        }
    }
    Ok(samples)
}

pub(crate) fn most_passes(count: usize, max_new_tokens: usize) -> usize {
    count.div_ceil(TEXTS_AT_ONCE) * max_new_tokens
}

/// `count` questions of either kind, without randomness. `reader` reads for `gpt`.
pub(crate) fn quiz<B: Backend>(
    gpt: &Gpt<B>,
    reader: &mut dyn Reader,
    data: &Data,
    count: usize,
    max_new_tokens: usize,
) -> anyhow::Result<QuizScore> {
    let speaker = speaking(gpt, data, Sampling::greedy(), max_new_tokens);
    let [held_out, unseen] = questions(&data.tokenizer, count)?;
    let held_out = right(&speaker, reader, &held_out)?;
    Ok(QuizScore { held_out, unseen_phrasings: right(&speaker, reader, &unseen)? })
}

fn right<B: Backend>(
    speaker: &TextGenerator<'_, B>,
    reader: &mut dyn Reader,
    questions: &[Question],
) -> anyhow::Result<Score> {
    let mut score = Score { right: 0, asked: questions.len() };
    for questions in questions.chunks(TEXTS_AT_ONCE) {
        let prompts: Vec<Vec<u32>> = questions.iter().map(|question| question.prompt.clone()).collect();
        let completions = speaker.speak_by(reader, &prompts, |_| ControlFlow::Continue(()))?;
        for (question, completion) in questions.iter().zip(completions) {
            score.right += usize::from(speaker.words(&completion.tokens)? == question.answer);
        }
    }
    Ok(score)
}

impl<I: Offloadable> Trainer<I> {
    pub(super) fn sample(&mut self) -> anyhow::Result<()> {
        self.optimizer.settle()?;
        let Some(samples) = self.spoken()? else { return Ok(()) };
        let step = self.session.progress.step;
        let mut text = String::new();

        for sample in &samples {
            self.say(&format!("  {} → {}", sample.prompt, sample.text));
            for part in [&sample.prompt, "\n", &sample.text, "\n\n"] {
                text.push_str(part);
            }
            let mut record = json!(sample);
            record["step"] = json!(step);
            self.tell("sample", &record);
        }

        if !samples.is_empty() {
            let folder = self.session.run.join("samples");
            let path = folder.join(format!("step-{step:08}.txt"));
            let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, text));
            if let Err(error) = written {
                self.say(&format!("writing {}: {error}; training continues", path.display()));
            }
        }
        Ok(())
    }

    /// On rank 0. Stages repeat after a survivable loss of ranks.
    fn spoken(&mut self) -> anyhow::Result<Option<Vec<Sample>>> {
        let seed = self.session.config.train.seed.wrapping_add(self.session.progress.step);
        loop {
            let Session { config: Config { eval, .. }, data, .. } = &self.session;
            let inner = self.model.valid();
            let speaker = speaker(&inner.gpt, data, eval, seed);
            let passes = most_passes(eval.prompts.len() + eval.questions.len(), eval.max_new_tokens);
            let speak = |reader: &mut dyn Reader| samples(&speaker, reader, eval);
            let window = self.optimizer.window.as_ref();
            match generate_on_ranks(&inner, (window, passes), &mut self.ranks, speak) {
                Err(error) if self.ranks.form_pipelines() => self.repeat_after(error)?,
                spoken => return spoken,
            }
        }
    }
}

/// Whether other ranks than rank 0 take part when it speaks, since each has weights of its own.
pub(crate) fn all_ranks_generate<I: Backend>(window: Option<&WeightWindow<I>>, ranks: &Ranks) -> bool {
    window.is_some() || ranks.form_pipelines()
}

/// What `speak` returns on rank 0; `None` on others. If it fails on one rank, all that take part fail. It takes at most
/// `passes` if ranks gather weights.
pub(crate) fn generate_on_ranks<I: Managed, T>(
    learner: &Learner<I>,
    (window, passes): (Option<&WeightWindow<I>>, usize),
    ranks: &mut Ranks,
    speak: impl FnOnce(&mut dyn Reader) -> anyhow::Result<T>,
) -> anyhow::Result<Option<T>> {
    if ranks.form_pipelines() {
        return spoken_by_stages(learner, ranks, speak);
    }
    let session = GatherSession::begin(window, ranks)?;
    let spoken = speak(&mut WholeReader::new(&learner.gpt));
    let spoken = session.end_after(passes, spoken, ranks);
    // Without a window rank 0 speaks alone.
    let spoken = if window.is_some() { ranks.if_all_succeeded(spoken)? } else { spoken? };
    Ok(ranks.leads().then_some(spoken))
}
