//! Tokens per second with and without the KV cache: `cargo bench -p models --bench decode`.

use std::time::Instant;

use burn::tensor::{Int, Tensor, TensorData};
use burn_flex::{Flex, FlexDevice};
use models::{Decoder, Gpt, GptConfig, presets};

const TOKENS: usize = 256;

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("nothing measured: run it with `cargo bench`");
        return;
    }
    println!("shape            | cached tok/s | uncached tok/s | ratio");
    let small = GptConfig { n_layer: 6, n_head: 6, n_embd: 384, vocab_size: 4096, ..preset("gpt2") };
    measure("6 × 384", &small);
    measure("gpt2 (12 × 768)", &preset("gpt2"));
}

fn preset(name: &str) -> GptConfig {
    presets::preset(name).expect("a preset")
}

fn measure(name: &str, config: &GptConfig) {
    let model = Gpt::<Flex>::new(config, 1, &FlexDevice).expect("a valid configuration");
    let cached = rate(|| {
        let mut decoder = Decoder::new(&model, TOKENS);
        for token in 0..TOKENS {
            decoder.feed(tokens(token..token + 1)).expect("the capacity is the count").to_data();
        }
    });
    let uncached = rate(|| {
        for end in 1..=TOKENS {
            // Like the cache, only the last position's logits.
            let prompt: Vec<u32> = (0..end as u32).collect();
            let (_, logits) =
                Decoder::with_prompts(&model, &[prompt[..].into()], end).expect("the capacity is the length");
            logits.to_data();
        }
    });
    println!("{name:16} | {cached:12.1} | {uncached:14.2} | {:5.1}", cached / uncached);
}

fn tokens(range: std::ops::Range<usize>) -> Tensor<Flex, 2, Int> {
    let ids: Vec<i32> = range.map(|id| id as i32).collect();
    let shape = [1, ids.len()];
    Tensor::from_data(TensorData::new(ids, shape), &FlexDevice)
}

/// Tokens per second of the faster of two runs.
fn rate(work: impl Fn()) -> f64 {
    let seconds = || {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    TOKENS as f64 / seconds().min(seconds())
}
