//! From text to a set of shards.

use std::{
    collections::HashSet,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use tokenizer::{
    Align, CHAT_SPECIALS, Cursor, Error, Outcome, Preparation, Split, SplitRule, TokenDataset, Tokenizer,
    WindowPlan, dialogues,
};

use crate::fixtures::{CORPUS, SMALL, by_document, contents, preparation, run, write_documents, written};

fn tokens(set: &Path, split: &str, width: usize) -> Vec<u32> {
    let shards = contents(set)
        .into_iter()
        .filter(|(name, _)| name.starts_with(split) && Path::new(name).extension() == Some("bin".as_ref()));
    shards
        .flat_map(|(_, bytes)| {
            let words = bytes[1024..]
                .chunks(width)
                .map(|word| word.iter().rev().fold(0, |id, byte| id << 8 | u32::from(*byte)));
            words.collect::<Vec<_>>()
        })
        .collect()
}

fn texts(tokens: &[u32]) -> Vec<String> {
    let bos = SMALL.bos().expect("it has one");
    let documents = tokens.split(|id| *id == bos).skip(1);
    documents.map(|ids| SMALL.decode(ids).expect("ids decode")).collect()
}

#[test]
fn every_document_is_in_exactly_one_split_and_complete() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, out) = (folder.path().join("in.jsonl"), folder.path().join("set"));
    write_documents(&input, 500);
    let manifest = written(&preparation(&input, &out, by_document(0.2)), &SMALL);
    let (train, val) = (texts(&tokens(&out, "train", 2)), texts(&tokens(&out, "val", 2)));
    assert_eq!((train.len() as u64, val.len() as u64), (manifest.train.documents, manifest.val.documents));
    assert!((60..140).contains(&val.len()), "about a fifth: {}", val.len());
    let all: HashSet<&String> = train.iter().chain(&val).collect();
    assert_eq!(all.len(), 500);
    assert!(all.iter().all(|text| text.starts_with("Document ") && text.ends_with('.')));
}

#[test]
fn two_documents_are_enough_for_both_splits() {
    let folder = tempfile::tempdir().expect("a folder");
    let input = folder.path().join("in.jsonl");
    for (count, share) in (2..8).flat_map(|count| [(count, 0.01), (count, 0.99)]) {
        let out = folder.path().join(format!("set-{count}-{share}"));
        write_documents(&input, count);
        let manifest = written(&preparation(&input, &out, by_document(share)), &SMALL);
        let smaller = manifest.train.documents.min(manifest.val.documents);
        assert_eq!((smaller, manifest.train.documents + manifest.val.documents), (1, count as u64));
    }
    let out = folder.path().join("none");
    assert_eq!(written(&preparation(&input, &out, by_document(0.0)), &SMALL).val.documents, 0);
}

#[test]
fn documents_end_with_the_closing_token_where_it_is_not_the_opening_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let input = folder.path().join("in.jsonl");
    fs::write(&input, "{\"text\": \"ab\"}\n{\"text\": \"c\"}\n").expect("writing");
    let tokenizer = |bos: &str, eos: &str| {
        let home = folder.path().join(format!("tokenizer-{bos}{eos}"));
        Tokenizer::bytes(&["<s>", "</s>", "<|assistant_end|>"]).save(&home).expect("saving works");
        let config = format!("{{\"bos_token\": \"{bos}\", \"eos_token\": \"{eos}\"}}");
        fs::write(home.join("tokenizer_config.json"), config).expect("writing");
        Tokenizer::load(&home).expect("it loads")
    };
    let [a, b, c] = [b'a', b'b', b'c'].map(u32::from);
    let (bos, eos) = (256, 257);
    for (case, (opening, closing, expected)) in [
        ("<s>", "</s>", vec![bos, a, b, eos, bos, c, eos]),
        ("<s>", "<s>", vec![bos, a, b, bos, c]),
        ("<s>", "<|assistant_end|>", vec![bos, a, b, bos, c]),
    ]
    .into_iter()
    .enumerate()
    {
        let out = folder.path().join(format!("set-{case}"));
        let manifest = written(&preparation(&input, &out, by_document(0.0)), &tokenizer(opening, closing));
        assert_eq!(tokens(&out, "train", 2), expected);
        assert_eq!(manifest.train.tokens, expected.len() as u64);
    }
}

#[test]
fn copies_of_a_document_stay_in_one_split() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, out) = (folder.path().join("in.jsonl"), folder.path().join("set"));
    write_documents(&input, 200);
    let once = fs::read_to_string(&input).expect("reading");
    fs::write(&input, once.repeat(3)).expect("writing");
    written(&preparation(&input, &out, by_document(0.3)), &SMALL);
    let side = |split| texts(&tokens(&out, split, 2)).into_iter().collect::<HashSet<_>>();
    assert!(side("train").is_disjoint(&side("val")));
}

