//! Weights survive saving and loading, and mismatches are reported in full.

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::Param;
use burn::tensor::{Int, Tensor, TensorData};
use models::Activation;
use models::weights::{self, Begun, Fetch, Joined, Layout, Outgoing, Stored, TensorFile, WeightsError};
use models::{Chunks, Gpt, GptConfig, Lean, presets};

use crate::alone::is_alone;
use crate::fixtures::{DEVICE, Tape, distance, model, named_values, numbers, shrunk, unusual};

fn values(model: &Gpt<Tape>) -> Vec<(String, Vec<f64>)> {
    named_values(model, None)
}

fn reloaded(path: &Path) -> Gpt<Tape> {
    weights::load_native(path, &DEVICE).expect("a file of our own loads")
}

#[test]
fn every_preset_comes_back_from_the_native_layout_bit_for_bit() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let shapes = presets::PRESETS.iter().map(|preset| shrunk(preset)).chain([unusual()]);
    for (index, config) in shapes.enumerate() {
        let path = directory.path().join(format!("{index}.safetensors"));
        let model = model(&config);
        weights::save(&model, &path, Layout::Native, Stored::F32).expect("saves");
        let again = reloaded(&path);
        assert_eq!(again.config(), model.config());
        assert_eq!(values(&again), values(&model));
    }
}

#[test]
fn hugging_face_directories_come_back_bit_for_bit() {
    let erf = GptConfig { activation_function: Activation::GeluErf, resid_pdrop: 0.1, ..shrunk("gpt2") };
    let untied = GptConfig { tie_word_embeddings: false, ..shrunk("gpt2") };
    let offsets = GptConfig { attention_bias: true, tie_word_embeddings: true, ..shrunk("llama-3-8b") };
    for config in [shrunk("gpt2"), erf, untied, shrunk("llama-1.1b"), shrunk("llama-3-8b"), offsets] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let model = model(&config);
        weights::save_pretrained(&model, directory.path(), Stored::F32).expect("saves");
        let again: Gpt<Tape> = weights::load_pretrained(directory.path(), &DEVICE).expect("loads");
        let known =
            GptConfig { init: config.init, scale_residual_init: config.scale_residual_init, ..config };
        assert_eq!(*again.config(), known);
        assert_eq!(values(&again), values(&model));
    }
}

#[test]
fn a_gated_gpt2_has_no_published_form() {
    let gated = GptConfig { activation_function: Activation::SwiGlu, ..shrunk("gpt2") };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let refused = weights::save_pretrained(&model(&gated), directory.path(), Stored::F32);
    assert!(matches!(refused, Err(WeightsError::NotExpressible { nearest: "gpt2", .. })), "{refused:?}");
}

#[test]
fn a_model_saved_into_the_folder_of_its_parts_is_the_one_that_loads() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(directory.path().join("model.safetensors.index.json"), "{}").expect("written");
    let model = model(&shrunk("gpt2"));
    weights::save_pretrained(&model, directory.path(), Stored::F32).expect("saves");
    let again: Gpt<Tape> = weights::load_pretrained(directory.path(), &DEVICE).expect("loads");
    assert_eq!(values(&again), values(&model));
}

#[test]
fn new_tokens_in_padding_begin_as_the_mean_of_the_real_ones() {
    let config = shrunk("llama-1.1b");
    let model = model(&config);
    let width = config.n_embd;
    let (tokens, rows) = (config.vocab_size - 9, config.vocab_size + 3);
    let before = numbers(&model.wte.val());
    let wider = model.with_vocabulary(tokens..tokens + 4, rows);
    let after = numbers(&wider.wte.val());
    assert_eq!(after.len(), rows * width);

    let mean: Vec<f64> = (0..width)
        .map(|column| (0..tokens).map(|row| before[row * width + column]).sum::<f64>() / tokens as f64)
        .collect();
    for (row, numbers) in after.chunks(width).enumerate() {
        let is_new = (tokens..tokens + 4).contains(&row) || row >= config.vocab_size;
        let expected = if is_new { &mean[..] } else { &before[row * width..][..width] };
        assert!(distance(numbers, expected) < 1e-6, "row {row}");
    }
    assert_eq!(
        wider.clone().with_vocabulary(rows..rows, rows).wte.val().to_data(),
        wider.wte.val().to_data()
    );
}

