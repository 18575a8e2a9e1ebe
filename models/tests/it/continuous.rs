//! A continuous batch gives each sequence its own tokens.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use burn_flex::Flex;
use models::random::Random;
use models::{Adjustment, Chosen, Constraint, Continuation, Continuing, Continuous, Likelihood, PromptRead};
use models::{Decoder, Gpt, GptConfig, Request, Sampling, generate};

use crate::fixtures::{Cpu, DEVICE, numbers, shrunk, unusual};

fn every_family() -> [GptConfig; 4] {
    [shrunk("gpt2"), shrunk("llama-1.1b"), shrunk("nanochat"), unusual()]
}

fn alone(model: &Gpt<Cpu>, prompt: &[u32], count: usize, sampling: Sampling) -> Vec<u32> {
    let prompts = [prompt.to_vec()];
    let request = Request { sampling, ..Request::new(&prompts, count) };
    let mut answers = generate(model, &request, |_| ControlFlow::Continue(())).expect("it fits");
    answers.remove(0).tokens
}

fn wanted(prompt: &[u32], sampling: Sampling) -> Continuation {
    let adjustment = Adjustment::default();
    Continuation {
        prompt: prompt.to_vec(),
        sampling,
        adjustment,
        row: 0,
        alternatives: None,
        max_tokens: 16,
        score_prompt: false,
        constraint: None,
    }
}

fn long(mut config: GptConfig, n_positions: usize) -> GptConfig {
    config.n_positions = n_positions;
    config
}

fn text(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|at| (seed * 17 + at * (seed + 3)) % 61).collect()
}

fn first_token(batch: &mut Continuous<'_, Cpu>, key: u64) -> PromptRead {
    loop {
        let found = batch.step().expect("it fits").into_iter().find(|(other, _)| *other == key);
        if let Some((_, Chosen { prompt, .. })) = found {
            return prompt.expect("it comes with the first token");
        }
    }
}

fn cached(batch: &mut Continuous<'_, Cpu>, key: u64, prompt: &[u32]) -> usize {
    batch.join(key, wanted(prompt, Sampling::greedy())).expect("it fits");
    first_token(batch, key).cached
}

struct RandomRequest {
    prompt: Vec<u32>,
    count: usize,
    patience: usize,
    sampling: Sampling,
    arrival: usize,
}

fn random_request(random: &mut Random, config: &GptConfig) -> RandomRequest {
    let below = |random: &mut Random, limit: usize| (random.bits() % limit as u64) as usize;
    let shared = below(random, 3) as u32;
    let length = 1 + below(random, 70);
    let first = if below(random, 2) == 0 { length } else { below(random, length + 1) };
    let prompt =
        (0..length)
            .map(|at| {
                if at < first {
                    (shared * 7 + at as u32) % 61
                } else {
                    below(random, config.vocab_size) as u32
                }
            })
            .collect();
    let count = 1 + below(random, 10);
    let sampling = match below(random, 3) {
        0 => Sampling { seed: random.bits(), top_k: Some(20), temperature: 0.9, ..Sampling::default() },
        1 => Sampling { repetition_penalty: Some(1.3), ..Sampling::greedy() },
        _ => Sampling::greedy(),
    };
    let patience = if below(random, 4) == 0 { below(random, count) } else { count };
    RandomRequest { prompt, count, patience, sampling, arrival: below(random, 30) }
}

