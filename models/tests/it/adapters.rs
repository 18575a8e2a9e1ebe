//! Adapters beside a frozen base.

use std::ops::ControlFlow;

use burn::module::AutodiffModule;
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::backend::Backend;
use models::dropout::DropoutKey;
use models::weights::{self, Stored, TensorFile, WeightsError};
use models::{
    BaseForm, Batch, Chunks, Compute, Gpt, GptConfig, Lean, LoraConfig, LoraError, PassOptions, Plain,
    Projection, Request, Sampling, generate, recompute,
};

use crate::alone::is_alone;
use crate::fixtures::{Cpu, Tape, batch, distance, model, named_values, numbers, shrunk, unusual};

const KERNELS: Lean = Lean(Chunks::of(4, 5));

fn lora() -> LoraConfig {
    LoraConfig { rank: 3, alpha: 12.0, ..LoraConfig::default() }
}

fn adapted(config: &GptConfig, lora: &LoraConfig) -> Gpt<Tape> {
    model(config).with_adapters(lora, 5).expect("it has these projections")
}

fn of<B: Backend>(config: &GptConfig) -> Batch<B> {
    batch(config, 2, 11)
}

fn whole(model: &Gpt<Tape>, options: &PassOptions) -> (Vec<f64>, GradientsParams) {
    let loss = model.loss(of(model.config()), options, &KERNELS);
    let value = numbers(&loss);
    (value, GradientsParams::from_grads(loss.backward(), model))
}

fn recomputed(model: &Gpt<Tape>, options: &PassOptions) -> (Vec<f64>, GradientsParams) {
    let (loss, gradients) = recompute::loss_and_gradients(model, of(model.config()), options, KERNELS, 1);
    (numbers(&loss), gradients)
}

fn learning(model: &Gpt<Tape>, gradients: &GradientsParams) -> Vec<(String, Vec<f64>)> {
    let ids = burn::module::list_param_ids(model);
    let names = named_values(model, None);
    let found = ids.iter().zip(names).filter_map(|(id, (name, _))| {
        let matrix = gradients.get::<Cpu, 2>(*id)?;
        Some((name, numbers(&matrix)))
    });
    let found: Vec<_> = found.collect();
    assert_eq!(found.len(), gradients.len(), "vectors are frozen");
    found
}

fn trained(config: &GptConfig) -> Gpt<Tape> {
    let mut model = adapted(config, &lora());
    let mut optimizer = AdamWConfig::new().init();
    for _step in 0..4 {
        let (_, gradients) = recomputed(&model, &PassOptions::default());
        model = optimizer.step(1e-2, model, gradients);
    }
    model
}

#[test]
fn fresh_adapters_leave_the_loss_of_the_base() {
    if !is_alone() {
        return;
    }
    for config in [shrunk("gpt2"), shrunk("llama-3-8b"), unusual()] {
        let (base, _) = whole(&model(&config), &PassOptions::default());
        let adapted = adapted(&config, &lora());
        assert_eq!(whole(&adapted, &PassOptions::default()).0, base);
        assert_eq!(recomputed(&adapted, &PassOptions::default()).0, base);
    }
}

#[test]
fn only_adapters_have_gradients_with_and_without_recomputation() {
    if !is_alone() {
        return;
    }
    for config in [shrunk("gpt2"), shrunk("llama-3-8b"), unusual()] {
        let model = trained(&config);
        let (loss, kept) = whole(&model, &PassOptions::default());
        let (again, recomputed) = recomputed(&model, &PassOptions::default());
        assert!(distance(&again, &loss) <= 1e-6);

        let [kept, recomputed] = [kept, recomputed].map(|gradients| learning(&model, &gradients));
        let expected: Vec<_> = lora().parameters(&config).into_iter().map(|adapter| adapter.name).collect();
        let names = |of: &[(String, Vec<f64>)]| of.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&kept), expected);
        assert_eq!(names(&recomputed), expected);
        for ((name, kept), (_, again)) in kept.iter().zip(&recomputed) {
            assert!(distance(again, kept) <= 1e-5, "{name}");
            assert!(kept.iter().any(|number| *number != 0.0), "{name} learns nothing");
        }
    }
}

#[test]
fn a_narrow_frozen_base_has_the_bits_of_casts_at_each_use() {
    if !is_alone() {
        return;
    }
    for preset in ["gpt2", "llama-3-8b"] {
        let config = GptConfig { compute: Compute::Bf16, ..shrunk(preset) };
        let wide = trained(&config);
        let narrow = wide.clone().frozen(BaseForm::Computed);
        assert_eq!(narrow.blocks[0].mlp.up.weight.val().dtype(), burn::tensor::DType::BF16);
        for options in [PassOptions::default(), PassOptions { z_loss: 1e-3, ..PassOptions::default() }] {
            let passes = [recomputed(&wide, &options), recomputed(&narrow, &options)];
            let [wide, narrow] = passes.map(|(loss, gradients)| (loss, learning(&wide, &gradients)));
            assert!(wide == narrow, "{preset}");
        }
    }
}