#[test]
fn new_tokens_begin_as_the_mean_of_the_known_ones_and_learn() {
    if !is_alone() {
        return;
    }
    for config in [shrunk("gpt2"), shrunk("llama-1.1b")] {
        let model = model(&config);
        let before = values(&model);
        let (known, width) = (config.vocab_size, config.n_embd);

        let wider = model.with_vocabulary(known..known + 3, known + 3);
        assert_eq!(wider.config().vocab_size, known + 3);
        let after = values(&wider);
        assert_eq!(after.len(), before.len());

        for ((name, after), (_, before)) in after.iter().zip(&before) {
            let (old, new) = after.split_at(before.len());
            assert_eq!(old, before, "{name}");
            let grown = ["wte", "lm_head"].contains(&name.as_str());
            assert_eq!(new.len(), if grown { 3 * width } else { 0 }, "{name}");
            for (n, value) in new.iter().enumerate() {
                let column = before.iter().skip(n % width).step_by(width);
                let mean = column.sum::<f64>() / known as f64;
                assert!((value - mean).abs() < 1e-6, "{name}: {value} instead of {mean}");
            }
        }

        assert!(wider.wte.val().is_require_grad());
        let tokens = Tensor::<Tape, 2, Int>::from_data([[known as i64 + 2, 0]], &DEVICE);
        let logits = wider.forward(tokens, &Lean(Chunks::WHOLE));
        let gradients = logits.sum().backward();
        assert!(wider.wte.val().grad(&gradients).is_some(), "the matrix itself learns");
    }
}

#[test]
fn a_directory_with_native_weights_needs_no_config_json() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("model.safetensors");
    for config in [shrunk("nanochat"), unusual()] {
        let model = model(&config);
        weights::save(&model, &path, Layout::Native, Stored::F32).expect("saves");
        assert_eq!(weights::pretrained_config(directory.path()).expect("described"), config);
        let again: Gpt<Tape> = weights::load_pretrained(directory.path(), &DEVICE).expect("loads");
        assert_eq!(values(&again), values(&model));
        std::fs::write(directory.path().join("config.json"), r#"{"model": {}}"#).expect("written");
    }
}

#[test]
fn shards_are_read_through_their_index() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let config = shrunk("llama-1.1b");
    let model = model(&config);
    weights::save_pretrained(&model, directory.path(), Stored::F32).expect("saves");
    let whole = std::fs::read(directory.path().join("model.safetensors")).expect("written");
    let file = safetensors::SafeTensors::deserialize(&whole).expect("a safetensors file");
    let mut map = serde_json::Map::new();
    for part in 0..2 {
        let shard = format!("model-{part}.safetensors");
        let tensors = file.tensors().into_iter().enumerate().filter(|(index, _)| index % 2 == part);
        let tensors: Vec<_> = tensors.map(|(_, tensor)| tensor).collect();
        map.extend(tensors.iter().map(|(name, _)| (name.clone(), shard.clone().into())));
        safetensors::serialize_to_file(tensors, None, &directory.path().join(shard)).expect("written");
    }
    std::fs::remove_file(directory.path().join("model.safetensors")).expect("removed");
    let index = serde_json::json!({ "weight_map": map }).to_string();
    std::fs::write(directory.path().join("model.safetensors.index.json"), index).expect("written");
    let again: Gpt<Tape> = weights::load_pretrained(directory.path(), &DEVICE).expect("loads");
    assert_eq!(values(&again), values(&model));
}

#[test]
fn the_first_published_gpt2_files_load_without_prefix_and_with_their_buffers() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("model.safetensors");
    let model = model(&shrunk("gpt2"));
    weights::save_pretrained(&model, directory.path(), Stored::F32).expect("saves");
    let whole = std::fs::read(&path).expect("written");
    let file = safetensors::SafeTensors::deserialize(&whole).expect("a safetensors file");
    let short = |name: String| name.strip_prefix("transformer.").expect("the prefix").to_owned();
    let mut tensors: Vec<_> =
        file.tensors().into_iter().map(|(name, tensor)| (short(name), tensor)).collect();
    let mask = file.tensor("transformer.wpe.weight").expect("a tensor that stands for a mask");
    tensors.push(("h.0.attn.bias".to_owned(), mask));
    safetensors::serialize_to_file(tensors, None, &path).expect("written");
    let again: Gpt<Tape> = weights::load_pretrained(directory.path(), &DEVICE).expect("loads");
    assert_eq!(values(&again), values(&model));
}