#[test]
fn a_continuous_batch_gives_each_request_the_tokens_of_generate() {
    for (seed, config) in every_family().into_iter().enumerate() {
        let config = long(config, 96);
        let model = Gpt::<Flex>::new(&config, 5, &DEVICE).expect("valid");
        let mut reused = 0;
        for programme in 0..4 {
            let mut random = Random::new(seed as u64 * 100 + programme);
            let requests: Vec<RandomRequest> =
                (0..16).map(|_| random_request(&mut random, &config)).collect();
            let (piece, room) =
                ([3, 8, 64, 300][programme as usize], [1536, 1600, 2000, 10_000][programme as usize]);

            let mut batch = Continuous::new(&model, piece, room);
            let mut answers: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
            for step in 0.. {
                for (key, request) in requests.iter().enumerate().filter(|(_, one)| one.arrival == step) {
                    batch.join(key as u64, wanted(&request.prompt, request.sampling)).expect("it fits");
                    answers.insert(key as u64, Vec::new());
                }
                if batch.is_empty() && step > 30 {
                    break;
                }
                for (key, Chosen { token, prompt, .. }) in batch.step().expect("it fits") {
                    reused += prompt.map_or(0, |prompt| prompt.cached);
                    answers.get_mut(&key).expect("it joined").push(token);
                }
                assert!(batch.held() <= room, "{} positions", batch.held());
                for (key, answer) in &answers {
                    let request = &requests[*key as usize];
                    if answer.len() >= request.patience {
                        batch.leave(*key);
                    }
                }
            }

            for (key, answer) in answers {
                let RandomRequest { prompt, count, patience, sampling, .. } = &requests[key as usize];
                let expected = alone(&model, prompt, *count, *sampling);
                assert_eq!(
                    answer[..*patience.min(&answer.len())],
                    expected[..*patience],
                    "{config:?} request {key}"
                );
            }
        }
        assert!(reused > 0, "prompts with a common beginning are read once");
    }
}

#[test]
fn a_known_prompt_is_read_again_from_its_last_token_only() {
    let model = Gpt::<Flex>::new(&long(shrunk("nanochat"), 96), 5, &DEVICE).expect("valid");
    let mut batch = Continuous::new(&model, 64, 1000);
    let prompt = text(1, 40);
    assert_eq!(cached(&mut batch, 1, &prompt), 0);
    assert_eq!(cached(&mut batch, 2, &prompt), 39, "of one under way");
    batch.leave(1);
    batch.leave(2);
    let other = [&prompt[..35], &[60]].concat();
    assert_eq!(cached(&mut batch, 3, &other), 35, "of one that ended");
    batch.clear();
    assert_eq!(cached(&mut batch, 4, &prompt), 0);
}

#[test]
fn a_beginning_below_32_tokens_is_neither_kept_nor_shared() {
    let model = Gpt::<Flex>::new(&long(shrunk("nanochat"), 96), 5, &DEVICE).expect("valid");
    let mut batch = Continuous::new(&model, 64, 1000);
    let prompt = text(1, 40);
    cached(&mut batch, 1, &prompt);
    assert_eq!(cached(&mut batch, 2, &[&prompt[..31], &[60, 60]].concat()), 0, "each chat begins alike");
    batch.leave(1);
    batch.leave(2);
    let held = batch.held();
    assert_eq!(cached(&mut batch, 3, &prompt[..20]), 0);
    batch.leave(3);
    assert_eq!(batch.held(), held, "the short one left nothing");
}

#[test]
fn siblings_read_their_prompt_once() {
    let model = Gpt::<Flex>::new(&long(shrunk("gpt2"), 128), 5, &DEVICE).expect("valid");
    for piece in [8, 64, 1000] {
        let prompt = text(2, 90);
        let mut batch = Continuous::new(&model, piece, 10_000);
        for key in 0..4 {
            let ending = if key < 2 { vec![] } else { vec![key as u32; 3] };
            let sibling = [&prompt[..], &ending].concat();
            batch.join(key, wanted(&sibling, Sampling::greedy())).expect("it fits");
        }
        let mut read = [None; 4];
        while read.contains(&None) {
            for (key, chosen) in batch.step().expect("it fits") {
                if let Some(PromptRead { cached, .. }) = chosen.prompt {
                    read[key as usize] = Some(cached);
                }
            }
        }
        assert_eq!(read, [Some(0), Some(89), Some(90), Some(90)], "pieces of {piece}");
    }
}

