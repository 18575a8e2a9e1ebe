//! Stages of a pipeline together have the bits of the network.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use models::dropout::DropoutKey;
use models::stage::{Stage, StagePass};
use models::{Batch, Chunks, Gpt, GptConfig, InputForm, Lean, PassOptions, Plain, recompute};

use crate::alone::is_alone;
use crate::fixtures::{Cpu, Tape, batch, model, named_values, numbers, shrunk};

const CHUNKS: Chunks = Chunks::of(4, 5);

fn staged(model: &Gpt<Tape>, options: PassOptions, stages: usize) -> (Vec<f64>, Vec<GradientsParams>) {
    let config = model.config();
    let layers = (config.n_layer, 1);
    let all: Vec<Stage> =
        (0..stages).map(|n| Stage::new((n, stages), layers, config.tie_word_embeddings)).collect();
    let new = |_: &Stage| StagePass::<Cpu>::new(batch(config, 2, 11), options);
    let mut passes: Vec<StagePass<Cpu>> = all.iter().map(new).collect();
    let mut stream = all[stages - 1].embeds.then(|| passes[stages - 1].embedded(model, Plain(CHUNKS)));
    for (stage, pass) in all.iter().zip(&mut passes) {
        stream = pass.forward(model, stage, stream, Plain(CHUNKS));
    }
    let (mut ready, mut gradient) = (Vec::new(), None);
    for (stage, pass) in all.iter().zip(&mut passes).rev() {
        gradient = pass.backward(model, stage, gradient, Lean(CHUNKS), |segment| ready.push(segment));
    }
    let last = &mut passes[stages - 1];
    if let Some(gradient) = gradient {
        ready.push(last.backward_embedding(model, gradient, Lean(CHUNKS)));
    }
    (numbers(last.loss().expect("the head has run")), ready)
}

struct Merged {
    ready: Vec<GradientsParams>,
    all: GradientsParams,
}

impl ModuleVisitor<Tape> for Merged {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Tape, D>>) {
        let mut found = self.ready.iter_mut().filter_map(|ready| ready.remove::<Cpu, D>(param.id));
        if let Some(gradient) = found.next() {
            self.all.register(param.id, gradient);
        }
    }
}

#[test]
fn stages_have_the_bits_of_the_whole_network() {
    if !is_alone() {
        return;
    }
    let key = DropoutKey { seed: 1, step: 2, micro_batch: 3 };
    for (preset, kept_inputs) in [
        ("gpt2", InputForm::Computed),
        ("llama-1.1b", InputForm::Int8),
        ("gpt2", InputForm::Int8),
        ("llama-1.1b", InputForm::Bf16),
    ] {
        let config = GptConfig { embd_pdrop: 0.2, resid_pdrop: 0.2, n_layer: 3, ..shrunk(preset) };
        let model = model(&config);
        let options = PassOptions { dropout: Some(key), z_loss: 1e-3, kept_inputs, ..PassOptions::default() };
        let whole: Batch<Cpu> = batch(&config, 2, 11);
        let (loss, expected) = recompute::loss_and_gradients(&model, whole, &options, Lean(CHUNKS), 1);
        let expected = named_values(&model, Some(&expected));
        for stages in 1..=3 {
            let (found, ready) = staged(&model, options, stages);
            assert_eq!(found, numbers(&loss), "{preset} in {stages}");
            let count: usize = ready.iter().map(GradientsParams::len).sum();
            assert_eq!(count, expected.len(), "each gradient has one stage");
            let mut all = Merged { ready, all: GradientsParams::new() };
            model.visit(&mut all);
            assert!(named_values(&model, Some(&all.all)) == expected, "{preset} in {stages}");
        }
    }
}