#[test]
fn merged_adapters_give_the_logits_and_the_text_of_unmerged_ones() {
    if !is_alone() {
        return;
    }
    for preset in ["gpt2", "llama-3-8b"] {
        let adapted = trained(&shrunk(preset)).valid();
        let base = model(&shrunk(preset)).valid();
        let merged = adapted.clone().merged();
        assert!(!merged.has_adapters() && adapted.has_adapters());

        let tokens = || of::<Cpu>(adapted.config()).inputs;
        let [separate, merged_in, before] =
            [&adapted, &merged, &base].map(|model| numbers(&model.forward(tokens(), &Plain::default())));
        let apart = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(apart(&merged_in, &separate) < 1e-4, "{preset}: {}", apart(&merged_in, &separate));
        assert!(apart(&before, &separate) > 1e-2, "{preset}: nothing was learned");

        let prompts = [vec![1, 2, 3], vec![4]];
        let request = Request { sampling: Sampling::greedy(), ..Request::new(&prompts, 8) };
        let [separate, merged] = [&adapted, &merged].map(|model| {
            let texts = generate(model, &request, |_piece| ControlFlow::Continue(())).expect("it generates");
            texts.into_iter().map(|text| text.tokens).collect::<Vec<_>>()
        });
        assert_eq!(merged, separate, "{preset}");
    }
}

#[test]
fn a_merged_model_learns_as_a_whole_again() {
    if !is_alone() {
        return;
    }
    let merged = trained(&shrunk("llama-3-8b")).merged();
    let (_, gradients) = whole(&merged, &PassOptions::default());
    assert_eq!(gradients.len(), merged.config().parameters().len());
}

#[test]
fn adapters_are_listed_in_the_order_and_shapes_of_the_model() {
    for config in [shrunk("gpt2"), shrunk("llama-3-8b"), unusual()] {
        let targets = vec![Projection::Down, Projection::Key, Projection::Gate];
        for lora in [lora(), LoraConfig { targets, ..lora() }] {
            let adapted = adapted(&config, &lora);
            let all = named_values(&adapted, None);
            let adapters = all.iter().filter(|(name, _)| name.contains(".adapter."));
            let found: Vec<_> =
                adapters.map(|(name, numbers)| (name.clone(), numbers.len() as u64)).collect();
            let listed = lora.parameters(&config);
            let listed: Vec<_> =
                listed.into_iter().map(|adapter| (adapter.name.clone(), adapter.elements())).collect();
            assert_eq!(found, listed);
            assert_eq!(lora.elements(&config), found.iter().map(|(_, count)| count).sum::<u64>());
            let base: Vec<_> = all.iter().filter(|(name, _)| !name.contains(".adapter.")).collect();
            assert_eq!(base.len(), config.parameters().len());
        }
    }
}

#[test]
fn a_down_matrix_is_uniform_within_one_over_the_root_of_its_inputs() {
    let config = GptConfig { n_embd: 256, ..shrunk("gpt2") };
    let adapted = adapted(&config, &LoraConfig { rank: 64, ..lora() });
    let adapter = adapted.blocks[1].attention.value.adapter.as_ref().expect("a target");
    let (down, bound) = (numbers(&adapter.down.val()), 1.0 / 256_f64.sqrt());
    let most = down.iter().fold(0.0_f64, |most, number| most.max(number.abs()));
    assert!(most <= bound && most > 0.99 * bound, "{most}");
    let variance = down.iter().map(|number| number * number).sum::<f64>() / down.len() as f64;
    assert!((variance / (bound * bound / 3.0) - 1.0).abs() < 0.05, "{variance}");
    assert!(numbers(&adapter.up.val()).iter().all(|number| *number == 0.0));
}

#[test]
fn dropout_of_adapters_is_recomputed_to_the_same_bits_and_off_without_a_key() {
    if !is_alone() {
        return;
    }
    let config = shrunk("llama-3-8b");
    let key = |step| PassOptions {
        dropout: Some(DropoutKey { seed: 1, step, micro_batch: 0 }),
        ..PassOptions::default()
    };
    let undropped = trained(&config);
    let dropping = LoraConfig { dropout: 0.4, ..lora() };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("adapters");
    weights::save_adapters(&undropped, &path).expect("saved");
    let model = weights::load_adapters(adapted(&config, &dropping), &path).expect("loaded");

    let (loss, kept) = whole(&model, &key(1));
    let (again, recomputed_grads) = recomputed(&model, &key(1));
    assert_eq!(again, loss);
    let [kept, again] = [kept, recomputed_grads].map(|gradients| learning(&model, &gradients));
    for ((name, kept), (_, again)) in kept.iter().zip(&again) {
        assert!(distance(again, kept) <= 1e-5, "{name}");
    }
    assert_ne!(whole(&model, &key(2)).0, loss, "other features are dropped in another step");
    let none = PassOptions::default();
    assert_eq!(whole(&model, &none).0, whole(&undropped, &none).0);
}

