//! Reading shards.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    thread,
};

use proptest::prelude::*;
use tempfile::TempDir;
use tokenizer::{
    Align, Cursor, Error, ShardFormat, ShardProblem, Split, TokenDataset, Tokenizer, Window, WindowPlan,
};

use crate::fixtures::{SMALL, by_document, preparation, write_documents, written};

const IN_ORDER: WindowPlan = WindowPlan { length: 32, align: Align::Anywhere, shuffle: false };
const SHUFFLED: WindowPlan = WindowPlan { shuffle: true, ..IN_ORDER };

fn set() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, out) = (folder.path().join("in.jsonl"), folder.path().join("set"));
    write_documents(&input, 500);
    written(&preparation(&input, &out, by_document(0.2)), &SMALL);
    (folder, out)
}

fn open(set: &Path, plan: WindowPlan) -> TokenDataset {
    TokenDataset::open(set, Split::Train, &SMALL, plan).expect("the set opens")
}

fn take(dataset: &TokenDataset, cursor: Cursor, count: usize) -> Vec<(Cursor, Window)> {
    dataset.stream(cursor).take(count).collect::<Result<_, _>>().expect("windows")
}

fn problem(result: Result<impl std::fmt::Debug, Error>, file: &str) -> ShardProblem {
    match result {
        Err(Error::Shard { path, problem }) => {
            assert!(path.ends_with(file), "{} is not {file}", path.display());
            problem
        }
        other => panic!("expected a refusal of {file}, got {other:?}"),
    }
}

fn numbers(folder: &Path, count: u16) -> PathBuf {
    let path = folder.join("numbers.bin");
    fs::write(&path, (0..count).flat_map(u16::to_le_bytes).collect::<Vec<_>>()).expect("writing");
    path
}

fn nano(path: &Path, bos: Option<u32>, plan: WindowPlan) -> Result<TokenDataset, Error> {
    TokenDataset::from_files(&[path.to_owned()], ShardFormat::NanoGpt, 65_000, bos, plan)
}

#[test]
fn windows_in_order_predict_every_token_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let dataset = nano(&numbers(folder.path(), 321), None, IN_ORDER).expect("it opens");
    assert_eq!(dataset.windows(), 10);
    let windows = take(&dataset, Cursor::start(0), 10);
    let predicted: Vec<u32> = windows.iter().flat_map(|(_, window)| window.y.clone()).collect();
    assert_eq!(predicted, (1..=320).collect::<Vec<_>>());
    assert!(windows.iter().all(|(_, window)| window.x[0] + 1 == window.y[0] && window.mask.is_none()));
}

#[test]
fn each_shuffled_epoch_has_every_window_once_in_its_own_order() {
    let (_folder, set) = set();
    let (ordered, shuffled) = (open(&set, IN_ORDER), open(&set, SHUFFLED));
    let count = ordered.windows() as usize;
    let all: HashSet<Vec<u32>> =
        take(&ordered, Cursor::start(0), count).into_iter().map(|(_, window)| window.x).collect();
    let epochs: Vec<Vec<Vec<u32>>> = take(&shuffled, Cursor::start(9), 2 * count)
        .chunks(count)
        .map(|epoch| epoch.iter().map(|(_, window)| window.x.clone()).collect())
        .collect();
    for epoch in &epochs {
        assert_eq!(epoch.iter().cloned().collect::<HashSet<_>>(), all);
    }
    assert_ne!(epochs[0], epochs[1]);
    assert_ne!(take(&shuffled, Cursor::start(9), count), take(&shuffled, Cursor::start(10), count));
}

#[test]
fn resuming_from_a_stored_cursor_continues_the_stream() {
    let (_folder, set) = set();
    let dataset = open(&set, SHUFFLED);
    let whole = take(&dataset, Cursor::start(3), 300);
    let stored = serde_json::to_string(&dataset.after(whole[149].0)).expect("a cursor serialises");
    let cursor: Cursor = serde_json::from_str(&stored).expect("and comes back");
    assert_eq!(take(&open(&set, SHUFFLED), cursor, 150), whole[150..]);
}

