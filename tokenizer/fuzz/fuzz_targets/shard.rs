//! Any bytes as a shard, a headerless shard, and a manifest.
#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use tokenizer::{Align, Cursor, Manifest, ShardFormat, TokenDataset, WindowPlan};

fuzz_target!(|bytes: &[u8]| {
    let _ = Manifest::parse(bytes);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("shard.bin");
    fs::write(&path, bytes).expect("writing");
    for format in [ShardFormat::LlmC, ShardFormat::NanoGpt] {
        for align in [Align::Anywhere, Align::Document] {
            let plan = WindowPlan { length: 3, align, shuffle: align == Align::Anywhere };
            let files = [path.clone()];
            let Ok(dataset) = TokenDataset::from_files(&files, format, 50_257, Some(0), plan) else { continue };
            let whole = dataset.verify().is_ok();
            for step in dataset.stream(Cursor::start(1)).take(dataset.windows().min(1000) as usize) {
                match step {
                    Ok((_, window)) => assert_eq!((window.x.len(), window.y.len()), (3, 3)),
                    Err(error) => assert!(!whole, "{error}"),
                }
            }
        }
    }
});
