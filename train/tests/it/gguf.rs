//! Exported GGUF files in `llama.cpp`: each family continues a text as `train sample` does.
//!
//! Weights follow a formula: recorded answers hold everywhere. An installed `llama.cpp` is asked, too.

use std::collections::BTreeMap;
use std::{env, fs, path::Path, process::Command};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use suite::Need;
use tokenizer::Fingerprint;

use crate::known_weights;
use crate::program::{assert_code, assert_success, last_words, stdout};
use crate::tiny::Tiny;

const PROMPT: &str = "It was 7 o'clock";
const MOST: usize = 16;
const WIDTH: usize = 64;
const INNER: usize = 96;
const WORDS: usize = 264;
/// Wider than the stream's share.
const HEAD: usize = 48;

/// Printed by `goldens/continue.mjs`.
const GOLDENS: &str = include_str!("../goldens/gguf.json");

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Golden {
    digest: String,
    text: String,
}

fn goldens() -> BTreeMap<String, Golden> {
    serde_json::from_str(GOLDENS).expect("JSON")
}

fn families() -> Vec<(&'static str, Value)> {
    let sizes = json!({
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": WIDTH,
        "intermediate_size": INNER, "max_position_embeddings": 64, "vocab_size": WORDS, "head_dim": HEAD,
        "rms_norm_eps": 1e-5, "rope_theta": 500.0, "hidden_act": "silu", "tie_word_embeddings": false,
    });
    let with = |more: Value| {
        let mut config = sizes.clone();
        let more = more.as_object().expect("an object").clone();
        config.as_object_mut().expect("an object").extend(more);
        config
    };
    let gemma = |more: Value| {
        let mut config = with(json!({
            "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": HEAD, "tie_word_embeddings": true,
            "sliding_window": 8, "num_hidden_layers": 7,
        }));
        config.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        config
    };
    let stretched = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16
    });
    vec![
        (
            "gpt2",
            json!({
                "model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": WIDTH, "n_positions": 64,
                "vocab_size": WORDS, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5
            }),
        ),
        ("llama", with(json!({ "model_type": "llama", "attention_bias": true, "rope_scaling": stretched }))),
        (
            "llama-linear",
            with(json!({ "model_type": "llama", "rope_scaling": { "rope_type": "linear", "factor": 4.0 } })),
        ),
        ("qwen2", with(json!({ "model_type": "qwen2", "tie_word_embeddings": true, "head_dim": WIDTH / 2 }))),
        ("qwen3", with(json!({ "model_type": "qwen3" }))),
        (
            "smollm3",
            with(json!({ "model_type": "smollm3", "num_hidden_layers": 5, "no_rope_layer_interval": 4 })),
        ),
        // Heads add up to the stream's width, as in Qwen2.
        ("olmo2", with(json!({ "model_type": "olmo2", "head_dim": WIDTH / 2 }))),
        (
            "gemma2",
            gemma(json!({
                "model_type": "gemma2", "attn_logit_softcapping": 20.0, "final_logit_softcapping": 15.0
            })),
        ),
        (
            "gemma3",
            gemma(json!({
                "model_type": "gemma3_text", "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6,
                "rope_scaling": { "rope_type": "linear", "factor": 2.0 }
            })),
        ),
    ]
}

