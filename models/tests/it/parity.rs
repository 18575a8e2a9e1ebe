//! Parity with `PyTorch` and `transformers`, from goldens of `goldens/generate.py`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use burn::backend::Autodiff;
use burn::module::AutodiffModule;
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::{Int, Tensor, TensorData};
use models::weights::{self, Stored};
use models::{Batch, Gpt, Kernels, Lean, PassOptions, Plain, Request, Sampling, generate, recompute};
use safetensors::SafeTensors;

use crate::alone::is_alone;
use crate::fixtures::{Cpu, DEVICE, Tape, distance, numbers};

struct Golden {
    directory: PathBuf,
    bytes: Vec<u8>,
}

impl Golden {
    fn open(name: &str) -> Self {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(name);
        let bytes = std::fs::read(directory.join("golden.safetensors")).expect("the goldens are committed");
        Self { directory, bytes }
    }

    fn model(&self) -> Gpt<Tape> {
        weights::load_pretrained(&self.directory, &DEVICE).expect("transformers' own file loads")
    }

    fn data(&self, name: &str) -> (Vec<usize>, &[u8]) {
        let file = SafeTensors::deserialize(&self.bytes).expect("a golden is a safetensors file");
        let view = file.tensor(name).expect("the golden has this tensor");
        (view.shape().to_vec(), view.data())
    }

    fn floats(&self, name: &str) -> Vec<f64> {
        let four = |bytes: &[u8]| f64::from(f32::from_le_bytes(bytes.try_into().expect("four bytes")));
        self.data(name).1.chunks(4).map(four).collect()
    }

    fn ids(&self, name: &str) -> Tensor<Cpu, 2, Int> {
        let (shape, bytes) = self.data(name);
        let ids: Vec<i32> =
            bytes.chunks(4).map(|bytes| i32::from_le_bytes(bytes.try_into().expect("four bytes"))).collect();
        Tensor::from_data(TensorData::new(ids, shape), &DEVICE)
    }

    fn batch(&self) -> Batch<Cpu> {
        let tokens = self.ids("tokens");
        let last = tokens.dims()[1];
        Batch {
            inputs: tokens.clone().slice_dim(1, 0..last - 1).into(),
            targets: tokens.slice_dim(1, 1..last),
            mask: None,
        }
    }
}

const MODELS: [&str; 2] = ["gpt2", "llama"];

#[test]
fn logits_match_pytorch() {
    for golden in MODELS.map(Golden::open) {
        let logits = golden.model().valid().forward(golden.batch().inputs, &Plain::default());
        let expected = golden.floats("logits");
        let apart = numbers(&logits).iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        println!("{}: logits at most {apart:.1e} apart", golden.directory.display());
        assert!(apart <= 1e-4, "logits up to {apart:.1e} apart");
    }
}

pub(crate) fn gradients_as_hugging_face(
    model: &Gpt<Tape>,
    grads: GradientsParams,
) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    // Gradient descent from zero with rate -1 turns parameters into gradients.
    let zero = burn::module::Module::<Tape>::map(model.clone(), &mut Zero);
    let mut descent = burn::optim::SgdConfig::new().init::<Tape, Gpt<Tape>>();
    let as_weights = descent.step(-1.0, zero, grads);
    weights::save(&as_weights, file.path(), weights::Layout::HuggingFace, Stored::F32)
        .expect("gradients save");
    file
}

struct Zero;

impl burn::module::ModuleMapper<Tape> for Zero {
    fn map_float<const D: usize>(
        &mut self,
        param: burn::module::Param<Tensor<Autodiff<Cpu>, D>>,
    ) -> burn::module::Param<Tensor<Autodiff<Cpu>, D>> {
        let (id, tensor, mapper) = param.consume();
        let zero = Tensor::from_inner(tensor.inner().zeros_like()).require_grad();
        burn::module::Param::from_mapped_value(id, zero, mapper)
    }
}

