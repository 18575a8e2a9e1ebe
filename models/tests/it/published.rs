//! The published GPT-2, if `GPT2_DIR` names its folder.

use std::ops::ControlFlow;
use std::path::Path;

use burn::tensor::{Int, Tensor, TensorData};
use models::{Batch, Gpt, PassOptions, Plain, Request, Sampling, generate, weights};
use suite::Need;

use crate::fixtures::{Cpu, DEVICE, numbers};

/// "The dog" and GPT-2 124M's greedy continuation.
const THE_DOG: [u32; 20] = [
    464, 3290, 373, 1043, 287, 257, 2214, 1474, 262, 16246, 286, 2688, 290, 2688, 27262, 13, 198, 198, 464,
    3290,
];

mod full {
    use super::*;

    #[test]
    #[ignore = "full: needs the published weights"]
    fn the_published_gpt_2_completes_a_known_prompt() {
        let directory = std::env::var_os("GPT2_DIR").ok_or("GPT2_DIR is not set");
        let Some(directory) = Need::Gpt2.found(directory) else { return };
        let model: Gpt<Cpu> =
            weights::load_pretrained(Path::new(&directory), &DEVICE).expect("a GPT-2 directory");
        let prompts = vec![THE_DOG[..2].to_vec()];
        let request = Request { sampling: Sampling::greedy(), ..Request::new(&prompts, 18) };
        let completion = generate(&model, &request, |_| ControlFlow::Continue(())).expect("a valid request");
        assert_eq!(completion[0].tokens, THE_DOG[2..]);

        let ids = |range: std::ops::Range<usize>| {
            let ids: Vec<i32> = THE_DOG[range].iter().map(|id| *id as i32).collect();
            Tensor::<Cpu, 2, Int>::from_data(TensorData::new(ids, [1, 19]), &DEVICE)
        };
        let batch = Batch { inputs: ids(0..19).into(), targets: ids(1..20), mask: None };
        let perplexity = numbers(&model.loss(batch, &PassOptions::default(), &Plain::default()))[0].exp();
        // One misplaced tensor gives more than 100.
        assert!((1.0..15.0).contains(&perplexity), "perplexity {perplexity:.2} on its own greedy text");
    }
}