fn shapes(family: &str, config: &Value) -> Vec<(String, Vec<usize>)> {
    let mut found = Vec::new();
    let mut add = |name: String, shape: &[usize]| found.push((name, shape.to_vec()));
    if family == "gpt2" {
        add("transformer.wte.weight".into(), &[WORDS, WIDTH]);
        add("transformer.wpe.weight".into(), &[64, WIDTH]);
        for layer in 0..2 {
            let matrices = [
                ("attn.c_attn", [WIDTH, 3 * WIDTH]),
                ("attn.c_proj", [WIDTH, WIDTH]),
                ("mlp.c_fc", [WIDTH, 4 * WIDTH]),
                ("mlp.c_proj", [4 * WIDTH, WIDTH]),
            ];
            for (name, shape) in matrices {
                add(format!("transformer.h.{layer}.{name}.weight"), &shape);
                add(format!("transformer.h.{layer}.{name}.bias"), &shape[1..]);
            }
            for kind in ["ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"] {
                add(format!("transformer.h.{layer}.{kind}"), &[WIDTH]);
            }
        }
        add("transformer.ln_f.weight".into(), &[WIDTH]);
        add("transformer.ln_f.bias".into(), &[WIDTH]);
        return found;
    }

    let head = config["head_dim"].as_u64().expect("a number") as usize;
    add("model.embed_tokens.weight".into(), &[WORDS, WIDTH]);
    add("model.norm.weight".into(), &[WIDTH]);
    if config["tie_word_embeddings"] == json!(false) {
        add("lm_head.weight".into(), &[WORDS, WIDTH]);
    }
    let norms: &[&str] = match family {
        "olmo2" => &["post_attention_layernorm", "post_feedforward_layernorm"],
        "gemma2" | "gemma3" => &[
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ],
        _ => &["input_layernorm", "post_attention_layernorm"],
    };
    for layer in 0..config["num_hidden_layers"].as_u64().expect("a number") {
        let block = |name: &str| format!("model.layers.{layer}.{name}");
        for norm in norms {
            add(block(&format!("{norm}.weight")), &[WIDTH]);
        }
        let projections = [("q_proj", 2 * head), ("k_proj", head), ("v_proj", head)];
        for (name, rows) in projections {
            add(block(&format!("self_attn.{name}.weight")), &[rows, WIDTH]);
            if family == "qwen2" || config["attention_bias"] == json!(true) {
                add(block(&format!("self_attn.{name}.bias")), &[rows]);
            }
        }
        add(block("self_attn.o_proj.weight"), &[WIDTH, 2 * head]);
        if config["attention_bias"] == json!(true) {
            add(block("self_attn.o_proj.bias"), &[WIDTH]);
        }
        let normed = match family {
            "olmo2" => Some([2 * head, head]),
            "qwen3" | "gemma3" => Some([head, head]),
            _ => None,
        };
        for (name, width) in ["q_norm", "k_norm"].into_iter().zip(normed.into_iter().flatten()) {
            add(block(&format!("self_attn.{name}.weight")), &[width]);
        }
        add(block("mlp.gate_proj.weight"), &[INNER, WIDTH]);
        add(block("mlp.up_proj.weight"), &[INNER, WIDTH]);
        add(block("mlp.down_proj.weight"), &[WIDTH, INNER]);
    }
    found
}

fn publish(folder: &Path, family: &str, config: &Value) {
    known_weights::publish(folder, config, &shapes(family, config), |name, drawn| match name {
        name if name.contains("norm") && family.starts_with("gemma") => 0.2 * drawn,
        name if name.ends_with("bias") => 0.1 * drawn,
        name if name.contains("ln_") || name.contains("norm") => 1.0 + 0.2 * drawn,
        // Else a tied head repeats the last token.
        name if name.contains("embed_tokens") => 0.03 * drawn,
        _ => 0.3 * drawn,
    });
}

fn import(tiny: &Tiny, family: &str, config: &Value) {
    let published = format!("{family}-published");
    publish(&tiny.join(&published), family, config);
    let import = ["import", "--from", &published, "--tokenizer", "run/tokenizer", "--out", family];
    assert_success(&tiny.train(&import));
}

fn export(tiny: &Tiny, family: &str, options: &[&str]) -> String {
    let out = format!("{family}-gguf{}", options.concat());
    let export = ["export", "--from", family, "--out", &out, "--device", "cpu", "--layout", "gguf"];
    assert_success(&tiny.train(&[&export[..], options].concat()));
    out
}

fn continued(tiny: &Tiny, run: &str) -> String {
    let most = MOST.to_string();
    let asked =
        ["sample", "--from", run, "--prompt", PROMPT, "--temperature", "0", "--json", "--device", "cpu"];
    let output = tiny.train(&[&asked[..], &["--max-new-tokens", &most]].concat());
    assert_success(&output);
    let said: Value = serde_json::from_str(&stdout(&output)).expect("one object");
    said["text"].as_str().expect("a text").to_owned()
}

