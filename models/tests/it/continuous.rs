//! A continuous batch gives each sequence its own tokens.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use burn_flex::Flex;
use models::random::Random;
use models::{Adjustment, Chosen, Continuation, Continuous};
use models::{Gpt, GptConfig, Request, Sampling, generate};

use crate::fixtures::{Cpu, DEVICE, shrunk, unusual};

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
    Continuation { prompt: prompt.to_vec(), sampling, adjustment, row: 0, alternatives: None }
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
    // Many prompts share a beginning.
    let shared = below(random, 3) as u32;
    let length = 1 + below(random, 14);
    let first = below(random, length + 1);
    let prompt = (0..length)
        .map(|at| if at < first { shared * 7 + at as u32 } else { below(random, config.vocab_size) as u32 })
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
        let model = Gpt::<Flex>::new(&config, 5, &DEVICE).expect("valid");
        for programme in 0..4 {
            let mut random = Random::new(seed as u64 * 100 + programme);
            let requests: Vec<RandomRequest> =
                (0..16).map(|_| random_request(&mut random, &config)).collect();
            let (piece, keep) = ([1, 3, 8, 64][programme as usize], [0, 64, 200, 10_000][programme as usize]);

            let mut batch = Continuous::new(&model, piece, keep);
            let mut answers: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
            let mut reused = 0;

            for step in 0.. {
                for (key, request) in requests.iter().enumerate().filter(|(_, one)| one.arrival == step) {
                    reused +=
                        batch.join(key as u64, wanted(&request.prompt, request.sampling)).expect("it fits");
                    answers.insert(key as u64, Vec::new());
                }
                if batch.is_empty() && step > 30 {
                    break;
                }
                for (key, Chosen { token, .. }) in batch.step().expect("it fits") {
                    answers.get_mut(&key).expect("it joined").push(token);
                }
                for (key, answer) in &answers {
                    let request = &requests[*key as usize];
                    if answer.len() >= request.patience {
                        batch.leave(*key);
                    }
                }
            }

            assert!(reused > 0 || keep == 0, "prompts with a common beginning are read once");
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
    }
}

#[test]
fn a_known_prompt_is_read_again_from_its_last_token_only() {
    let model = Gpt::<Flex>::new(&shrunk("nanochat"), 5, &DEVICE).expect("valid");
    let mut batch = Continuous::new(&model, 64, 1000);
    let prompt = [3, 1, 4, 1, 5, 9];
    assert_eq!(batch.join(1, wanted(&prompt, Sampling::greedy())).expect("it fits"), 0);
    batch.step().expect("it fits");
    assert_eq!(batch.join(2, wanted(&prompt, Sampling::greedy())).expect("it fits"), 5, "of one under way");
    batch.leave(1);
    batch.leave(2);
    assert_eq!(
        batch.join(3, wanted(&[3, 1, 4, 8], Sampling::greedy())).expect("it fits"),
        3,
        "of one that ended"
    );
    batch.clear();
    assert_eq!(batch.join(4, wanted(&prompt, Sampling::greedy())).expect("it fits"), 0);
}

#[test]
fn a_batch_without_its_caches_continues_as_before() {
    for config in every_family() {
        let model = Gpt::<Flex>::new(&config, 5, &DEVICE).expect("valid");
        let sampling = Sampling { seed: 3, top_k: Some(20), temperature: 0.9, ..Sampling::default() };
        let prompts = [vec![1, 2, 3, 4, 5], vec![9, 8]];
        let mut batch = Continuous::new(&model, 3, 100);
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
fn kept_caches_stay_within_their_bound() {
    let config = GptConfig { n_positions: 256, ..shrunk("gpt2") };
    let model = Gpt::<Flex>::new(&config, 5, &DEVICE).expect("valid");
    let mut batch = Continuous::new(&model, 64, 130);
    for key in 0..4 {
        let prompt = [key as u32 + 1, 7, 7];
        batch.join(key, wanted(&prompt, Sampling::greedy())).expect("it fits");
        batch.step().expect("it fits");
        batch.leave(key);
    }
    // Room for two caches of 64 positions.
    let known: Vec<usize> = (0..4)
        .map(|key| {
            batch.join(10 + key, wanted(&[key as u32 + 1, 7, 7], Sampling::greedy())).expect("it fits")
        })
        .collect();
    assert_eq!(known, [0, 0, 2, 2]);
}

#[test]
fn a_short_prompt_does_not_inherit_the_room_of_a_long_one() {
    let config = GptConfig { n_positions: 512, ..shrunk("nanochat") };
    let model = Gpt::<Flex>::new(&config, 5, &DEVICE).expect("valid");
    // Caches grow by 64 positions: 320 and 64.
    let mut batch = Continuous::new(&model, 512, 384);
    let long = [3; 300];
    for (key, prompt) in [(1, &long[..]), (2, &[3, 3, 5])] {
        batch.join(key, wanted(prompt, Sampling::greedy())).expect("it fits");
        batch.step().expect("it fits");
        batch.leave(key);
    }
    assert_eq!(batch.join(3, wanted(&long, Sampling::greedy())).expect("it fits"), 299, "both are kept");
}

#[test]
fn a_sequence_never_replaces_another_one() {
    let model = Gpt::<Flex>::new(&shrunk("gpt2"), 5, &DEVICE).expect("valid");
    let mut batch = Continuous::new(&model, 64, 0);
    batch.join(1, wanted(&[1, 2], Sampling::greedy())).expect("it fits");
    let refused = batch.join(1, wanted(&[3], Sampling::greedy())).expect_err("the key is taken");
    assert!(refused.to_string().contains("key 1"), "{refused}");
    assert_eq!(batch.len(), 1);
}

#[test]
fn a_long_prompt_does_not_stall_other_sequences() {
    let model = Gpt::<Flex>::new(&shrunk("gpt2"), 5, &DEVICE).expect("valid");
    let mut batch = Continuous::new(&model, 4, 0);
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
    let mut batch = Continuous::new(&model, 64, 0);
    let wanted = Continuation { alternatives: Some(61), ..wanted(&[1, 2], Sampling::greedy()) };
    batch.join(1, wanted).expect("it fits");
    let (_, Chosen { token, likelihood }) = batch.step().expect("it fits").remove(0);
    let likelihood = likelihood.expect("it was asked for");
    assert_eq!((token, likelihood.chosen), likelihood.alternatives[0], "greedy takes the likeliest");
    assert!(likelihood.alternatives.is_sorted_by(|a, b| a.1 >= b.1));
    let total: f64 = likelihood.alternatives.iter().map(|(_, log)| log.exp()).sum();
    assert!((total - 1.0).abs() < 1e-9, "{total}");
}

#[test]
fn a_batch_adjusts_logits_by_the_answer_alone() {
    let model = Gpt::<Flex>::new(&shrunk("gpt2"), 5, &DEVICE).expect("valid");
    let adjusted = |adjustment: Adjustment| -> Vec<u32> {
        let mut batch = Continuous::new(&model, 64, 0);
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
    let mut batch = Continuous::new(&model, 64, 0);
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
