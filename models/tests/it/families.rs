//! Published families against goldens of `goldens/families.py`. Tensors' names decide weights.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use burn::module::AutodiffModule;
use burn::optim::GradientsParams;
use burn::tensor::{Int, Tensor, TensorData};
use models::weights::{self, Stored};
use models::{
    Batch, Chunks, Decoder, Gpt, GptConfig, Lean, PassOptions, Plain, Request, Sampling, generate, recompute,
};
use safetensors::{Dtype, SafeTensors, serialize_to_file, tensor::TensorView};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::alone::is_alone;
use crate::fixtures::{Cpu, DEVICE, Tape, distance, numbers};
use crate::parity::gradients_as_hugging_face;

#[derive(Deserialize)]
struct Golden {
    config: Value,
    tensors: BTreeMap<String, Vec<usize>>,
    tokens: Vec<i32>,
    logits: Vec<f64>,
    loss: f64,
    gradients: BTreeMap<String, [f64; 2]>,
    greedy: Vec<u32>,
}

const FAMILIES: [&str; 12] = [
    "llama-3.2",
    "llama-linear",
    "mistral",
    "mistral-window",
    "qwen2.5",
    "qwen3",
    "smollm3",
    "olmo2",
    "pythia",
    "neox-sequential",
    "gemma2",
    "gemma3",
];

/// FNV-1a of a name, then `SplitMix64`, in [-1, 1).
pub(crate) fn uniform(name: &str) -> impl Iterator<Item = f64> + use<> {
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |seed, byte| {
        (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (1_u64..).map(move |at| {
        let z = seed.wrapping_add(at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f64 / f64::from(1 << 23) - 1.0
    })
}

pub(crate) fn published(config: &Value, tensors: &BTreeMap<String, Vec<usize>>) -> TempDir {
    let less_one = config["model_type"].as_str().expect("a name").starts_with("gemma");
    let bytes = tensors.iter().map(|(name, shape)| {
        let number = |drawn: f64| match shape.len() {
            2 => drawn * 0.4,
            _ if name.ends_with("bias") => drawn * 0.2,
            _ => drawn * 0.3 + if less_one { 0.0 } else { 1.0 },
        };
        let count = shape.iter().product();
        uniform(name).take(count).flat_map(|drawn| (number(drawn) as f32).to_le_bytes()).collect()
    });
    let bytes: Vec<Vec<u8>> = bytes.collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape), bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("its bytes"))
    });
    let folder = tempfile::tempdir().expect("a temporary directory");
    serialize_to_file(views, None, &folder.path().join("model.safetensors")).expect("written");
    fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    folder
}

impl Golden {
    fn read(family: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/families");
        let text = fs::read_to_string(folder.join(format!("{family}.json"))).expect("goldens are committed");
        serde_json::from_str(&text).expect("a golden is JSON")
    }

    fn model(&self) -> Gpt<Tape> {
        weights::load_pretrained(published(&self.config, &self.tensors).path(), &DEVICE)
            .expect("a published folder loads")
    }

    fn ids(tokens: &[i32]) -> Tensor<Cpu, 2, Int> {
        Tensor::from_data(TensorData::new(tokens.to_vec(), [1, tokens.len()]), &DEVICE)
    }

    fn batch(&self) -> Batch<Cpu> {
        let last = self.tokens.len() - 1;
        Batch {
            inputs: Self::ids(&self.tokens[..last]).into(),
            targets: Self::ids(&self.tokens[1..]),
            mask: None,
        }
    }

    fn logits(&self, model: &Gpt<Cpu>) -> Vec<f64> {
        numbers(&model.forward(self.batch().inputs, &Plain(Chunks::of(3, 5))))
    }
}