#[test]
fn siblings_of_a_sequence_that_leaves_read_on_themselves() {
    let model = Gpt::<Flex>::new(&long(shrunk("gpt2"), 128), 5, &DEVICE).expect("valid");
    let prompt = text(2, 90);
    let mut batch = Continuous::new(&model, 16, 10_000);
    for key in 0..2 {
        batch.join(key, wanted(&prompt, Sampling::greedy())).expect("it fits");
    }
    for _ in 0..3 {
        assert_eq!(batch.step().expect("it fits"), []);
    }
    batch.leave(0);
    assert_eq!(first_token(&mut batch, 1).cached, 48, "three pieces of the first one");
    let expected = alone(&model, &prompt, 2, Sampling::greedy());
    let next = batch.step().expect("it fits");
    assert_eq!(next[0].1.token, expected[1]);
}

#[test]
fn two_hundred_short_chats_after_a_long_one_hold_no_more_than_their_own_positions() {
    let config = GptConfig { n_layer: 1, ..long(shrunk("nanochat"), 4224) };
    let model = Gpt::<Flex>::new(&config, 5, &DEVICE).expect("valid");
    let room = 4224 + 200 * 128;
    let mut batch = Continuous::new(&model, 4096, room);
    let conversation = text(1, 4096);
    cached(&mut batch, 1000, &conversation);
    batch.leave(1000);
    for key in 0..200 {
        let same = if key % 2 == 0 { 40 } else { 10 };
        let prompt = [&conversation[..same], &[60, key as u32 % 61, key as u32 / 61]].concat();
        batch.join(key, wanted(&prompt, Sampling::greedy())).expect("it fits");
    }
    batch.step().expect("it fits");
    assert_eq!(batch.len(), 200);
    assert_eq!(batch.held(), 4096 + 200 * 64);
    for key in 0..200 {
        batch.leave(key);
    }
    // The 100 with 13 tokens leave nothing.
    assert_eq!(batch.held(), 4096 + 100 * 64);
    assert_eq!(cached(&mut batch, 1001, &conversation), 4095, "the conversation is still known");
}

#[test]
fn a_sequence_joins_only_if_its_longest_answer_has_room() {
    let model = Gpt::<Flex>::new(&long(shrunk("gpt2"), 512), 5, &DEVICE).expect("valid");
    let mut batch = Continuous::new(&model, 64, 320);
    let wanted = |max_tokens| Continuation { max_tokens, ..wanted(&[1; 60], Sampling::greedy()) };
    // The last token is not read: 64 and 256 positions.
    batch.join(1, wanted(5)).expect("it fits");
    assert!(batch.has_room(60, 197) && !batch.has_room(60, 198));
    let refused = batch.join(2, wanted(198)).expect_err("320 positions");
    assert!(refused.to_string().contains("320"), "{refused}");
    batch.join(2, wanted(197)).expect("it fits");
    assert!(!batch.has_room(1, 1));
    batch.leave(1);
    assert!(batch.has_room(60, 5), "a kept cache makes room");
}

#[test]
fn a_batch_without_its_caches_continues_as_before() {
    for config in every_family() {
        let model = Gpt::<Flex>::new(&config, 5, &DEVICE).expect("valid");
        let sampling = Sampling { seed: 3, top_k: Some(20), temperature: 0.9, ..Sampling::default() };
        let prompts = [vec![1, 2, 3, 4, 5], vec![9, 8]];
        let mut batch = Continuous::new(&model, 3, 200);
        for (key, prompt) in prompts.iter().enumerate() {
            batch.join(key as u64, wanted(prompt, sampling)).expect("it fits");
        }
        let mut answers = [Vec::new(), Vec::new()];
        for step in 0.. {
            if [1, 2, 5].contains(&step) {
                batch.forget();
            }
            for (key, chosen) in batch.step().expect("it fits") {
                answers[key as usize].push(chosen.token);
            }
            if answers.iter().all(|answer| answer.len() >= 6) {
                break;
            }
        }
        for (prompt, answer) in prompts.iter().zip(&answers) {
            assert_eq!(answer[..6], alone(&model, prompt, 6, sampling));
        }
    }
}