#[test]
fn narrow_files_load_as_f32_within_their_rounding() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let model = model(&shrunk("gpt2"));
    for (stored, rounding) in [(Stored::Bf16, 4e-3), (Stored::F16, 5e-4)] {
        let path = directory.path().join("narrow.safetensors");
        weights::save(&model, &path, Layout::Native, stored).expect("saves");
        let wide = 4 * models::Footprint::of(model.config()).expect("small").parameters;
        assert!(std::fs::metadata(&path).expect("written").len() < wide * 6 / 10);
        for ((name, narrow), (_, exact)) in values(&reloaded(&path)).iter().zip(&values(&model)) {
            let apart = if exact.iter().all(|v| *v == 0.0) { 0.0 } else { distance(narrow, exact) };
            assert!(apart < rounding, "`{name}` is {apart:.1e} off in {stored:?}");
        }
    }
}

#[test]
fn a_number_that_f16_cannot_hold_is_refused_there_and_nowhere_else() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("large.safetensors");
    let mut model = model(&shrunk("gpt2"));
    model.wte = model.wte.map(|weights| weights * 1e7);
    let refused = weights::save(&model, &path, Layout::Native, Stored::F16);
    assert!(matches!(refused, Err(WeightsError::BeyondF16 { name }) if name == "wte"));
    assert!(!path.exists());
    for stored in [Stored::F32, Stored::Bf16] {
        weights::save(&model, &path, Layout::Native, stored).expect("saves");
    }
}

#[test]
fn a_published_folder_says_in_which_type_its_numbers_are() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let model = model(&shrunk("gpt2"));
    for (stored, name) in [(Stored::F32, "float32"), (Stored::Bf16, "bfloat16"), (Stored::F16, "float16")] {
        weights::save_pretrained(&model, directory.path(), stored).expect("saves");
        let text = std::fs::read(directory.path().join("config.json")).expect("written");
        let description: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(description["torch_dtype"], name);
        weights::pretrained_config(directory.path()).expect("it is read again");
    }
}

#[test]
fn saving_over_the_file_it_came_from_is_safe() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("model.safetensors");
    let first = model(&shrunk("gpt2"));
    weights::save(&first, &path, Layout::Native, Stored::F32).expect("saves");
    let held = std::fs::File::open(&path).expect("opens");
    // SAFETY: the test's own file, which `save` replaces and does not change.
    let mapped = unsafe { memmap2::Mmap::map(&held) }.expect("maps");
    let before = mapped.to_vec();
    let second: Gpt<Tape> = Gpt::new(&shrunk("gpt2"), 99, &DEVICE).expect("valid");
    weights::save(&second, &path, Layout::Native, Stored::F32).expect("saves over it");
    assert!(before == mapped[..], "the mapped file still holds the old model");
    assert_eq!(values(&reloaded(&path)), values(&second));
    let left = std::fs::read_dir(directory.path()).expect("a directory").count();
    assert_eq!(left, 1, "nothing is left beside it");
}

#[test]
fn one_report_names_everything_that_does_not_fit() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("model.safetensors");
    let config = shrunk("gpt2");
    weights::save(&model(&config), &path, Layout::Native, Stored::F32).expect("saves");
    let wanted = GptConfig { vocab_size: 62, mlp_bias: false, qk_norm: true, ..config };
    let error = weights::load::<Tape>(&wanted, &[&path], Layout::Native, &DEVICE).expect_err("another model");
    let WeightsError::Mismatch { report, .. } = &error else { panic!("{error}") };
    assert_eq!(report.missing.len(), 3 * 4, "weight and offset of two norms in three blocks");
    assert_eq!(report.extra.len(), 3 * 2, "two offsets in three blocks");
    assert_eq!(report.reshaped, [("wte".to_owned(), vec![62, 32], vec![61, 32])]);
    let message = error.to_string();
    assert!(message.contains("missing (12): blocks.0.attention.key_norm.bias"), "{message}");
    assert!(message.contains("`wte` has shape [61, 32], the model needs [62, 32]"), "{message}");
}

