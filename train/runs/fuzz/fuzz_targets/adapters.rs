//! Any bytes as both files of adapters in PEFT's layout. The first two say how many describe them.
#![no_main]

use std::{fs, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use models::{GptConfig, weights::PeftAdapters};
use tempfile::TempDir;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder"));

static BASE: LazyLock<GptConfig> = LazyLock::new(|| {
    let shape = r#"{"preset": "llama-160m", "n_layer": 1, "n_head": 2, "n_embd": 8, "n_inner": 16,
                    "n_positions": 16, "vocab_size": 32}"#;
    GptConfig::from_json(shape).expect("a model")
});

fuzz_target!(|bytes: &[u8]| {
    let [high, low, rest @ ..] = bytes else { return };
    let (config, weights) = rest.split_at(rest.len().min(usize::from(u16::from_be_bytes([*high, *low]))));
    fs::write(FOLDER.path().join("adapter_config.json"), config).expect("writing");
    fs::write(FOLDER.path().join("adapter_model.safetensors"), weights).expect("writing");
    if let Ok(adapters) = PeftAdapters::open(&BASE, FOLDER.path()) {
        adapters.lora().check(&BASE).expect("adapters that fit");
    }
});