#[test]
fn kept_caches_give_way_to_running_sequences_oldest_first() {
    let model = Gpt::<Flex>::new(&long(shrunk("gpt2"), 256), 5, &DEVICE).expect("valid");
    let mut batch = Continuous::new(&model, 64, 200);
    let prompts: Vec<Vec<u32>> = (0..4).map(|key| text(key, 40)).collect();
    for (key, prompt) in (0..).zip(&prompts) {
        cached(&mut batch, key, prompt);
        batch.leave(key);
        assert!(batch.held() <= 200);
    }
    assert_eq!(cached(&mut batch, 10, &prompts[1]), 39);
    batch.leave(10);
    assert_eq!(cached(&mut batch, 11, &prompts[0]), 0);
}

#[test]
fn a_sequence_never_replaces_another_one() {
    let model = Gpt::<Flex>::new(&shrunk("gpt2"), 5, &DEVICE).expect("valid");
    let mut batch = Continuous::new(&model, 64, 1000);
    batch.join(1, wanted(&[1, 2], Sampling::greedy())).expect("it fits");
    let refused = batch.join(1, wanted(&[3], Sampling::greedy())).expect_err("the key is taken");
    assert!(refused.to_string().contains("key 1"), "{refused}");
    assert_eq!(batch.len(), 1);
}

#[test]
fn a_long_prompt_does_not_stall_other_sequences() {
    let model = Gpt::<Flex>::new(&shrunk("gpt2"), 5, &DEVICE).expect("valid");
    let mut batch = Continuous::new(&model, 4, 1000);
    batch.join(1, wanted(&[1], Sampling::greedy())).expect("it fits");
    batch.step().expect("it fits");
    batch.join(2, wanted(&[2; 14], Sampling::greedy())).expect("it fits");
    let steps: Vec<Vec<u64>> =
        (0..5).map(|_| batch.step().expect("it fits").into_iter().map(|(key, _)| key).collect()).collect();
    assert_eq!(steps, [vec![1], vec![1], vec![1], vec![1, 2], vec![1, 2]]);
}

#[test]
fn likelihoods_sum_to_one_and_are_sorted_best_first() {
    let model = Gpt::<Flex>::new(&unusual(), 5, &DEVICE).expect("valid");
    let mut batch = Continuous::new(&model, 64, 1000);
    let wanted = Continuation { alternatives: Some(61), ..wanted(&[1, 2], Sampling::greedy()) };
    batch.join(1, wanted).expect("it fits");
    let (_, Chosen { token, likelihood, .. }) = batch.step().expect("it fits").remove(0);
    let likelihood = likelihood.expect("it was asked for");
    assert_eq!((token, likelihood.chosen), likelihood.alternatives[0], "greedy takes the likeliest");
    assert!(likelihood.alternatives.is_sorted_by(|a, b| a.1 >= b.1));
    let total: f64 = likelihood.alternatives.iter().map(|(_, log)| log.exp()).sum();
    assert!((total - 1.0).abs() < 1e-9, "{total}");
}

#[test]
fn a_prompts_likelihoods_are_the_models_own_at_any_piece() {
    for config in every_family() {
        let config = long(config, 96);
        let model = Gpt::<Flex>::new(&config, 5, &DEVICE).expect("valid");
        let prompt = text(3, 50);
        let likelihoods = |piece: usize| {
            let mut batch = Continuous::new(&model, piece, 10_000);
            batch.join(1, wanted(&prompt, Sampling::greedy())).expect("it fits");
            first_token(&mut batch, 1);
            batch.leave(1);
            let scored = Continuation {
                alternatives: Some(2),
                score_prompt: true,
                ..wanted(&prompt, Sampling::greedy())
            };
            batch.join(2, scored).expect("it fits");
            first_token(&mut batch, 2)
        };
        let PromptRead { cached, likelihoods: found } = likelihoods(64);
        assert_eq!((cached, found.len()), (0, 49), "a known beginning has no logits");
        for at in 1..50 {
            let (_, logits) = Decoder::with_prompts(&model, &[prompt[..at].into()], 96).expect("it fits");
            let logits = numbers(&logits);
            let total = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
            let Likelihood { chosen, alternatives } = &found[at - 1];
            assert!((logits[prompt[at] as usize] - total - chosen).abs() < 1e-4, "{config:?}, token {at}");
            let best = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            assert!((best - total - alternatives[0].1).abs() < 1e-4 && alternatives.len() == 2);
        }
        for piece in [1, 7] {
            let again = likelihoods(piece).likelihoods;
            assert!(
                again.iter().zip(&found).all(|(a, b)| (a.chosen - b.chosen).abs() < 1e-4),
                "pieces of {piece}"
            );
        }
    }
}

