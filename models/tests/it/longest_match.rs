//! Models that read the followers of longest matches.

use std::ops::ControlFlow;
use std::sync::Arc;

use burn::module::Param;
use burn::tensor::{Int, Tensor, TensorData};
use models::dropout::DropoutKey;
use models::random::Random;
use models::{Adjustment, Continuation, Continuing, Continuous};
use models::{
    Decoder, Gpt, GptConfig, Input, Lean, Lookup, Matching, Overflow, PassOptions, Plain, Request, Sampling,
    Stretch, generate, weights,
};

use crate::alone::is_alone;
use crate::fixtures::{Cpu, DEVICE, batch, model, normal, numbers, shrunk};

#[derive(Debug)]
struct Guesses;

#[derive(Debug, Default)]
struct Last([u32; 3]);

impl Lookup for Guesses {
    fn begin(&self) -> Box<dyn Matching> {
        Box::new(Last::default())
    }
}

impl Matching for Last {
    fn follower_after(&mut self, token: u32) -> Option<u32> {
        self.0.rotate_left(1);
        self.0[2] = token;
        let sum = self.0.iter().fold(7_u32, |sum, token| sum.wrapping_mul(31).wrapping_add(*token));
        match sum % 5 {
            0 => None,
            1 => Some(u32::MAX),
            _ => Some(sum % 61),
        }
    }
}

fn looking_up(preset: &str) -> GptConfig {
    GptConfig { longest_match: true, ..shrunk(preset) }
}

fn learned(config: &GptConfig) -> Gpt<Cpu> {
    let mut model = Gpt::<Cpu>::new(config, 5, &DEVICE).expect("valid");
    let table = normal([config.vocab_size + 1, config.n_embd], 9, burn::tensor::DType::F32);
    model.followers = Some(Param::from_tensor(table));
    model
}

fn looked_up(tokens: &[u32]) -> Vec<u32> {
    let mut text = Guesses.begin();
    tokens.iter().map(|token| text.follower_after(*token).filter(|id| *id < 61).unwrap_or(61)).collect()
}

fn ids(ids: &[u32]) -> Tensor<Cpu, 2, Int> {
    let data: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
    Tensor::from_data(TensorData::new(data, [1, ids.len()]), &DEVICE)
}

fn from_scratch(model: &Gpt<Cpu>, tokens: &[u32], followers: Option<&[u32]>) -> Vec<f64> {
    let input = Input { tokens: ids(tokens), followers: followers.map(ids), rows: None };
    let logits = model.forward(input, &Plain::default());
    numbers(&logits.slice_dim(1, tokens.len() - 1..tokens.len()))
}

fn greedy(
    model: &Gpt<Cpu>,
    prompts: &[Vec<u32>],
    count: usize,
    lookup: Option<&dyn Lookup>,
) -> Vec<Vec<u32>> {
    let request = Request {
        sampling: Sampling::greedy(),
        overflow: Overflow::Slide,
        lookup,
        ..Request::new(prompts, count)
    };
    let answers = generate(model, &request, |_| ControlFlow::Continue(())).expect("it fits");
    answers.into_iter().map(|answer| answer.tokens).collect()
}

fn greedy_from_scratch(model: &Gpt<Cpu>, prompt: &[u32], count: usize, looks_up: bool) -> Vec<u32> {
    let window = model.config().n_positions;
    let (mut text, mut first) = (prompt.to_vec(), 0);
    for _ in 0..count {
        if text.len() - first > window {
            first = text.len() - window / 2;
        }
        // The match is the whole text's, also outside the window.
        let followers = looked_up(&text);
        let logits = from_scratch(model, &text[first..], looks_up.then_some(&followers[first..]));
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]).then(b.cmp(a)));
        text.push(best.expect("a vocabulary") as u32);
    }
    text[prompt.len()..].to_vec()
}