#[test]
fn each_familys_file_is_the_one_that_llama_cpp_continued_as_we_do() {
    let tiny = Tiny::trained(&[]);
    let found = families().into_iter().map(|(family, config)| {
        import(&tiny, family, &config);
        let folder = export(&tiny, family, &["--dtype", "f32"]);
        let file = fs::read(tiny.join(&folder).join("model.gguf")).expect("a file");
        let golden = Golden { digest: Fingerprint::of(&file).to_string(), text: continued(&tiny, family) };
        (family.to_owned(), golden)
    });
    let found: BTreeMap<String, Golden> = found.collect();
    assert_eq!(found, goldens(), "{}", serde_json::to_string_pretty(&found).expect("JSON"));
}

#[test]
fn models_and_vocabularies_that_llama_cpp_lacks_are_refused_by_name() {
    let tiny = Tiny::trained(&[]);
    let refusal = |run: &str, more: &[&str]| {
        let export = ["export", "--from", run, "--out", "refused", "--device", "cpu"];
        let output = tiny.train(&[&export[..], more].concat());
        assert_code(&output, 2);
        assert!(!tiny.join("refused").exists(), "a refusal leaves no folder");
        last_words(&output, tiny.path())
    };
    let gguf = ["--layout", "gguf"];
    insta::assert_snapshot!(refusal("run", &gguf), @r#"train: the model cannot be written for llama.cpp, whose nearest architecture is qwen3: `hidden_act` = "relu2" in the published configuration asks for something this network does not do; use another layout"#);

    let (family, mut config) = families().swap_remove(1);
    config["hidden_act"] = json!("gelu_pytorch_tanh");
    import(&tiny, family, &config);
    insta::assert_snapshot!(refusal(family, &gguf), @"train: the model cannot be written for llama.cpp, whose nearest architecture is llama: it lacks this `activation_function`; use another layout");
    insta::assert_snapshot!(refusal(family, &["--dtype", "q8_0"]), @"train: --dtype q8_0 needs --layout gguf");

    let (family, config) = families().swap_remove(2);
    fs::create_dir(tiny.join("text")).expect("making");
    fs::write(tiny.join("text/a.txt"), "12 and 345 and 6789, ".repeat(200)).expect("written");
    let train = ["tokenizer", "train", "--input", "text", "--vocab-size", "263", "--out"];
    for (digits, out) in [("2", "pairs"), ("3", "triples")] {
        assert_success(&tiny.train(&[&train[..], &[out, "--digits", digits]].concat()));
        let (run, from) = (format!("{family}-{out}"), format!("{out}-published"));
        publish(&tiny.join(&from), family, &config);
        assert_success(&tiny.train(&["import", "--from", &from, "--tokenizer", out, "--out", &run]));
    }
    insta::assert_snapshot!(refusal(&format!("{family}-pairs"), &gguf), @"train: llama.cpp cannot run this tokenizer: it cuts numbers into pairs of digits; `train tokenizer train --digits 3` makes one that it can");
    export(&tiny, &format!("{family}-triples"), &[]);
}

mod full {
    use super::*;

    /// `None` without `llama.cpp`.
    fn llama_cpp(file: &Path, prompt: &str) -> Option<Value> {
        let installed = env::var("LLAMA_CPP_DIR").map_err(|_| "LLAMA_CPP_DIR names no folder");
        Need::LlamaCpp.found(installed)?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/continue.mjs");
        let mut node = Command::new("node");
        let output =
            node.arg(script).arg(file).args([prompt, &MOST.to_string()]).output().expect("node starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(serde_json::from_slice(&output.stdout).expect("one object"))
    }

    #[test]
    #[ignore = "full: the kept answers are the program's, which is asked again"]
    fn the_recorded_answers_are_those_of_llama_cpp() {
        let tiny = Tiny::trained(&[]);
        for (family, config) in families() {
            import(&tiny, family, &config);
            let recorded = &goldens()[family].text;
            for dtype in ["f32", "f16", "bf16", "q8_0"] {
                let folder = export(&tiny, family, &["--dtype", dtype]);
                let file = tiny.join(&folder).join("model.gguf");
                let Some(said) = llama_cpp(&file, PROMPT) else { return };
                // Rounded weights may choose other tokens.
                if ["f32", "f16"].contains(&dtype) {
                    assert_eq!(said["text"].as_str(), Some(recorded.as_str()), "{family} in {dtype}: {said}");
                }
            }
        }
    }
}