#[derive(Debug)]
struct Rising(u32);

impl Constraint for Rising {
    fn mask(&mut self, logits: &mut [f32]) {
        for (token, logit) in logits.iter_mut().enumerate() {
            if !token.is_multiple_of(3) || token <= self.0 as usize {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    fn accept(&mut self, token: u32) {
        self.0 = token;
    }
}

#[test]
fn a_constraint_decides_which_tokens_may_come_and_changes_no_likelihood() {
    let model = Gpt::<Flex>::new(&unusual(), 5, &DEVICE).expect("valid");
    for sampling in
        [Sampling::greedy(), Sampling { seed: 4, temperature: 1.5, top_p: Some(0.9), ..Sampling::default() }]
    {
        let mut batch = Continuous::new(&model, 64, 1000);
        let constraint: Option<Box<dyn Constraint>> = Some(Box::new(Rising(0)));
        batch
            .join(1, Continuation { constraint, alternatives: Some(61), ..wanted(&[1, 2], sampling) })
            .expect("it fits");
        let mut earlier = 0;
        for _ in 0..3 {
            batch.forget();
            let (_, Chosen { token, likelihood, .. }) = batch.step().expect("it fits").remove(0);
            assert!(token.is_multiple_of(3) && token > earlier, "{token} after {earlier}");
            earlier = token;
            let all = likelihood.expect("it was asked for").alternatives;
            assert!(all.iter().any(|(other, log)| !other.is_multiple_of(3) && log.is_finite()));
        }
    }
}

#[test]
fn a_batch_adjusts_logits_by_the_answer_alone() {
    let model = Gpt::<Flex>::new(&shrunk("gpt2"), 5, &DEVICE).expect("valid");
    let adjusted = |adjustment: Adjustment| -> Vec<u32> {
        let mut batch = Continuous::new(&model, 64, 1000);
        let wanted = Continuation { adjustment, ..wanted(&[7, 7, 9], Sampling::greedy()) };
        batch.join(1, wanted).expect("it fits");
        (0..6).map(|_| batch.step().expect("it fits").remove(0).1.token).collect()
    };
    let biases = vec![(7, 1e3)];
    assert_eq!(adjusted(Adjustment { biases: biases.clone(), ..Adjustment::default() }), [7; 6]);
    // The prompt has token 7 already.
    let once = adjusted(Adjustment { biases, presence_penalty: 2e3, ..Adjustment::default() });
    assert_eq!(once.iter().position(|token| *token == 7), Some(0));
    let mut distinct = once.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), once.len(), "{once:?}");
}

#[test]
fn an_invalid_request_is_refused_before_it_joins() {
    let model = Gpt::<Flex>::new(&shrunk("gpt2"), 5, &DEVICE).expect("valid");
    let mut batch = Continuous::new(&model, 64, 1000);
    for prompt in [&[][..], &[61], &[1; 25]] {
        batch.join(1, wanted(prompt, Sampling::greedy())).expect_err("it cannot be continued");
    }
    let hot = Sampling { temperature: -1.0, ..Sampling::default() };
    batch.join(1, wanted(&[1], hot)).expect_err("no such temperature");
    let adjustment = Adjustment { biases: vec![(61, 1.0)], ..Adjustment::default() };
    let unknown = Continuation { adjustment, ..wanted(&[1], Sampling::greedy()) };
    batch.join(1, unknown).expect_err("no such token");
    assert!(batch.is_empty());
}
