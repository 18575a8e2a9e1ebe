//! Any bytes as JSON lines.
#![no_main]

use std::{fs, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use tokenizer::{Body, CHAT_SPECIALS, Corpus, Error, Role, Tokenizer};

static BYTES: LazyLock<Tokenizer> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    Tokenizer::bytes(&CHAT_SPECIALS).save(folder.path()).expect("saving");
    Tokenizer::load(folder.path()).expect("loading")
});

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("input.jsonl");
    fs::write(&path, bytes).expect("writing");
    let Ok(corpus) = Corpus::find(&[path], false) else { return };
    for part in corpus.parts(None) {
        match part.map(|part| part.body) {
            Ok(Body::Text(text)) => {
                let ids = BYTES.encode(&text).expect("bytes encode any text");
                assert_eq!(BYTES.decode(&ids).expect("its own ids"), text);
            }
            Ok(Body::Chat(messages)) => match BYTES.encode_chat(&messages) {
                Ok(chat) => {
                    assert_eq!(chat.ids.len(), chat.trained.len());
                    let controls = chat.ids.iter().filter(|id| BYTES.specials().contains(**id)).count();
                    let system = usize::from(messages[0].role == Role::System);
                    assert_eq!(controls, 1 + 2 * (messages.len() - system), "no message adds control tokens");
                }
                Err(Error::Chat(_)) => {}
                Err(error) => panic!("{error}"),
            },
            Ok(Body::Bytes(_)) => panic!("JSON lines hold no bytes"),
            Err(Error::Line { line, .. }) => assert!(line >= 1),
            Err(Error::NotUtf8 { .. } | Error::Read { .. }) => {}
            // Contents decide the format, not the name.
            Err(Error::Parquet { .. }) => assert!(bytes.starts_with(b"PAR1")),
            Err(error) => panic!("{error}"),
        }
    }
});