fn check_signal(golden: &Golden, model: &Gpt<Tape>, loss: f64, grads: GradientsParams) {
    let expected = golden.floats("loss")[0];
    assert!((loss - expected).abs() <= 1e-5 * expected, "loss {loss}, PyTorch has {expected}");
    let file = gradients_as_hugging_face(model, grads);
    let bytes = std::fs::read(file.path()).expect("just written");
    let ours = Golden { directory: PathBuf::new(), bytes };
    let names = SafeTensors::deserialize(&golden.bytes).expect("a golden is a safetensors file");
    let mut worst = 0.0_f64;
    for name in names.names().into_iter().filter_map(|name| name.strip_prefix("grad.")) {
        let (ours, theirs) = (ours.floats(name), golden.floats(&format!("grad.{name}")));
        let apart = distance(&ours, &theirs);
        worst = worst.max(apart);
        assert!(apart <= 1e-4, "the gradients of `{name}` are {apart:.1e} apart");
    }
    println!("{}: gradients at most {worst:.1e} apart", golden.directory.display());
}

fn check_kernels<K: Kernels<Tape>>(golden: &Golden, kernels: &K) {
    let model = golden.model();
    let loss = model.loss(Batch::from_inner(golden.batch()), &PassOptions::default(), kernels);
    let value = numbers(&loss)[0];
    check_signal(golden, &model, value, GradientsParams::from_grads(loss.backward(), &model));
}

#[test]
fn loss_and_every_gradient_match_pytorch() {
    if !is_alone() {
        return;
    }
    for golden in MODELS.map(Golden::open) {
        check_kernels(&golden, &Plain::default());
        check_kernels(&golden, &Lean(models::Chunks::of(5, 7)));
        let model = golden.model();
        let (loss, grads) = recompute::loss_and_gradients(
            &model,
            golden.batch(),
            &PassOptions::default(),
            Lean::default(),
            1,
        );
        check_signal(&golden, &model, numbers(&loss)[0], grads);
    }
}

/// Weight decay of matrices only, as in the generator.
struct Select {
    matrices: bool,
    ids: Vec<burn::module::ParamId>,
}

impl burn::module::ModuleVisitor<Tape> for Select {
    fn visit_float<const D: usize>(&mut self, param: &burn::module::Param<Tensor<Tape, D>>) {
        if (D >= 2) == self.matrices {
            self.ids.push(param.id);
        }
    }
}

#[test]
fn ten_adamw_steps_match_pytorch() {
    if !is_alone() {
        return;
    }
    for golden in MODELS.map(Golden::open) {
        let mut model = golden.model();
        let adamw = AdamWConfig::new().with_beta_1(0.9).with_beta_2(0.95).with_epsilon(1e-8);
        let mut decayed = adamw.clone().with_weight_decay(0.1).init::<Tape, Gpt<Tape>>();
        let mut others = adamw.with_weight_decay(0.0).init::<Tape, Gpt<Tape>>();
        let mut worst = 0.0_f64;

        for expected in golden.floats("losses") {
            let loss =
                model.loss(Batch::from_inner(golden.batch()), &PassOptions::default(), &Lean::default());
            let value = numbers(&loss)[0];
            worst = worst.max((value - expected).abs());
            assert!(worst <= 1e-4, "loss {value}, PyTorch has {expected}");

            let mut grads = loss.backward();
            for (matrices, optimizer) in [(true, &mut decayed), (false, &mut others)] {
                let mut select = Select { matrices, ids: Vec::new() };
                burn::module::Module::<Tape>::visit(&model, &mut select);
                let part = GradientsParams::from_params(&mut grads, &model, &select.ids);
                model = optimizer.step(1e-3, model, part);
            }
        }
        println!("{}: ten losses at most {worst:.1e} apart", golden.directory.display());
    }
}

#[test]
fn greedy_continuation_matches_transformers() {
    for golden in MODELS.map(Golden::open) {
        let model = golden.model().valid();
        let expected: Vec<u32> = golden.ids("greedy").to_data().iter::<u32>().collect();
        let prompts = vec![expected[..5].to_vec()];
        let request = Request { sampling: Sampling::greedy(), ..Request::new(&prompts, expected.len() - 5) };
        let ours = generate(&model, &request, |_| ControlFlow::Continue(())).expect("a valid request");
        assert_eq!(ours[0].tokens, expected[5..]);
    }
}
