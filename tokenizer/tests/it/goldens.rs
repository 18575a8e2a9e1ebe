//! Python's `tokenizers`, by files of `goldens/make.py`.

use std::{collections::BTreeMap, fs};

use serde::Deserialize;
use serde_json::Value;
use tokenizer::{Message, Tokenizer};

use crate::fixtures::{SMALL, goldens};

#[derive(Deserialize)]
struct Probe {
    text: String,
    ids: Vec<u32>,
    decoded: String,
}

fn probes(name: &str) -> Vec<Probe> {
    let json = fs::read(goldens().join("encodings.json")).expect("the golden is committed");
    let mut all: BTreeMap<String, Vec<Probe>> = serde_json::from_slice(&json).expect("the golden parses");
    all.remove(name).expect("the golden has these probes")
}

fn assert_encodes_like_python(name: &str, tokenizer: &Tokenizer) {
    for probe in probes(name) {
        let ids = tokenizer.encode(&probe.text).expect("the probe encodes");
        assert_eq!(ids, probe.ids, "{name}: {:?}", probe.text);
        assert_eq!(
            tokenizer.decode(&ids).expect("the ids decode"),
            probe.decoded,
            "{name}: {:?}",
            probe.text
        );
    }
}

#[test]
fn training_gives_the_same_vocabulary_as_python() {
    let folder = tempfile::tempdir().expect("a folder");
    SMALL.save(folder.path()).expect("saving");
    let read = |path| -> Value { serde_json::from_slice(&fs::read(path).expect("reading")).expect("JSON") };
    let ours = read(folder.path().join("tokenizer.json"));
    let python = read(goldens().join("trained.json"));
    for part in ["/model/vocab", "/model/merges", "/added_tokens", "/pre_tokenizer"] {
        assert_eq!(ours.pointer(part), python.pointer(part), "{part}");
    }
}

#[test]
fn a_vocabulary_trained_here_encodes_as_python_does() {
    assert_encodes_like_python("trained", &SMALL);
}

#[test]
fn files_saved_by_python_encode_as_python_does() {
    for (name, kind) in [("trained", "byte-level BPE"), ("metaspace", "BPE"), ("nfc", "BPE")] {
        let tokenizer = Tokenizer::load(goldens().join(format!("{name}.json"))).expect("the golden loads");
        assert_eq!(tokenizer.kind(), kind, "{name}");
        assert_encodes_like_python(name, &tokenizer);
    }
}

#[test]
fn transformers_loads_a_saved_tokenizer_and_encodes_chats_equally() {
    #[derive(Deserialize)]
    struct Chat {
        messages: Vec<Message>,
        prompt: Vec<u32>,
        finished: Vec<u32>,
    }
    let folder = tempfile::tempdir().expect("a folder");
    SMALL.save(folder.path()).expect("saving");
    let read = |path| fs::read_to_string(path).expect("reading");
    let config = "tokenizer_config.json";
    assert_eq!(
        read(folder.path().join(config)),
        read(goldens().join(config)),
        "load_in_transformers.py read another one"
    );
    let chat: Chat = serde_json::from_str(&read(goldens().join("chat.json"))).expect("the golden parses");
    assert_eq!(SMALL.encode_prompt(&chat.messages).expect("it encodes"), chat.prompt);
    assert_eq!(SMALL.encode_chat(&chat.messages[..3]).expect("it encodes").ids, chat.finished);
}