#[test]
fn any_layout_of_workers_reads_the_same_stream() {
    let (_folder, set) = set();
    let dataset = open(&set, SHUFFLED);
    let start = Cursor { epoch: 1, index: 7, seed: 5 };
    let expected = take(&dataset, start, 120);
    for workers in [2, 3, 8] {
        let shares: Vec<Vec<_>> = thread::scope(|scope| {
            let share = |worker| {
                let dataset = &dataset;
                let count = 120 / workers as usize;
                scope.spawn(move || {
                    dataset.share(start, worker, workers).take(count).collect::<Result<_, _>>()
                })
            };
            let threads: Vec<_> = (0..workers).map(share).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic").expect("windows")).collect()
        });
        let merged: Vec<_> =
            (0..120).map(|at| shares[at % workers as usize][at / workers as usize].clone()).collect();
        assert_eq!(merged, expected, "{workers} workers");
    }
}

#[test]
fn aligned_windows_begin_with_documents_or_continue_long_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let tokens: Vec<u16> = [3, 100, 40, 10].into_iter().flat_map(|length| 0..length).collect();
    let path = folder.path().join("documents.bin");
    fs::write(&path, tokens.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<_>>()).expect("writing");
    let plan = WindowPlan { align: Align::Document, ..IN_ORDER };
    let dataset = nano(&path, Some(0), plan).expect("it opens");
    let windows = take(&dataset, Cursor::start(0), dataset.windows() as usize);
    let firsts: Vec<u32> = windows.iter().map(|(_, window)| window.x[0]).collect();
    // The last two windows of the second document overlap; the last document is short.
    assert_eq!(firsts, [0, 29, 61, 68, 0, 8, 0]);
    assert_eq!(windows[4].1.x, (0..32).collect::<Vec<_>>());
    assert_eq!(windows[3].1.y.last(), Some(&0), "the last window of a document ends with it");
    let counted = |at: usize| windows[at].1.mask.as_ref().map(|mask| mask.iter().filter(|on| **on).count());
    assert_eq!([0, 1, 2, 3, 4, 5, 6].map(counted), [None, None, None, Some(7), None, Some(8), Some(9)]);
    assert_eq!(dataset.targets().seen, dataset.tokens() - 1);
    assert!(matches!(problem(nano(&path, None, plan), "documents.bin"), ShardProblem::NoDocumentToken));
}

#[test]
fn truncated_foreign_and_changed_shards_are_refused_by_name() {
    let (_folder, set) = set();
    let path = set.join("train-00001.bin");
    let whole = fs::read(&path).expect("reading");
    let opened = |bytes: &[u8]| {
        fs::write(&path, bytes).expect("writing");
        TokenDataset::open(&set, Split::Train, &SMALL, IN_ORDER)
    };
    let changed = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        bytes
    };
    assert!(matches!(
        problem(opened(&whole[..1500]), "train-00001.bin"),
        ShardProblem::Size { found: 1500, .. }
    ));
    assert!(matches!(
        problem(opened(&whole[..100]), "train-00001.bin"),
        ShardProblem::NoHeader { found: 100 }
    ));
    assert!(matches!(problem(opened(&[]), "train-00001.bin"), ShardProblem::NoHeader { found: 0 }));
    assert!(matches!(problem(opened(&changed(0, 7)), "train-00001.bin"), ShardProblem::Magic { .. }));
    assert!(matches!(
        problem(opened(&changed(4, 9)), "train-00001.bin"),
        ShardProblem::Version { found: 9, expected: 1 }
    ));
    assert!(matches!(problem(opened(&changed(11, 0xFF)), "train-00001.bin"), ShardProblem::Size { .. }));
    let foreign = changed(13, whole[13] ^ 1);
    assert!(matches!(problem(opened(&foreign), "train-00001.bin"), ShardProblem::TokenizerMark { .. }));
    let mut shorter = whole[..whole.len() - 2].to_vec();
    shorter[8..12].copy_from_slice(&999u32.to_le_bytes());
    assert!(matches!(
        problem(opened(&shorter), "train-00001.bin"),
        ShardProblem::Tokens { expected: 1000, found: 999 }
    ));

    let other_text = opened(&changed(1024, whole[1024] ^ 1)).expect("it opens, being well-formed");
    assert!(matches!(problem(other_text.verify(), "train-00001.bin"), ShardProblem::Checksum { .. }));
    opened(&whole).expect("it opens").verify().expect("it is whole");
}

