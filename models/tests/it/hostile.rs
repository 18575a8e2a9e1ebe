//! Malicious weight directories: an error, no panic, hang or unbounded memory.

use std::fs;
use std::path::Path;

use models::weights::{self, IndexProblem, Layout, Stored, TensorFile, WeightsError};
use models::{Gpt, GptConfig};
use proptest::{prelude::*, sample::Index};
use tempfile::TempDir;

use crate::fixtures::{Cpu, DEVICE, model, shrunk};

const DESCRIPTION: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const WEIGHTS: &str = "model.safetensors";

fn published() -> (TempDir, std::path::PathBuf) {
    let around = tempfile::tempdir().expect("a folder");
    let directory = around.path().join("published");
    fs::create_dir(&directory).expect("made");
    weights::save_pretrained(&model(&shrunk("gpt2")), &directory, Stored::F32).expect("saves");
    (around, directory)
}

fn load(directory: &Path) -> Result<GptConfig, WeightsError> {
    weights::load_pretrained::<Cpu>(directory, &DEVICE).map(|gpt: Gpt<Cpu>| gpt.config().clone())
}

fn index_of(weights: &Path, name: &str) -> String {
    let bytes = fs::read(weights).expect("reads");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let map: serde_json::Map<_, _> =
        file.names().into_iter().map(|tensor| (tensor.to_owned(), name.into())).collect();
    serde_json::json!({ "weight_map": map }).to_string()
}