fn farthest(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn logits_of_every_family_match_the_reference_library() {
    for family in FAMILIES {
        let golden = Golden::read(family);
        let apart = farthest(&golden.logits(&golden.model().valid()), &golden.logits);
        println!("{family}: logits at most {apart:.1e} apart");
        assert!(apart <= 1e-4, "{family}: logits up to {apart:.1e} apart");
    }
}

fn check_signal(golden: &Golden, model: &Gpt<Tape>, loss: f64, grads: GradientsParams, what: &str) {
    assert!(
        (loss - golden.loss).abs() <= 1e-5 * golden.loss,
        "{what}: loss {loss}, expected {}",
        golden.loss
    );

    let file = gradients_as_hugging_face(model, grads);
    let bytes = fs::read(file.path()).expect("just written");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    // Exported as `0 - step`: norms stored less one are one too low.
    let less_one = golden.config["model_type"].as_str().expect("a name").starts_with("gemma");
    for (name, [norm, along]) in &golden.gradients {
        let view = file.tensor(name).expect("every parameter has a gradient");
        let shift = if less_one && name.ends_with("norm.weight") { 1.0 } else { 0.0 };
        let values = view
            .data()
            .chunks(4)
            .map(|bytes| f64::from(f32::from_le_bytes(bytes.try_into().expect("four bytes"))) + shift);
        let values: Vec<f64> = values.collect();

        let ours = values.iter().map(|value| value * value).sum::<f64>().sqrt();
        let dot: f64 = values.iter().zip(uniform(&format!("direction.{name}"))).map(|(a, b)| a * b).sum();
        let allowed = 1e-4 * norm.max(1e-2);
        assert!(
            (ours - norm).abs() <= allowed,
            "{what}: the gradient of `{name}` has norm {ours}, not {norm}"
        );
        assert!((dot - along).abs() <= allowed, "{what}: the gradient of `{name}` points elsewhere");
    }
}

#[test]
fn gradients_of_every_family_match_the_reference_library() {
    if !is_alone() {
        return;
    }
    for family in FAMILIES {
        let golden = Golden::read(family);
        let model = golden.model();
        let options = PassOptions::default();
        let batch = || Batch::from_inner(golden.batch());

        let plain = model.loss(batch(), &options, &Plain::default());
        let value = numbers(&plain)[0];
        let grads = GradientsParams::from_grads(plain.backward(), &model);
        check_signal(&golden, &model, value, grads, family);

        let kernels = Lean(Chunks::of(3, 5));
        let lean = model.loss(batch(), &options, &kernels);
        let value = numbers(&lean)[0];
        let grads = GradientsParams::from_grads(lean.backward(), &model);
        check_signal(&golden, &model, value, grads, family);

        let (loss, grads) = recompute::loss_and_gradients(&model, golden.batch(), &options, kernels, 1);
        check_signal(&golden, &model, numbers(&loss)[0], grads, family);
    }
}

#[test]
fn greedy_text_of_every_family_matches_the_reference_library() {
    for family in FAMILIES {
        let golden = Golden::read(family);
        let prompts = vec![golden.greedy[..5].to_vec()];
        let request =
            Request { sampling: Sampling::greedy(), ..Request::new(&prompts, golden.greedy.len() - 5) };
        let ours = generate(&golden.model().valid(), &request, |_| ControlFlow::Continue(())).expect("valid");
        assert_eq!(ours[0].tokens, golden.greedy[5..], "{family}");
    }
}

#[test]
fn decoding_of_every_family_with_the_cache_equals_the_full_forward() {
    for family in FAMILIES {
        let golden = Golden::read(family);
        let model = golden.model().valid();
        let vocabulary = model.config().vocab_size;
        let mut decoder = Decoder::new(&model, golden.tokens.len());
        for (at, token) in golden.tokens.iter().enumerate().take(golden.tokens.len() - 1) {
            let logits = decoder.feed(Golden::ids(&[*token])).expect("it fits");
            let apart = farthest(&numbers(&logits), &golden.logits[at * vocabulary..][..vocabulary]);
            assert!(apart <= 1e-4, "{family}: token {at}, logits {apart:.1e} apart");
        }
    }
}

#[test]
fn every_family_is_exported_as_it_was_imported() {
    for family in FAMILIES {
        let golden = Golden::read(family);
        let model = golden.model().valid();
        let folder = tempfile::tempdir().expect("a temporary directory");
        weights::save_pretrained(&model, folder.path(), Stored::F32).expect("it has a published form");
        let again: Gpt<Cpu> = weights::load_pretrained(folder.path(), &DEVICE).expect("loads");
        let apart = distance(&golden.logits(&again), &golden.logits(&model));
        assert!(apart <= 1e-6, "{family}: {apart:.1e}");
        let bytes = fs::read(folder.path().join("model.safetensors")).expect("written");
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let shapes = file.tensors().into_iter().map(|(name, view)| (name, view.shape().to_vec()));
        assert_eq!(shapes.collect::<BTreeMap<_, _>>(), golden.tensors, "{family}");
    }
}

#[test]
fn parameters_of_every_family_are_counted() {
    for family in FAMILIES {
        let golden = Golden::read(family);
        let config =
            weights::pretrained_config(published(&golden.config, &golden.tensors).path()).expect("described");
        let counted = models::Footprint::of(&config).expect("small").parameters;
        let stored: usize = golden.tensors.values().map(|shape| shape.iter().product::<usize>()).sum();
        assert_eq!(counted, stored as u64, "{family}");
        assert_eq!(GptConfig::from_value(config.to_value()).expect("it reads back"), config, "{family}");
    }
}

#[test]
fn a_window_that_hides_nothing_is_none() {
    let window = |key: &str, value: Value| {
        let mut golden = Golden::read("mistral-window");
        golden.config[key] = value;
        weights::pretrained_config(published(&golden.config, &golden.tensors).path())
            .expect("described")
            .window
    };
    assert_eq!(window("sliding_window", json!(5)), Some(5));
    assert_eq!(window("sliding_window", json!(40)), None);
    assert_eq!(window("sliding_window", Value::Null), None);
    assert_eq!(window("layer_types", json!(["full_attention", "full_attention"])), None);
}

#[test]
fn keys_that_change_no_network_are_ignored_by_name_and_others_are_refused() {
    let read = |key: &str, value: Value, family: &str| {
        let mut golden = Golden::read(family);
        golden.config[key] = value;
        let folder = published(&golden.config, &golden.tensors);
        weights::ignored_keys(folder.path()).map_err(|error| error.to_string())
    };

    let ignored = [
        ("is_llama_config", json!(true), vec!["is_llama_config"]),
        ("transformers.js_config", json!({ "dtype": "q4" }), vec!["transformers.js_config"]),
        ("rope_interleaved", json!(false), vec![]),
        ("_num_labels", json!(1), vec![]),
        ("quantization_config", Value::Null, vec![]),
    ];
    for (key, value, expected) in ignored {
        assert_eq!(read(key, value, "llama-3.2").expect("harmless"), expected, "{key}");
    }

    let yarn = json!({ "rope_type": "yarn", "factor": 4.0 });
    let refused = [
        ("rope_interleaved", json!(true), "llama-3.2"),
        ("quantization_config", json!({ "bits": 4 }), "llama-3.2"),
        ("rope_scaling", yarn, "qwen2.5"),
        ("use_sliding_window", json!(true), "qwen2.5"),
        ("layer_types", json!(["sliding_attention", "full_attention"]), "qwen3"),
        ("hidden_act", json!("relu"), "mistral"),
        ("model_type", json!("phi3"), "mistral"),
    ];

    for (key, value, family) in refused {
        let said = read(key, value, family).expect_err(key);
        assert!(said.contains(&format!("`{key}` = ")), "{said}");
    }
}
