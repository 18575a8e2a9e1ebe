//! Decoding token by token gives a full forward pass's logits.

use burn::tensor::{Int, Tensor};
use models::{Decoder, Gpt, GptConfig, Plain, Stretch};

use crate::fixtures::{Cpu, DEVICE, numbers, shrunk, tokens, unusual};

fn assert_close(a: &Tensor<Cpu, 2>, b: &Tensor<Cpu, 2>, what: &str) {
    let apart = numbers(a).iter().zip(&numbers(b)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(apart <= 1e-5, "{what}: logits {apart:.1e} apart");
}

fn every_family() -> [GptConfig; 4] {
    [shrunk("gpt2"), shrunk("llama-1.1b"), shrunk("nanochat"), unusual()]
}

fn last_logits(model: &Gpt<Cpu>, tokens: Tensor<Cpu, 2, Int>) -> Tensor<Cpu, 2> {
    let [rows, time] = tokens.dims();
    model
        .forward(tokens, &Plain::default())
        .slice_dim(1, time - 1..time)
        .reshape([rows, model.config().vocab_size])
}

#[test]
fn decoding_with_the_cache_equals_the_full_forward() {
    for config in every_family() {
        let model = Gpt::<Cpu>::new(&config, 5, &DEVICE).expect("valid");
        let ids = tokens::<Cpu>(2, 20, config.vocab_size, 4);
        let mut decoder = Decoder::new(&model, 20);
        let mut logits = decoder.feed(ids.clone().slice_dim(1, 0..6)).expect("it fits");
        assert_close(&logits, &last_logits(&model, ids.clone().slice_dim(1, 0..6)), "prompt");
        for end in 7..=20 {
            logits = decoder.feed(ids.clone().slice_dim(1, end - 1..end)).expect("it fits");
            assert_close(&logits, &last_logits(&model, ids.clone().slice_dim(1, 0..end)), "next token");
        }
        assert!(decoder.is_full());
    }
}

#[test]
fn padded_prompts_get_the_logits_of_lone_prompts() {
    for config in every_family() {
        let model = Gpt::<Cpu>::new(&config, 5, &DEVICE).expect("valid");
        let prompts: [&[u32]; 3] = [&[3, 1, 4, 1, 5, 9, 2], &[6], &[5, 3, 5]];
        let prompts = prompts.map(Stretch::from);
        let (mut together, mut logits) = Decoder::with_prompts(&model, &prompts, 12).expect("it fits");
        let mut alone: Vec<_> = prompts
            .iter()
            .map(|prompt| Decoder::with_prompts(&model, &[*prompt], 12).expect("it fits"))
            .collect();

        for token in 0..4_i32 {
            for (row, (_, single)) in alone.iter().enumerate() {
                assert_close(&logits.clone().slice_dim(0, row..row + 1), single, "a padded row");
            }
            logits = together
                .feed(Tensor::from_ints([[token], [token + 1], [token + 2]], &DEVICE))
                .expect("it fits");
            for (row, (decoder, single)) in alone.iter_mut().enumerate() {
                *single = decoder.feed(Tensor::from_ints([[token + row as i32]], &DEVICE)).expect("it fits");
            }
        }
    }
}

#[test]
fn a_full_cache_errors_instead_of_wrapping() {
    let model = Gpt::<Cpu>::new(&shrunk("gpt2"), 5, &DEVICE).expect("valid");
    let mut decoder = Decoder::new(&model, 5);
    decoder.feed(tokens(1, 4, 60, 1)).expect("four of five");
    let full = decoder.feed(tokens(1, 2, 60, 1)).expect_err("six of five");
    assert_eq!(full.to_string(), "2 more tokens after 4 do not fit a decoder for 5");
    decoder.feed(tokens(1, 1, 60, 1)).expect("a refused step changes nothing");
    let beyond =
        Decoder::new(&model, 1000).feed(tokens(1, 25, 60, 1)).expect_err("the model has 24 positions");
    assert_eq!(beyond.capacity, 24);
}

#[test]
#[should_panic(expected = "a sequence of 25 tokens is longer than the model's n_positions = 24")]
fn a_sequence_longer_than_the_window_is_refused_by_name() {
    let model = Gpt::<Cpu>::new(&shrunk("llama-1.1b"), 5, &DEVICE).expect("valid");
    model.forward(tokens(1, 25, 60, 1), &Plain::default());
}