#[test]
fn saved_adapters_come_back_and_the_base_is_not_in_their_file() {
    if !is_alone() {
        return;
    }
    let (config, folder) = (shrunk("llama-3-8b"), tempfile::tempdir().expect("a folder"));
    let path = folder.path().join("adapters");
    let trained = trained(&config);
    weights::save_adapters(&trained, &path).expect("saved");
    let file = TensorFile::open(&path).expect("a file");
    assert_eq!(file.count(), lora().parameters(&config).len());
    assert_eq!(weights::native_config(&path).expect("described"), config);
    weights::check_adapters(&config, &lora(), &path).expect("its own");

    let again = weights::load_adapters(adapted(&config, &lora()), &path).expect("loaded");
    assert_eq!(named_values(&again, None), named_values(&trained, None));
    let (_, gradients) = whole(&again, &PassOptions::default());
    assert_eq!(gradients.len(), file.count(), "they learn on");

    let other = LoraConfig { rank: 4, ..lora() };
    let refused = weights::load_adapters(adapted(&config, &other), &path).expect_err("another rank");
    assert!(matches!(refused, WeightsError::Mismatch { .. }), "{refused}");
    assert!(weights::check_adapters(&config, &other, &path).is_err());
}

#[test]
fn peft_finds_its_own_names_and_shapes() {
    if !is_alone() {
        return;
    }
    let (config, folder) = (shrunk("llama-3-8b"), tempfile::tempdir().expect("a folder"));
    let out = folder.path().join("peft");
    let trained = trained(&config);
    weights::save_peft(&trained, &lora(), "the/base", &out, Stored::F32).expect("saved");
    let file = TensorFile::open(&out.join("adapter_model.safetensors")).expect("a file");
    assert_eq!(file.count(), lora().parameters(&config).len());
    let name = "base_model.model.model.layers.1.self_attn.k_proj.lora_A.weight";
    assert_eq!(file.info(name).expect(name).shape, [3, 32]);
    let name = "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight";
    assert_eq!(file.info(name).expect(name).shape, [56, 3]);
    let up = trained.blocks[1].mlp.up.adapter.as_ref().expect("a target").up.val();
    let written: Vec<f64> = file.numbers(name).expect("numbers").iter::<f64>().collect();
    assert_eq!(written, numbers(&up.transpose()));

    let text = std::fs::read(out.join("adapter_config.json")).expect("written");
    let described: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(described["r"], 3);
    assert_eq!(described["lora_alpha"], 12.0);
    assert_eq!(described["base_model_name_or_path"], "the/base");
    let targets = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"];
    assert_eq!(described["target_modules"], serde_json::json!(targets));
}

#[test]
fn peft_is_refused_where_query_key_and_value_share_a_tensor() {
    let (config, folder) = (shrunk("gpt2"), tempfile::tempdir().expect("a folder"));
    let out = folder.path().join("peft");
    let refused = weights::save_peft(&adapted(&config, &lora()), &lora(), "gpt2", &out, Stored::F32);
    let said = refused.expect_err("one tensor holds three").to_string();
    assert!(said.contains("blocks.0.attention.query") && said.contains("another layout"), "{said}");
    assert!(!out.exists());

    let mlp = LoraConfig { targets: vec![Projection::Up, Projection::Down], ..lora() };
    weights::save_peft(&adapted(&config, &mlp), &mlp, "gpt2", &out, Stored::F32).expect("saved");
    let file = TensorFile::open(&out.join("adapter_model.safetensors")).expect("a file");
    let name = "base_model.model.transformer.h.0.mlp.c_fc.lora_A.weight";
    assert_eq!(file.info(name).expect(name).shape, [3, 32]);
}

#[test]
fn adapters_that_cannot_be_are_refused() {
    let config = shrunk("gpt2");
    let refused = |lora: LoraConfig| lora.check(&config).expect_err("impossible");
    assert_eq!(refused(LoraConfig { rank: 0, ..lora() }), LoraError::Rank { rank: 0, width: 32 });
    assert_eq!(refused(LoraConfig { rank: 33, ..lora() }), LoraError::Rank { rank: 33, width: 32 });
    assert_eq!(refused(LoraConfig { alpha: 0.0, ..lora() }), LoraError::Alpha(0.0));
    assert_eq!(refused(LoraConfig { dropout: 1.0, ..lora() }), LoraError::Dropout(1.0));
    assert_eq!(refused(LoraConfig { targets: vec![Projection::Gate], ..lora() }), LoraError::Targets);
    assert_eq!(refused(LoraConfig { targets: Vec::new(), ..lora() }), LoraError::Targets);
    let unknown = serde_json::from_str::<LoraConfig>(r#"{"targets": ["quary"]}"#).expect_err("unknown");
    assert!(unknown.to_string().contains("unknown variant `quary`, expected one of `query`"), "{unknown}");
}