#[test]
fn an_index_opens_files_of_its_own_folder_and_no_others() {
    let (around, directory) = published();
    let outside = around.path().join("x");
    fs::rename(directory.join(WEIGHTS), &outside).expect("moved");
    fs::create_dir(directory.join("below")).expect("made");
    fs::copy(&outside, directory.join("below/x")).expect("copied");
    let absolute = outside.to_str().expect("a name").to_owned();
    for name in ["../x", absolute.as_str(), "below/x", "below/../../x", "./../x", "..", ".", "", "x/"] {
        fs::write(directory.join(INDEX), index_of(&outside, name)).expect("written");
        match load(&directory) {
            Err(WeightsError::Index { problem: IndexProblem::OutsideFolder(found), .. }) => {
                assert_eq!(found, name);
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    fs::copy(&outside, directory.join("x")).expect("copied");
    fs::write(directory.join(INDEX), index_of(&outside, "x")).expect("written");
    load(&directory).expect("a file beside its index");
}

#[test]
fn an_index_that_maps_nothing_to_files_is_refused() {
    let (_around, directory) = published();
    fs::remove_file(directory.join(WEIGHTS)).expect("removed");
    for text in ["", "[]", "{}", r#"{"weight_map": []}"#, r#"{"weight_map": {"wte": 3}}"#, "no JSON"] {
        fs::write(directory.join(INDEX), text).expect("written");
        let refused = load(&directory).expect_err("no index");
        assert!(
            matches!(refused, WeightsError::Index { problem: IndexProblem::Json(_), .. }),
            "{text}: {refused}"
        );
    }
    fs::write(directory.join(INDEX), r#"{"weight_map": {}}"#).expect("written");
    let refused = load(&directory).expect_err("an empty index");
    assert!(refused.to_string().ends_with("it names no file"), "{refused}");
}

#[test]
fn oversized_descriptions_and_indexes_are_not_read() {
    let (_around, directory) = published();
    fs::remove_file(directory.join(WEIGHTS)).expect("removed");
    for name in [DESCRIPTION, INDEX] {
        let path = directory.join(name);
        let kept = fs::read(&path).unwrap_or_default();
        fs::File::create(&path).and_then(|file| file.set_len(200 << 30)).expect("a sparse file");
        let refused = load(&directory).expect_err("too large").to_string();
        assert!(refused.contains("has 214748364800 bytes"), "{refused}");
        fs::write(&path, kept).expect("written");
    }
}

#[cfg(unix)]
#[test]
fn fifos_devices_and_folders_are_refused_wherever_a_file_is_read() {
    use std::process::Command;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    let (around, directory) = published();
    let fifo = around.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo runs").success());
    for odd in [fifo.as_path(), Path::new("/dev/zero"), around.path()] {
        for name in [DESCRIPTION, WEIGHTS, INDEX] {
            let path = directory.join(name);
            let whole = directory.join(WEIGHTS);
            let numbers = fs::read(&whole).expect("read");
            if name == INDEX {
                // It counts where there is no whole file.
                fs::remove_file(&whole).expect("removed");
            }
            let kept = fs::read(&path).ok();
            if kept.is_some() {
                fs::remove_file(&path).expect("removed");
            }
            std::os::unix::fs::symlink(odd, &path).expect("linked");
            let (sender, receiver) = channel();
            let reading = directory.clone();
            std::thread::spawn(move || {
                _ = sender.send(load(&reading).map_err(|error| error.to_string()));
            });
            // Reading a pipe blocks forever.
            let refused =
                receiver.recv_timeout(Duration::from_mins(2)).expect("an answer within two minutes");
            let refused = refused.expect_err("no regular file");
            assert!(refused.contains("it is no regular file"), "{name}: {refused}");
            fs::remove_file(&path).expect("removed");
            if let Some(kept) = kept {
                fs::write(&path, kept).expect("written");
            }
            fs::write(&whole, numbers).expect("written");
        }
    }
    load(&directory).expect("everything is back");
}

#[test]
fn tensor_sizes_that_overflow_are_refused() {
    let (_around, directory) = published();
    let most = usize::MAX / 8;
    let tensors: serde_json::Map<_, _> = (0..8)
        .map(|n| {
            let info = serde_json::json!({ "dtype": "U8", "shape": [most], "data_offsets": [n * most, (n + 1) * most] });
            (format!("t{n}"), info)
        })
        .collect();
    let header = serde_json::Value::Object(tensors).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    fs::write(directory.join(WEIGHTS), bytes).expect("written");
    assert!(matches!(load(&directory), Err(WeightsError::Format { .. })));
}

const VALUES: [&str; 14] = [
    "-1",
    "0",
    "1e308",
    "4294967296",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "null",
    "true",
    "[]",
    "{}",
    "[18446744073709551615,18446744073709551615]",
    "\"F32\"",
    "\"\\u0000\"",
];

fn changed(bytes: &[u8], at: usize, removed: usize, put: &[u8]) -> Vec<u8> {
    [&bytes[..at], put, &bytes[(at + removed).min(bytes.len())..]].concat()
}

fn part() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "[-0-9eE.,:{}\\[\\]\"a-zA-Z_/\\\\]{0,12}".prop_map(String::into_bytes),
        prop::sample::select(VALUES.map(|value| value.as_bytes().to_vec()).to_vec()),
        prop::collection::vec(any::<u8>(), 0..12),
    ]
}

#[test]
fn no_bytes_in_a_weights_file_cause_a_panic() {
    let (_around, directory) = published();
    let path = directory.join(WEIGHTS);
    let wholes = [Layout::Native, Layout::HuggingFace].map(|layout| {
        weights::save(&model(&shrunk("gpt2")), &path, layout, Stored::F32).expect("saves");
        fs::read(&path).expect("reads")
    });
    let only = prop::option::weighted(0.2, prop::collection::vec(any::<u8>(), 0..200));
    let length = prop::option::weighted(0.1, any::<u64>());
    proptest!(ProptestConfig::with_cases(suite::cases(256)), |(native in any::<bool>(), at in any::<Index>(), removed in 0..24_usize, put in part(), length in length, only in only)| {
        let whole = &wholes[usize::from(!native)];
        let header = u64::from_le_bytes(whole[..8].try_into().expect("eight bytes"));
        // Changes the header: most other bytes are numbers.
        let mut bytes = changed(whole, at.index(header as usize + 16), removed, &put);
        // The length covers the change, which is then parsed.
        let length = length.unwrap_or((header + put.len() as u64).saturating_sub(removed as u64));
        if bytes.len() > 8 {
            bytes[..8].copy_from_slice(&length.to_le_bytes());
        }

        fs::write(&path, only.unwrap_or(bytes)).expect("writes");
        let _read_or_refused = (load(&directory), weights::load_native::<Cpu>(&path, &DEVICE));
        if let Ok(file) = TensorFile::open(&path) {
            let names = ["wte", "transformer.wte.weight", "transformer.h.0.ln_1.bias"];
            for name in names {
                drop(file.numbers(name));
            }
        }
    });
}

#[test]
fn no_published_description_causes_a_panic_or_an_invalid_model() {
    let published = ["gpt2", "llama-1.1b"]
        .map(|preset| weights::config_to_hugging_face(&shrunk(preset)).expect("it has a name there"));
    let value = prop::sample::select(VALUES.to_vec());
    proptest!(ProptestConfig::with_cases(suite::cases(256)), |(which in 0..2_usize, key in any::<Index>(), value in value, at in any::<Index>(), removed in 0..24_usize, put in part())| {
        let text = published[which].to_string();
        let spliced = changed(text.as_bytes(), at.index(text.len()), removed, &put);
        let mut replaced = published[which].clone();
        let fields = replaced.as_object_mut().expect("an object");
        let key = fields.keys().nth(key.index(fields.len())).expect("one of them").clone();
        fields.insert(key, serde_json::from_str(value).unwrap_or(serde_json::Value::Null));
        for text in [String::from_utf8_lossy(&spliced).into_owned(), replaced.to_string()] {
            if let Ok(config) = weights::config_from_hugging_face(&text) {
                prop_assert!(config.validate().is_ok(), "{text}");
            }
        }
    });
}

#[test]
fn no_shard_index_causes_a_panic() {
    let (_around, directory) = published();
    let index = index_of(&directory.join(WEIGHTS), WEIGHTS);
    proptest!(ProptestConfig::with_cases(suite::cases(256)), |(at in any::<Index>(), removed in 0..40_usize, put in part())| {
        let text = changed(index.as_bytes(), at.index(index.len()), removed, &put);
        fs::write(directory.join(INDEX), text).expect("written");
        if let Err(refused) = load(&directory) {
            let expected = matches!(refused, WeightsError::Index { .. } | WeightsError::File { .. });
            prop_assert!(expected, "{refused}");
        }
    });
}