#[test]
fn another_tokenizer_is_refused() {
    let (_folder, set) = set();
    let opened = TokenDataset::open(&set, Split::Train, &Tokenizer::bytes(&[]), IN_ORDER);
    assert!(matches!(problem(opened, "manifest.json"), ShardProblem::Tokenizer { .. }));
    let copy = Tokenizer::load(&set).expect("the set carries its tokenizer");
    TokenDataset::open(&set, Split::Train, &copy, IN_ORDER).expect("which opens it");
}

#[test]
fn an_id_beyond_the_vocabulary_is_found_when_it_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let dataset = nano(&numbers(folder.path(), 65_100), None, IN_ORDER).expect("it opens");
    take(&dataset, Cursor::start(0), 100);
    let last = Cursor { epoch: 0, index: dataset.windows() - 1, seed: 0 };
    let found = problem(dataset.window(last), "numbers.bin");
    assert!(matches!(found, ShardProblem::TokenId { id: 65_056, at: 65_056, vocabulary: 65_000 }), "{found}");
    assert!(matches!(problem(dataset.verify(), "numbers.bin"), ShardProblem::TokenId { id: 65_000, .. }));
}

#[test]
fn headerless_files_need_whole_tokens_and_a_window() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = numbers(folder.path(), 20);
    assert!(matches!(
        problem(nano(&path, None, IN_ORDER), "numbers.bin"),
        ShardProblem::NoWindow { longest: 20, .. }
    ));
    fs::write(&path, [1, 2, 3]).expect("writing");
    assert!(matches!(
        problem(nano(&path, None, IN_ORDER), "numbers.bin"),
        ShardProblem::NotPairs { found: 3 }
    ));
}

#[test]
fn llm_c_shards_without_a_tokenizer_mark_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("fineweb.bin");
    let mut bytes = vec![0; 1024];
    for (at, word) in [20_240_801, 7, 40].into_iter().enumerate() {
        bytes[4 * at..4 * at + 4].copy_from_slice(&i32::to_le_bytes(word));
    }
    bytes.extend((0..40u32).flat_map(|id| (id + 100_000).to_le_bytes()));
    fs::write(&path, bytes).expect("writing");
    let dataset =
        TokenDataset::from_files(&[path], ShardFormat::LlmC, 128_256, None, IN_ORDER).expect("it opens");
    let (_, window) = take(&dataset, Cursor::start(0), 1).remove(0);
    assert_eq!(window.y, (100_001..100_033).collect::<Vec<_>>());
}

#[test]
fn a_manifest_cannot_name_files_outside_its_folder() {
    let (_folder, set) = set();
    let path = set.join("manifest.json");
    let json = fs::read_to_string(&path).expect("reading");
    for name in ["../secret.bin", "/etc/passwd", ".", "", "a/b.bin"] {
        fs::write(&path, json.replace("train-00000.bin", name)).expect("writing");
        let opened = TokenDataset::open(&set, Split::Train, &SMALL, IN_ORDER);
        assert!(matches!(problem(opened, "manifest.json"), ShardProblem::FileName(file) if file == name));
    }
    fs::write(&path, json.replace("\"format\": 1", "\"format\": 2")).expect("writing");
    let opened = TokenDataset::open(&set, Split::Train, &SMALL, IN_ORDER);
    assert!(matches!(problem(opened, "manifest.json"), ShardProblem::Format { found: 2 }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(suite::cases(256)))]

    #[test]
    fn skip_equals_repeated_steps(start in 0u64..40, count in 0u64..100) {
        let folder = tempfile::tempdir().expect("a folder");
        let dataset = nano(&numbers(folder.path(), 400), None, IN_ORDER).expect("it opens");
        let mut stepped = Cursor { index: start % dataset.windows(), ..Cursor::start(1) };
        let skipped = dataset.skip(stepped, count);
        (0..count).for_each(|_| stepped = dataset.after(stepped));
        prop_assert_eq!(skipped, stepped);
    }
}
