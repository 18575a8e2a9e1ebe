//! Configurations are parsed strictly; bad ones allocate nothing.

use models::ConfigError;
use models::{Activation, Positions};
use models::{Footprint, Gpt, GptConfig, presets};

use crate::fixtures::{Cpu, DEVICE};

fn refused(json: &str) -> String {
    GptConfig::from_json(json).expect_err("this description must be refused").to_string()
}

fn with(entry: &str) -> String {
    format!(r#"{{"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 4, "vocab_size": 5, {entry}}}"#)
}

#[test]
fn each_bad_size_gives_one_clear_error() {
    let cases = [
        (r#"{"preset": "gpt2", "n_layer": 0}"#, "`n_layer` is 0, it must be at least 1"),
        (r#"{"preset": "gpt2", "vocab_size": 0}"#, "`vocab_size` is 0"),
        (r#"{"preset": "gpt2", "n_kv_head": 0}"#, "`n_kv_head` is 0"),
        (
            r#"{"preset": "gpt2", "n_embd": 770}"#,
            "`n_embd` = 770 is not divisible by `n_head` = 12; the nearest multiple is 768",
        ),
        (r#"{"preset": "gpt2", "n_embd": 5}"#, "the nearest multiple is 12"),
        (
            r#"{"preset": "gpt2", "n_embd": 18446744073709551615}"#,
            "`n_embd` = 18446744073709551615 is not divisible",
        ),
        (r#"{"preset": "gpt2", "n_kv_head": 5}"#, "`n_head` = 12 is not divisible by `n_kv_head` = 5"),
        (r#"{"preset": "llama-2-7b", "n_embd": 96}"#, "even head width, but `n_embd` / `n_head` = 3"),
        (r#"{"preset": "gpt2", "resid_pdrop": 1.0}"#, "`resid_pdrop` = 1 must be in [0, 1)"),
        (r#"{"preset": "gpt2", "embd_pdrop": 0.99999999}"#, "`embd_pdrop` = 0.99999999 must be in [0, 1)"),
        (
            r#"{"preset": "gpt2", "layer_norm_epsilon": 1e-46}"#,
            "must be a finite number above 0, from 1.2e-38 to 3.4e38",
        ),
        (
            r#"{"preset": "gpt2", "attn_pdrop": 0.1}"#,
            "`attn_pdrop` = 0.1: dropout on attention weights is not supported",
        ),
        (
            r#"{"preset": "gpt2", "logit_softcap": -1}"#,
            "`logit_softcap` = -1 must be a finite number above 0",
        ),
        (r#"{"preset": "gpt5"}"#, "no model preset `gpt5`; the presets are gpt2, gpt2-medium"),
        ("[]", "must be a JSON object, found an array"),
    ];
    for (json, expected) in cases {
        let message = refused(json);
        assert!(message.contains(expected), "{json} gave: {message}");
    }
}

#[test]
fn huge_sizes_are_refused_instead_of_overflowing() {
    let huge = usize::MAX / 2 + 1;
    for key in ["n_layer", "n_positions", "vocab_size", "n_inner", "n_embd"] {
        let mut config = presets::preset("gpt2").expect("a preset");
        let value = if key == "n_embd" { huge / 12 * 12 } else { huge };
        match key {
            "n_layer" => config.n_layer = value,
            "n_positions" => config.n_positions = value,
            "vocab_size" => config.vocab_size = value,
            "n_inner" => config.n_inner = Some(value),
            _ => config.n_embd = value,
        }
        let error = Gpt::<Cpu>::new(&config, 0, &DEVICE).expect_err("no machine can hold this");
        assert!(Footprint::of(&config).is_err(), "nor can it be planned");
        assert!(matches!(error, ConfigError::TooLarge { .. }), "{key}: {error}");
    }
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_one() {
    let nearest = [("n_layers", "n_layer"), ("hiden_size", "hidden_size"), ("vocabsize", "vocab_size")];
    for (typo, known) in nearest {
        let message = refused(&with(&format!(r#""{typo}": 3"#)));
        assert_eq!(message, format!("unknown model key `{typo}`; the nearest known key is `{known}`"));
    }
}

#[test]
fn a_value_of_the_wrong_type_is_reported_with_its_key() {
    let message = refused(r#"{"preset": "gpt2", "n_head": "twelve"}"#);
    assert!(message.starts_with("model key `n_head`: invalid type: string"), "{message}");
    let message = refused(&with(r#""activation_function": "gelu_old""#));
    assert!(message.contains("activation_function") && message.contains("gelu_new"), "{message}");
    let message = refused(r#"{"n_layer": 2}"#);
    assert!(
        message.starts_with("model key `n_head` is missing; without a preset n_layer, n_head"),
        "{message}"
    );
}

#[test]
fn llama_names_mean_the_same_settings() {
    let llama = GptConfig::from_json(
        r#"{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 16,
            "intermediate_size": 40, "max_position_embeddings": 32, "vocab_size": 11, "rms_norm_eps": 1e-6,
            "hidden_act": "silu", "positions": "rope", "final_logit_softcapping": 30.0}"#,
    )
    .expect("a valid description");
    assert_eq!((llama.n_layer, llama.n_head, llama.kv_heads(), llama.n_embd), (2, 4, 2, 16));
    assert_eq!((llama.inner(), llama.n_positions, llama.logit_softcap), (40, 32, Some(30.0)));
    assert_eq!((llama.activation_function, llama.positions), (Activation::SwiGlu, Positions::Rope));
    let message = refused(&with(r#""hidden_size": 8"#));
    assert!(message.contains("sets `n_embd`, which is already set"), "{message}");
}

#[test]
fn every_preset_survives_its_own_json() {
    for name in presets::PRESETS {
        let config = presets::preset(name).expect("a listed preset exists");
        config.validate().expect("a preset is valid");
        assert_eq!(GptConfig::from_value(config.to_value()).expect("a preset reads back"), config);
    }
}

#[test]
fn everything_wrong_with_a_description_is_reported_at_once() {
    let message =
        refused(r#"{"preset": "gpt5", "n_layers": 3, "n_head": "four", "hidden_size": 8, "n_embd": 8}"#);
    let several = [
        "unknown model key `n_layers`",
        "`n_embd` sets `n_embd`, which is already set",
        "no model preset `gpt5`",
        "model key `n_head`: invalid type",
    ];
    for expected in several {
        assert!(message.contains(expected), "{expected} is not in: {message}");
    }
    let message = refused(r#"{"preset": "gpt2", "n_layer": 0, "n_head": 0, "rope_theta": -1}"#);
    assert_eq!(
        message,
        "`n_layer` is 0, it must be at least 1; `n_head` is 0, it must be at least 1; \
         `rope_theta` = -1 must be a finite number above 0, from 1.2e-38 to 3.4e38"
    );
}