#[test]
fn the_same_input_and_seed_give_the_same_bytes_on_any_number_of_threads() {
    let folder = tempfile::tempdir().expect("a folder");
    let input = folder.path().join("in");
    fs::create_dir(&input).expect("a folder");
    write_documents(&input.join("a.jsonl"), 300);
    fs::write(input.join("b.txt"), CORPUS.repeat(100)).expect("writing");
    let sets: Vec<_> = [1, 2, 5]
        .into_iter()
        .map(|threads| {
            let out = folder.path().join(format!("set{threads}"));
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
            pool.install(|| written(&preparation(&input, &out, by_document(0.2)), &SMALL));
            contents(&out)
        })
        .collect();
    assert!(sets[0] == sets[1] && sets[1] == sets[2]);
    let out = folder.path().join("another seed");
    let split = SplitRule::Document { val_fraction: 0.2, seed: 2 };
    written(&preparation(&input, &out, split), &SMALL);
    assert_ne!(sets[0], contents(&out));
}

#[test]
fn a_position_split_validates_on_the_end_of_the_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, out) = (folder.path().join("in.txt"), folder.path().join("set"));
    let text = CORPUS.repeat(10);
    fs::write(&input, &text).expect("writing");
    let bytes = Tokenizer::bytes(&[]);
    let manifest = written(&preparation(&input, &out, SplitRule::Position { val_fraction: 0.1 }), &bytes);
    let alone = preparation(&input, &folder.path().join("alone"), by_document(0.1));
    assert_eq!(written(&alone, &bytes), manifest);
    assert!(matches!(run(&alone, &bytes), Ok(Outcome::AlreadyThere(_))));
    let train_bytes = (text.len() as f64 * 0.9) as u64;
    assert_eq!((manifest.train.tokens, manifest.val.tokens), (train_bytes, text.len() as u64 - train_bytes));
    let all: Vec<u8> =
        tokens(&out, "train", 2).into_iter().chain(tokens(&out, "val", 2)).map(|id| id as u8).collect();
    assert_eq!(all, text.as_bytes());
}

#[test]
fn a_long_text_in_shards_gives_the_ids_of_the_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, out) = (folder.path().join("in.txt"), folder.path().join("set"));
    let text = CORPUS.repeat(150);
    fs::write(&input, &text).expect("writing");
    let manifest = written(&preparation(&input, &out, by_document(0.0)), &SMALL);
    let mut expected = vec![SMALL.bos().expect("it has one")];
    expected.extend(SMALL.encode(&text).expect("text encodes"));
    assert_eq!(tokens(&out, "train", 2), expected);
    assert!(manifest.train.shards.iter().all(|shard| shard.tokens <= 1000));
    assert_eq!((manifest.train.tokens, manifest.train.bytes), (expected.len() as u64, text.len() as u64));
}

#[test]
fn shard_headers_are_readable_by_llm_c() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, out) = (folder.path().join("in.jsonl"), folder.path().join("set"));
    write_documents(&input, 20);
    let manifest = written(&preparation(&input, &out, by_document(0.0)), &SMALL);
    let shard = fs::read(out.join(&manifest.train.shards[0].file)).expect("reading");
    let word = |at: usize| i32::from_le_bytes(shard[at..at + 4].try_into().expect("four bytes"));
    assert_eq!([word(0), word(4), word(8)], [20_240_520, 1, manifest.train.shards[0].tokens as i32]);
    assert_eq!(shard.len() as u64, 1024 + 2 * manifest.train.shards[0].tokens);

    let alphabet = ('\u{0}'..='\u{1ffff}').collect();
    let wide = Tokenizer::characters(&alphabet, &[]).expect("an alphabet");
    let out = folder.path().join("wide");
    let manifest = written(&preparation(&input, &out, by_document(0.0)), &wide);
    let shard = fs::read(out.join(&manifest.train.shards[0].file)).expect("reading");
    let word = |at: usize| i32::from_le_bytes(shard[at..at + 4].try_into().expect("four bytes"));
    assert_eq!([word(0), word(4), word(8)], [20_240_801, 7, manifest.train.shards[0].tokens as i32]);
    assert_eq!(shard.len() as u64, 1024 + 4 * manifest.train.shards[0].tokens);
}

