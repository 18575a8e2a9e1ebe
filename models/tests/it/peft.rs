//! Adapters of PEFT, against its own losses from goldens of `goldens/peft_losses.py`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use burn::optim::{AdamWConfig, Optimizer};
use burn::tensor::{Int, Tensor, TensorData};
use models::weights::{self, PeftAdapters, Stored};
use models::{Batch, Gpt, Lean, LoraConfig, PassOptions, Projection, recompute};
use safetensors::{Dtype, serialize_to_file, tensor::TensorView};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::alone::is_alone;
use crate::families::{published, uniform};
use crate::fixtures::{Cpu, DEVICE, Tape, named_values, numbers};

#[derive(Deserialize)]
struct Golden {
    config: Value,
    tensors: BTreeMap<String, Vec<usize>>,
    adapter_config: Value,
    adapters: BTreeMap<String, Vec<usize>>,
    losses: Vec<f64>,
}

const TIME: usize = 16;
const TEXTS: usize = 5;

impl Golden {
    fn read(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/peft");
        let text = fs::read_to_string(folder.join(format!("{name}.json"))).expect("goldens are committed");
        serde_json::from_str(&text).expect("a golden is JSON")
    }

    fn base(&self) -> Gpt<Tape> {
        weights::load_pretrained(published(&self.config, &self.tensors).path(), &DEVICE).expect("it loads")
    }

    fn folder(&self) -> TempDir {
        let bytes = self.adapters.iter().map(|(name, shape)| {
            let drawn = uniform(name).take(shape.iter().product());
            drawn.flat_map(|drawn| ((drawn * 0.2) as f32).to_le_bytes()).collect()
        });
        let bytes: Vec<Vec<u8>> = bytes.collect();
        let views = self.adapters.iter().zip(&bytes).map(|((name, shape), bytes)| {
            (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("its bytes"))
        });
        let folder = tempfile::tempdir().expect("a temporary directory");
        serialize_to_file(views, None, &folder.path().join("adapter_model.safetensors")).expect("written");
        fs::write(folder.path().join("adapter_config.json"), self.adapter_config.to_string())
            .expect("written");
        folder
    }

    fn adapted(&self) -> Gpt<Tape> {
        let (base, folder) = (self.base(), self.folder());
        let adapters = PeftAdapters::open(base.config(), folder.path()).expect("PEFT made it");
        let model = base.with_adapters(adapters.lora(), 1).expect("checked");
        adapters.load(model).expect("checked")
    }

    fn opened(&self, folder: &Path) -> String {
        let opened = PeftAdapters::open(self.base().config(), folder);
        opened.expect_err("it is refused").to_string()
    }
}

fn text(step: usize, vocabulary: f64) -> Batch<Cpu> {
    let drawn = uniform(&format!("tokens.{}", step % TEXTS)).take(TIME + 1);
    let ids: Vec<i32> = drawn.map(|drawn| (f64::midpoint(drawn, 1.0) * vocabulary) as i32).collect();
    let row =
        |ids: &[i32]| Tensor::<Cpu, 2, Int>::from_data(TensorData::new(ids.to_vec(), [1, TIME]), &DEVICE);
    Batch { inputs: row(&ids[..TIME]).into(), targets: row(&ids[1..]), mask: None }
}

#[test]
fn adapters_of_peft_learn_with_its_losses() {
    if !is_alone() {
        return;
    }
    for name in ["llama", "rslora", "gpt2", "pythia"] {
        let golden = Golden::read(name);
        let mut model = golden.adapted();
        let mut optimizer =
            AdamWConfig::new().with_beta_2(0.999).with_epsilon(1e-8).with_weight_decay(0.0).init();
        for (step, expected) in golden.losses.iter().enumerate() {
            let (batch, options) = (text(step, model.config().vocab_size as f64), PassOptions::default());
            let (loss, gradients) =
                recompute::loss_and_gradients(&model, batch, &options, Lean::default(), 1);
            let found = numbers(&loss)[0];
            assert!((found - expected).abs() < 1e-3, "{name}, step {step}: {found} and {expected}");
            model = optimizer.step(1e-2, model, gradients);
        }
        if let [first, .., last] = golden.losses[..] {
            assert!(last < 0.8 * first, "{name}: the golden learns nothing");
        }
    }
}

#[test]
fn adapters_written_for_peft_come_back_bit_for_bit() {
    let golden = Golden::read("llama");
    let out = tempfile::tempdir().expect("a folder");
    let lora =
        LoraConfig { rank: 5, alpha: 7.0, targets: vec![Projection::Key, Projection::Down], dropout: 0.25 };
    let model = golden.base().with_adapters(&lora, 3).expect("possible");
    weights::save_peft(&model, &lora, "base", out.path(), Stored::F32).expect("saved");
    let adapters = PeftAdapters::open(model.config(), out.path()).expect("our own");
    assert_eq!(adapters.lora(), &lora);
    let fresh = golden.base().with_adapters(&lora, 4).expect("possible");
    assert_ne!(named_values(&fresh, None), named_values(&model, None));
    assert_eq!(named_values(&adapters.load(fresh).expect("loaded"), None), named_values(&model, None));
}

#[test]
fn what_is_no_plain_adapter_is_refused_by_name() {
    let golden = Golden::read("llama");
    let folder = golden.folder();
    let path: PathBuf = folder.path().join("adapter_config.json");
    for (key, value, part) in [
        ("use_dora", json!(true), "DoRA"),
        ("rank_pattern", json!({"q_proj": 8}), "all modules have one rank"),
        ("alpha_pattern", json!({"q_proj": 8}), "all modules have one scale"),
        ("modules_to_save", json!(["lm_head"]), "other modules than projections were trained"),
        ("bias", json!("all"), "biases are the base's"),
        ("init_lora_weights", json!("pissa"), "it changes the base"),
        ("peft_type", json!("IA3"), "only LORA"),
        ("layer_replication", json!([[0, 1], [0, 2]]), "may change the network"),
        ("a_key_of_next_year", json!(3), "may change the network"),
        ("r", json!("four"), "`r` is no number"),
        ("r", json!(0), "`rank` = 0 must be at least 1"),
    ] {
        let mut described = golden.adapter_config.clone();
        described[key] = value;
        fs::write(&path, described.to_string()).expect("written");
        let said = golden.opened(folder.path());
        assert!(said.contains(part) && said.contains("adapter_config.json"), "{key}: {said}");
    }
    fs::write(&path, "[1, 2").expect("written");
    assert!(golden.opened(folder.path()).contains("adapter_config.json"));
    fs::remove_file(&path).expect("removed");
    assert!(golden.opened(folder.path()).contains("could not read"));
}

#[test]
fn adapters_of_some_layers_or_of_other_modules_are_named() {
    let name = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight";
    let mut golden = Golden::read("llama");
    let shape = golden.adapters.remove(name).expect(name);
    assert!(golden.opened(golden.folder().path()).contains(name), "missing");
    golden.adapters.insert(name.to_owned(), shape);
    let other = "base_model.model.lm_head.lora_A.weight";
    golden.adapters.insert(other.to_owned(), vec![4, 32]);
    assert!(golden.opened(golden.folder().path()).contains(other), "extra");
}