fn prompts() -> Vec<Vec<u32>> {
    let mut random = Random::new(4);
    let mut prompt = |length: usize| (0..length).map(|_| (random.bits() % 61) as u32).collect();
    vec![prompt(9), prompt(1), prompt(4), prompt(17)]
}

#[test]
fn an_untrained_follower_table_changes_no_loss() {
    for preset in ["gpt2", "llama-1.1b", "nanochat"] {
        let (with, without) = (model(&looking_up(preset)), model(&shrunk(preset)));
        let loss = |gpt: &Gpt<_>| {
            numbers(&gpt.loss(batch(&looking_up(preset), 2, 11), &PassOptions::default(), &Lean::default()))
        };
        assert_eq!(loss(&with), loss(&without), "{preset}");
    }
}

#[test]
fn a_follower_changes_no_earlier_logits() {
    let model = learned(&looking_up("llama-1.1b"));
    let tokens = [3, 1, 4, 1, 5, 9];
    let logits = |followers: [u32; 6]| {
        let input = Input { tokens: ids(&tokens), followers: Some(ids(&followers)), rows: None };
        numbers(&model.forward(input, &Plain::default()))
    };
    let (one, other) = (logits([61, 61, 2, 61, 61, 61]), logits([61; 6]));
    assert_eq!(one[..2 * 61], other[..2 * 61]);
    for position in 2..6 {
        assert_ne!(one[position * 61..][..61], other[position * 61..][..61], "position {position}");
    }
    assert_eq!(other[5 * 61..], from_scratch(&model, &tokens, None), "without followers nothing matches");
}

#[test]
fn decoding_with_matches_equals_a_full_forward_pass() {
    for preset in ["gpt2", "llama-1.1b", "nanochat"] {
        let model = learned(&looking_up(preset));
        // A batch within the window of 24; single prompts that slide it.
        for (count, together) in [(7, true), (33, false)] {
            let anew = |looks_up| -> Vec<_> {
                let each = prompts().into_iter();
                each.map(|prompt| greedy_from_scratch(&model, &prompt, count, looks_up)).collect()
            };
            let cached = |lookup: Option<&dyn Lookup>| {
                if together {
                    return greedy(&model, &prompts(), count, lookup);
                }
                prompts().into_iter().flat_map(|prompt| greedy(&model, &[prompt], count, lookup)).collect()
            };
            assert_eq!(cached(Some(&Guesses)), anew(true), "{preset}");
            assert_eq!(cached(None), anew(false), "{preset}");
            assert_ne!(anew(true), anew(false), "{preset}: the matches say something");
        }
    }
}

#[test]
fn each_sequence_of_a_continuous_batch_looks_up_its_own_text() {
    let model = learned(&GptConfig { n_positions: 96, ..looking_up("nanochat") });
    for (piece, room) in [(1, 1000), (3, 600), (64, 500)] {
        let mut batch = Continuous::new(&model, piece, room).looking_up(Some(Arc::new(Guesses)));
        let mut prompts = prompts();
        let long: Vec<u32> = (0..40).map(|at| at * 3 % 61).collect();
        prompts.extend([long.clone(), [&long[..35], &[8, 8]].concat()]);
        let mut answers = vec![Vec::new(); prompts.len()];
        let mut reused = 0;

        for step in 0.. {
            if let Some(prompt) = prompts.get(step) {
                let prompt = prompt.clone();
                let (sampling, adjustment) = (Sampling::greedy(), Adjustment::default());
                let wanted = Continuation {
                    prompt,
                    sampling,
                    adjustment,
                    row: 0,
                    alternatives: None,
                    max_tokens: 6,
                    score_prompt: false,
                    constraint: None,
                };
                batch.join(step as u64, wanted).expect("it fits");
            } else if batch.is_empty() {
                break;
            }
            for (key, chosen) in batch.step().expect("it fits") {
                reused += chosen.prompt.map_or(0, |prompt| prompt.cached);
                answers[key as usize].push(chosen.token);
                if answers[key as usize].len() == 6 {
                    batch.leave(key);
                }
            }
        }

        assert!(reused > 0, "piece {piece}");
        for (prompt, answer) in prompts.iter().zip(&answers) {
            assert_eq!(*answer, greedy_from_scratch(&model, prompt, 6, true), "piece {piece}");
        }
    }
}