#[test]
fn a_file_cut_short_or_absent_or_foreign_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("model.safetensors");
    let nowhere = directory.path().join("absent/model.safetensors");
    let error = weights::save(&model(&shrunk("gpt2")), &nowhere, Layout::Native, Stored::F32)
        .expect_err("no directory");
    assert!(error.to_string().starts_with("could not write weights to"), "{error}");
    let load = || weights::load_native::<Tape>(&path, &DEVICE).expect_err("not loadable").to_string();
    assert!(load().starts_with("could not open weights in"), "{}", load());
    let model = model(&shrunk("gpt2"));
    weights::save(&model, &path, Layout::HuggingFace, Stored::F32).expect("saves");
    assert!(load().contains("holds no model description"), "{}", load());
    weights::save(&model, &path, Layout::Native, Stored::F32).expect("saves");
    let bytes = std::fs::read(&path).expect("reads");
    std::fs::write(&path, &bytes[..bytes.len() - 10]).expect("writes");
    assert!(load().contains("is not a complete safetensors file"), "{}", load());
}

#[test]
fn a_model_of_no_published_family_has_no_hugging_face_layout() {
    let path = tempfile::NamedTempFile::new().expect("a temporary file");
    let capped = GptConfig { logit_softcap: Some(9.0), ..shrunk("llama-1.1b") };
    let cases = [
        (shrunk("nanochat"), "`hidden_act` = \"relu2\""),
        (unusual(), "`hidden_act` = \"gelu\""),
        (capped, "it lacks `logit_softcap` = 9.0"),
    ];
    for (config, reason) in cases {
        let error = weights::save(&model(&config), path.path(), Layout::HuggingFace, Stored::F32)
            .expect_err("refused");
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn published_settings_that_change_the_network_are_refused() {
    let published = |extra: &str| {
        let text = format!(
            r#"{{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1,
                "intermediate_size": 64, "vocab_size": 9, "max_position_embeddings": 8, {extra}}}"#
        );
        weights::config_from_hugging_face(&text)
    };
    let accepted =
        published(r#""rope_scaling": null, "head_dim": 16, "attention_dropout": 0.1, "torch_dtype": "bf16""#);
    assert_eq!(accepted.expect("a plain Llama").n_embd, 64);
    let refused = [
        (r#""rope_scaling": {"type": "dynamic", "factor": 2.0}"#, "`rope_scaling`"),
        (r#""head_dim": 31"#, "even head width"),
        (r#""rope_parameters": {"rope_theta": 1e4, "rope_type": "llama3"}"#, "`rope_parameters`"),
        (r#""sliding_window": 4096"#, "`sliding_window` = 4096"),
    ];
    for (extra, expected) in refused {
        let message = published(extra).expect_err("another network").to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn equal_models_make_equal_files() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("model.safetensors");
    let model = model(&shrunk("gpt2"));
    for layout in [Layout::Native, Layout::HuggingFace] {
        let saved = || {
            weights::save(&model, &path, layout, Stored::F32).expect("saves");
            std::fs::read(&path).expect("reads")
        };
        let first = saved();
        // Two entries in hash order agree once in 65,536 runs.
        assert!((0..16).all(|_| saved() == first), "{layout:?}");
    }
}

#[test]
fn a_weight_that_is_not_finite_is_named_and_neither_saved_nor_loaded() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("model.safetensors");
    for broken in [f32::NAN, f32::INFINITY] {
        let sound = model(&shrunk("gpt2"));
        weights::save_pretrained(&sound, directory.path(), Stored::F32).expect("saves");
        let mut bytes = std::fs::read(&path).expect("reads");
        let last = bytes.len() - 4;
        bytes[last..].copy_from_slice(&broken.to_le_bytes());
        std::fs::write(&path, &bytes).expect("writes");
        let error = weights::load_pretrained::<Tape>(directory.path(), &DEVICE).expect_err("it is broken");
        assert!(error.to_string().starts_with("tensor `transformer.wte.weight` holds"), "{error}");

        let mut unsound = sound;
        unsound.wte = Param::from_tensor(unsound.wte.val().mul_scalar(broken).detach());
        std::fs::remove_file(&path).expect("removes");
        let error = weights::save(&unsound, &path, Layout::Native, Stored::F32).expect_err("it is broken");
        assert!(error.to_string().starts_with("tensor `wte` holds"), "{error}");
        assert!(!path.exists(), "nothing is left of a save that failed");
    }
}

#[test]
fn a_description_of_more_than_the_file_holds_is_refused_before_anything_is_allocated() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("model.safetensors");
    let config = shrunk("gpt2");
    weights::save(&model(&config), &path, Layout::HuggingFace, Stored::F32).expect("saves");
    for larger in [
        GptConfig { n_inner: Some(1 << 44), ..config.clone() },
        GptConfig { n_positions: 1 << 44, ..config.clone() },
        GptConfig { n_layer: 1 << 40, ..config.clone() },
    ] {
        let error =
            weights::load::<Tape>(&larger, &[&path], Layout::HuggingFace, &DEVICE).expect_err("larger");
        let said = error.to_string();
        assert!(said.contains("are not those of the model") || said.contains("blocks, but"), "{said}");
    }
}

#[test]
fn tensors_are_fetched_in_file_order_until_one_fails() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("moments.safetensors");
    let fetched = std::cell::RefCell::new(Vec::new());
    let write = |values: [f32; 3]| {
        let tensor = |(name, value): (&'static str, f32)| {
            let fetched = &fetched;
            let fetch: Fetch<'_> = Box::new(move || {
                fetched.borrow_mut().push(name);
                Ok(TensorData::new(vec![value; 6], [2, 3]))
            });
            (name.to_owned(), Outgoing { shape: vec![2, 3], fetch })
        };
        let tensors: BTreeMap<_, _> = ["c", "a", "b"].into_iter().zip(values).map(tensor).collect();
        Begun::with(&path, tensors)?.finish(|_| false)
    };
    write([3.0, 1.0, 2.0]).expect("writes");
    assert_eq!(fetched.take(), ["a", "b", "c"]);
    let file = TensorFile::open(&path).expect("opens");
    assert_eq!(file.count(), 3);
    assert_eq!(file.numbers("c").expect("it is there"), TensorData::new(vec![3.0f32; 6], [2, 3]));
    assert!(file.numbers("d").expect_err("it is not there").to_string().contains('d'));

    let error = write([3.0, 1.0, f32::NAN]).expect_err("no number");
    assert!(error.to_string().starts_with("tensor `b` holds NaN"), "{error}");
    assert_eq!(fetched.take(), ["a", "b"], "nothing is fetched for a file that will not be");
}

#[test]
fn processes_that_write_their_own_tensors_make_the_file_of_one() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [whole, shared] = ["whole", "shared"].map(|name| directory.path().join(name));
    let numbers = |value: f32| TensorData::new((0..6).map(|n| value + n as f32).collect::<Vec<_>>(), [2, 3]);
    let begin = |path| {
        let tensor = |(name, value): (&str, f32)| {
            let fetch: Fetch<'_> = Box::new(move || Ok(numbers(value)));
            (name.to_owned(), Outgoing { shape: vec![2, 3], fetch })
        };
        Begun::with(path, [("a", 1.0), ("b", 2.0), ("c", 3.0)].map(tensor).into()).expect("begun")
    };
    begin(&whole).finish(|_| false).expect("written");

    let begun = begin(&shared);
    let place = |name| begun.place(name).expect("it is in the file");
    let (a, c) = (place("a"), place("c"));
    assert_eq!(begun.place("d"), None);
    let mut joined = Joined::open(&shared).expect("it is begun");
    joined.write("c", c, numbers(3.0)).expect("written");
    begun.finish(|name| name != "b").expect("written");
    joined.write("a", a, numbers(1.0)).expect("written");
    joined.sync().expect("synced");
    let [shared_bytes, whole] = [&shared, &whole].map(|path| std::fs::read(path).expect("reading"));
    assert!(shared_bytes == whole);

    let mut joined = Joined::open(&shared).expect("it is there");
    let error = joined.write("c", c, numbers(f32::NAN)).expect_err("no number");
    assert!(error.to_string().starts_with("tensor `c` holds NaN"), "{error}");
    let absent = directory.path().join("absent");
    let error = Joined::open(&absent).map(drop).expect_err("it was not begun").to_string();
    assert!(error.contains("could not write weights to") && error.contains("absent"), "{error}");
}
