//! Folders of llm.c's and nanoGPT's `.bin` files.

use std::{fs, path::Path};

use tokenizer::{
    Align, CHAT_SPECIALS, Cursor, Error, ShardProblem, Split, TokenDataset, Tokenizer, WindowPlan,
};

use crate::fixtures::{by_document, preparation, write_documents, written};

const PLAN: WindowPlan = WindowPlan { length: 8, align: Align::Document, shuffle: false };

fn bytes() -> Tokenizer {
    Tokenizer::bytes(&CHAT_SPECIALS)
}

fn open(folder: &Path, split: Split) -> Result<TokenDataset, Error> {
    TokenDataset::open(folder, split, &bytes(), PLAN)
}

fn ids(documents: usize) -> Vec<u16> {
    let bos = bytes().bos().expect("it has one") as u16;
    (0..documents).flat_map(|_| std::iter::once(bos).chain(u16::from(b'a')..=u16::from(b't'))).collect()
}

fn write_headerless(path: &Path, ids: &[u16]) {
    fs::write(path, ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<_>>()).expect("writing");
}

fn write_llm_c(path: &Path, ids: &[u16]) {
    let mut file = vec![0; 1024];
    for (at, word) in [20_240_520, 1, ids.len() as i32].into_iter().enumerate() {
        file[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
    }
    file.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
    fs::write(path, file).expect("writing");
}

#[test]
fn files_of_llm_c_and_nanogpt_open_like_a_set() {
    let folder = tempfile::tempdir().expect("a folder");
    let (nano, llm_c) = (folder.path().join("nano"), folder.path().join("llm.c"));
    for made in [&nano, &llm_c] {
        fs::create_dir(made).expect("a folder");
    }
    fs::write(nano.join("meta.pkl"), "not looked at").expect("writing");
    write_headerless(&nano.join("train.bin"), &ids(10));
    write_headerless(&nano.join("val.bin"), &ids(2));
    write_llm_c(&llm_c.join("fineweb_train_000002.bin"), &ids(4));
    write_llm_c(&llm_c.join("fineweb_train_000001.bin"), &ids(6));
    write_llm_c(&llm_c.join("fineweb_val_000000.bin"), &ids(2));
    for made in [&nano, &llm_c] {
        let (train, val) = (open(made, Split::Train).expect("train"), open(made, Split::Val).expect("val"));
        assert_eq!((train.tokens(), val.tokens()), (210, 42));
        train.verify().expect("all ids are known");
        let (_, window) = train.stream(Cursor::start(0)).next().expect("no end").expect("a window");
        assert_eq!(bytes().decode(&window.x).expect("its own ids"), "abcdefg");
        assert!(train.fingerprint().expect("a digest") != val.fingerprint().expect("a digest"));
    }
}

#[test]
fn a_missing_split_a_wrong_tokenizer_and_a_lost_manifest_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    write_headerless(&folder.path().join("train.bin"), &ids(10));
    let missing = open(folder.path(), Split::Val);
    assert!(
        matches!(missing, Err(Error::Shard { problem: ShardProblem::NoShards("val"), .. })),
        "{missing:?}"
    );

    let mut foreign = ids(10);
    foreign[100] = 50_256;
    write_headerless(&folder.path().join("train.bin"), &foreign);
    let wrong = open(folder.path(), Split::Train);
    assert!(
        matches!(wrong, Err(Error::Shard { problem: ShardProblem::TokenId { id: 50_256, at: 100, .. }, .. })),
        "{wrong:?}"
    );

    let (input, out) = (folder.path().join("in.jsonl"), folder.path().join("set"));
    write_documents(&input, 50);
    written(&preparation(&input, &out, by_document(0.2)), &bytes());
    fs::remove_file(out.join("manifest.json")).expect("removing");
    assert!(matches!(open(&out, Split::Train), Err(Error::NoSet { .. })), "its loss masks would be lost");
}

#[test]
fn a_changed_file_of_equal_size_changes_the_fingerprint() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("train.bin");
    write_headerless(&path, &ids(10));
    let before = open(folder.path(), Split::Train).expect("it opens").fingerprint().expect("a digest");
    let mut other = ids(10);
    other[7] += 1;
    write_headerless(&path, &other);
    let after = open(folder.path(), Split::Train).expect("it opens").fingerprint().expect("a digest");
    assert_ne!(before, after);
}