#[test]
fn padded_prompts_keep_their_own_followers() {
    let model = learned(&looking_up("gpt2"));
    let prompts = prompts();
    let followers: Vec<_> = prompts.iter().map(|prompt| looked_up(prompt)).collect();
    let rows = prompts.iter().zip(&followers).enumerate().map(|(row, (tokens, followers))| {
        let followers = (row != 2).then_some(followers.as_slice());
        Stretch { tokens, followers }
    });
    let rows: Vec<_> = rows.collect();
    let (_, logits) = Decoder::with_prompts(&model, &rows, 24).expect("it fits");
    for (row, stretch) in rows.iter().enumerate() {
        let alone = from_scratch(&model, stretch.tokens, stretch.followers);
        let together = numbers(&logits.clone().slice_dim(0, row..row + 1));
        let apart = alone.iter().zip(&together).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(apart <= 1e-5, "row {row}: logits {apart:.1e} apart");
    }
}

#[test]
fn training_hides_the_configured_share_of_matches() {
    if !is_alone() {
        return;
    }
    let count = |config: &GptConfig, key| {
        let model = model(config);
        let table = model.followers.as_ref().expect("it looks up").id;
        let options = PassOptions { dropout: key, ..PassOptions::default() };
        let mut batch = batch(config, 8, 20);
        batch.inputs.followers = Some(Tensor::full([8, 20], 3, &DEVICE));
        let grads = model.loss(batch, &options, &Lean::default()).backward();
        let grads = burn::optim::GradientsParams::from_grads(grads, &model);
        let table = numbers(&grads.get::<Cpu, 2>(table).expect("it is trained"));
        let share = |row: usize| table[row * 32..][..32].iter().any(|value| *value != 0.0);
        (0..62).filter(|row| share(*row)).collect::<Vec<_>>()
    };
    let config = |rate| GptConfig { match_pdrop: rate, ..looking_up("llama-1.1b") };
    let key = |step| Some(DropoutKey { seed: 1, step, micro_batch: 0 });
    assert_eq!(count(&config(0.5), None), [3], "without a key nothing is hidden");
    assert_eq!(count(&config(0.0), key(1)), [3]);
    assert_eq!(count(&config(0.5), key(1)), [3, 61], "hidden ones look as if there was no match");
    assert_eq!(count(&config(0.99), key(1)).last(), Some(&61));
}

#[test]
fn a_wider_vocabulary_keeps_every_follower_and_the_row_for_none() {
    let model = learned(&looking_up("llama-1.1b"));
    let tokens = [3, 1, 4, 1, 5];
    let before = from_scratch(&model, &tokens, Some(&[2, 60, 61, 0, 61]));
    let wider = model.with_vocabulary(61..64, 64);
    let after = from_scratch(&wider, &tokens, Some(&[2, 60, 64, 0, 64]));
    assert_eq!(before[..], after[..61]);
    assert_eq!(wider.followers.as_ref().expect("it looks up").dims(), [65, 32]);
}

#[test]
fn the_follower_table_is_saved_in_the_native_layout_only() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let model = learned(&looking_up("llama-1.1b"));
    let path = directory.path().join("model.safetensors");
    weights::save(&model, &path, weights::Layout::Native, weights::Stored::F32).expect("saves");
    let again: Gpt<Cpu> = weights::load_native(&path, &DEVICE).expect("loads");
    let table = |model: &Gpt<Cpu>| numbers(&model.followers.as_ref().expect("it looks up").val());
    assert_eq!(table(&again), table(&model));
    let error = weights::save_pretrained(&model, directory.path(), weights::Stored::F32);
    let error = error.expect_err("no class of transformers has it").to_string();
    assert!(error.contains("it lacks `longest_match` = true"), "{error}");
}
