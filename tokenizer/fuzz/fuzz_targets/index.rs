//! Overwrites index files. The first input byte selects the file, the next two the place.
#![no_main]

use std::{
    fs,
    path::PathBuf,
    sync::{LazyLock, atomic::AtomicBool},
};

use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;
use tokenizer::{Corpora, Index, IndexBuild, OnBadRecord, Preparation, Split, SplitRule, Tokenizer};

const FILES: [&str; 3] = ["index.json", "order.bin", "followers.bin"];
const TEXT: &str = "the cat sat on the mat, the cat sat on the cat ";

struct Made {
    folder: TempDir,
    files: [(PathBuf, Vec<u8>); 3],
}

static MADE: LazyLock<Made> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let [input, set, index] = ["in.txt", "set", "index"].map(|name| folder.path().join(name));
    fs::write(&input, TEXT.repeat(9)).expect("writing");
    let split = SplitRule::Position { val_fraction: 0.0 };
    let inputs = vec![input];
    let out = set.clone();
    let preparation = Preparation { inputs, out, split, shard_tokens: 101, on_bad_record: OnBadRecord::Fail };
    let (stop, bytes) = (AtomicBool::new(false), Tokenizer::bytes(&["<|bos|>"]));
    preparation.run(&bytes, &stop, |_| {}).expect("it is prepared");
    let out = index.clone();
    let build = IndexBuild { set, split: Split::Train, out, memory: 128 << 10, chunk_tokens: None, threads: 1 };
    build.run(&stop, |_| {}).expect("it is built");
    let files = FILES.map(|name| index.join(name)).map(|path| {
        let whole = fs::read(&path).expect("reading");
        (path, whole)
    });
    Made { folder, files }
});

fuzz_target!(|bytes: &[u8]| {
    let [which, high, low, put @ ..] = bytes else { return };
    let (path, whole) = &MADE.files[usize::from(*which) % FILES.len()];
    let at = usize::from(u16::from_be_bytes([*high, *low])) % whole.len();
    let behind = whole.get(at + put.len()..).unwrap_or_default();
    fs::write(path, [&whole[..at], put, behind].concat()).expect("writing");
    let [set, index] = ["set", "index"].map(|name| MADE.folder.path().join(name));
    if let Ok(opened) = Index::open(&index, &set) {
        let _whole_or_not = opened.verify();
        let corpora = Corpora::open([(&index, &set)], 1).expect("it opened a moment ago");
        let text: Vec<u32> = TEXT.bytes().map(u32::from).collect();
        for end in 1..text.len() {
            if let Some(found) = corpora.longest(&text[..end]) {
                assert!(found.length <= end && found.next <= 256, "{} tokens to {}", found.length, found.next);
            }
        }
    }
    fs::write(path, whole).expect("writing");
});