#[test]
fn conversations_have_a_mask_of_trained_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, out) = (folder.path().join("in.jsonl"), folder.path().join("set"));
    dialogues::write_json_lines(&input, 200, 1).expect("writing");

    let tokenizer = Tokenizer::bytes(&CHAT_SPECIALS);
    // One shard: another's last window could be padded.
    let preparation = Preparation { shard_tokens: 1 << 20, ..preparation(&input, &out, by_document(0.1)) };
    let manifest = written(&preparation, &tokenizer);

    assert!(manifest.loss_mask);
    let plan = WindowPlan { length: 64, align: Align::Document, shuffle: false };
    let dataset = TokenDataset::open(&out, Split::Train, &tokenizer, plan).expect("the set opens");
    dataset.verify().expect("the set is whole");

    let [start, end] = ["<|assistant_start|>", "<|assistant_end|>"]
        .map(|text| tokenizer.specials().id(text).expect("known"));
    for (_, window) in dataset.stream(Cursor::start(0)).take(50).map(|window| window.expect("a window")) {
        let mask = window.mask.expect("the set has masks");
        // Targets of an earlier window do not count.
        let first = mask.iter().position(|trained| *trained).expect("a window without a counted target");
        let mut speaking = true;
        for (((x, y), trained), at) in window.x.iter().zip(&window.y).zip(&mask).zip(0..).skip(first) {
            speaking = *x == start || (speaking && *x != end);
            assert_eq!(*trained, speaking, "token {y} at {at}");
        }
    }
}

#[test]
fn a_complete_set_is_left_alone_and_another_plan_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, out) = (folder.path().join("in.jsonl"), folder.path().join("set"));
    write_documents(&input, 50);
    let plan = preparation(&input, &out, by_document(0.2));
    let manifest = written(&plan, &SMALL);
    let before = contents(&out);
    assert_eq!(run(&plan, &SMALL).expect("nothing to do"), Outcome::AlreadyThere(manifest));
    for (other, tokenizer) in [
        (preparation(&input, &out, by_document(0.3)), &*SMALL),
        (Preparation { shard_tokens: 999, ..plan.clone() }, &*SMALL),
        (plan.clone(), &Tokenizer::bytes(&[])),
    ] {
        assert!(matches!(run(&other, tokenizer), Err(Error::Occupied { .. })));
    }
    write_documents(&input, 51);
    assert!(matches!(run(&plan, &SMALL), Err(Error::Occupied { .. })));
    assert_eq!(contents(&out), before);
}

#[test]
fn a_folder_with_other_files_is_not_touched() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, out) = (folder.path().join("in.jsonl"), folder.path().join("set"));
    write_documents(&input, 50);
    fs::create_dir(&out).expect("a folder");
    fs::write(out.join("thesis.tex"), "years of work").expect("writing");
    assert!(matches!(run(&preparation(&input, &out, by_document(0.2)), &SMALL), Err(Error::Occupied { .. })));
    assert_eq!(contents(&out), [("thesis.tex".to_owned(), b"years of work".to_vec())]);
}

#[test]
fn stopping_or_failing_leaves_nothing_and_the_next_run_starts_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, out) = (folder.path().join("in.jsonl"), folder.path().join("set"));
    let partial = folder.path().join("set.partial");
    write_documents(&input, 50_000);
    let plan = preparation(&input, &out, by_document(0.2));
    let stop = AtomicBool::new(false);
    let stopped = plan.run(&SMALL, &stop, |_| stop.store(true, Ordering::Relaxed));
    assert!(matches!(stopped, Err(Error::Interrupted)));
    assert!(!out.exists() && !partial.exists());

    let mut lines = fs::read_to_string(&input).expect("reading");
    lines.push_str("{\"text\": \n");
    fs::write(&input, lines).expect("writing");
    assert!(matches!(run(&plan, &SMALL), Err(Error::Line { line: 50_001, .. })));
    assert!(!out.exists() && !partial.exists());

    write_documents(&input, 50);
    fs::create_dir(&partial).expect("a folder");
    fs::write(partial.join("train-00007.bin"), "remains of a run that was killed").expect("writing");
    written(&plan, &SMALL);
    assert!(!partial.exists());
    assert!(!out.join("train-00007.bin").exists());
}

#[test]
fn two_runs_do_not_write_one_set() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, out) = (folder.path().join("in.jsonl"), folder.path().join("set"));
    write_documents(&input, 50);
    let plan = preparation(&input, &out, by_document(0.2));
    let outcome = plan.run(&SMALL, &AtomicBool::new(false), |_| {
        assert!(matches!(run(&plan, &SMALL), Err(Error::Occupied { .. })));
    });
    assert!(matches!(outcome, Ok(Outcome::Written(_))));
}

#[test]
fn mixing_text_and_conversations_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, out) = (folder.path().join("in"), folder.path().join("set"));
    fs::create_dir(&input).expect("a folder");
    write_documents(&input.join("a.jsonl"), 5);
    dialogues::write_json_lines(input.join("b.jsonl"), 5, 1).expect("writing");
    let mixed = run(&preparation(&input, &out, by_document(0.2)), &SMALL);
    assert!(matches!(mixed, Err(Error::MixedInput { path }) if path.ends_with("b.jsonl")));
}
