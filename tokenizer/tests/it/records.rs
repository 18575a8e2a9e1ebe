//! Records in the common layouts.

use std::{fs, io::Write, path::Path};

use flate2::{Compression as Level, write::GzEncoder};
use tokenizer::{
    Body, CHAT_SPECIALS, Compression, Corpus, Error, Format, Manifest, OnBadRecord, Outcome, Preparation,
    Role, SplitRule, Tokenizer,
};

use crate::fixtures::{CORPUS, by_document, contents, preparation, run, written};

const SHAREGPT: &str =
    r#"{"id": "x", "conversations": [{"from": "human", "value": "Up?"}, {"from": "gpt", "value": "Down."}]}"#;
const MESSAGES: &str = r#"{"messages": [{"role": "user", "content": "Up?"}, {"role": "assistant", "content": "Down.", "weight": 1}]}"#;
const COMPLETION: &str = r#"{"prompt": "Up?", "completion": "Down."}"#;

fn bodies(path: &Path) -> Vec<Result<Body, Error>> {
    let corpus = Corpus::find(&[path.to_owned()], false).expect("the input is there");
    corpus.parts(None).map(|part| part.map(|part| part.body)).collect()
}

fn skipping(input: &Path, out: &Path) -> Preparation {
    Preparation { on_bad_record: OnBadRecord::Skip, ..preparation(input, out, by_document(0.0)) }
}

fn bytes() -> Tokenizer {
    Tokenizer::bytes(&CHAT_SPECIALS)
}

#[test]
fn messages_sharegpt_and_completions_are_the_same_conversation() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, line) in [("a", MESSAGES), ("b", SHAREGPT), ("c", COMPLETION)] {
        // The first line decides, not the name.
        let path = folder.path().join(name);
        fs::write(&path, format!("{line}\n")).expect("writing");
        let [Ok(Body::Chat(messages))] = &bodies(&path)[..] else { panic!("{name} holds a conversation") };
        let turns: Vec<_> = messages.iter().map(|turn| (turn.role, turn.content.as_str())).collect();
        assert_eq!(turns, [(Role::User, "Up?"), (Role::Assistant, "Down.")], "{name}");
    }
}

#[test]
fn a_system_field_becomes_the_first_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.jsonl");
    for line in [SHAREGPT, COMPLETION] {
        fs::write(&path, line.replacen('{', r#"{"system": "Be brief.", "#, 1)).expect("writing");
        let [Ok(Body::Chat(messages))] = &bodies(&path)[..] else { panic!("a conversation") };
        assert_eq!((messages.len(), messages[0].role), (3, Role::System));
    }
}

#[test]
fn one_bad_record_is_counted_named_and_left_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, out) = (folder.path().join("in.jsonl"), folder.path().join("set"));
    for bad in [
        "{",
        "{}",
        "null",
        r#"{"messages": []}"#,
        r#"{"messages": [{"role": "user", "content": ""}]}"#,
        r#"{"messages": [{"role": "user", "content": "no answer"}]}"#,
        r#"{"messages": [{"role": "user", "content": null}]}"#,
        r#"{"conversations": [{"from": "gpt", "value": "out of turn"}]}"#,
        r#"{"conversations": [{"from": "robot", "value": "who?"}]}"#,
        r#"{"prompt": "no completion"}"#,
        r#"{"text": "a", "prompt": "b", "completion": "c"}"#,
        r#"{"text": ""}"#,
    ] {
        fs::write(&input, format!("{MESSAGES}\n{bad}\n{SHAREGPT}\n")).expect("writing");
        let manifest = written(&skipping(&input, &out), &bytes());
        assert_eq!((manifest.train.documents, manifest.bad_records.count), (2, 1), "{bad}");
        let [named] = &manifest.bad_records.first[..] else { panic!("one is named") };
        assert!(named.contains("in.jsonl line 2") || named.contains("in.jsonl document 2"), "{bad}: {named}");
        assert_eq!(Manifest::read(&out).expect("it reads"), manifest);
        fs::remove_dir_all(&out).expect("removing");

        let failing = preparation(&input, &out, by_document(0.0));
        assert!(run(&failing, &bytes()).expect_err("it fails").is_bad_record(), "{bad}");
    }
}

#[test]
fn a_set_without_bad_records_does_not_mention_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, out) = (folder.path().join("in.jsonl"), folder.path().join("set"));
    fs::write(&input, MESSAGES).expect("writing");
    written(&skipping(&input, &out), &bytes());
    assert!(!fs::read_to_string(out.join("manifest.json")).expect("reading").contains("bad_records"));
}

#[test]
fn too_many_bad_records_end_the_preparation_with_the_first_one_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, out) = (folder.path().join("in.jsonl"), folder.path().join("set"));
    let lines = |clean: usize, bad: usize| format!("{MESSAGES}\n").repeat(clean) + &"{}\n".repeat(bad);
    fs::write(&input, lines(90, 10)).expect("writing");
    assert_eq!(written(&skipping(&input, &out), &bytes()).bad_records.count, 10);
    fs::remove_dir_all(&out).expect("removing");
    fs::write(&input, lines(89, 11)).expect("writing");
    match run(&skipping(&input, &out), &bytes()) {
        Err(Error::BadRecords { bad: 11, records: 100, first }) => {
            assert!(first.contains("line 90"), "{first}");
        }
        other => panic!("{other:?}"),
    }
    fs::write(&input, lines(0, 1)).expect("writing");
    assert!(matches!(
        run(&skipping(&input, &out), &bytes()),
        Err(Error::BadRecords { bad: 1, records: 1, .. })
    ));
    assert!(!out.exists());
}

#[test]
fn a_set_with_skipped_records_is_refused_if_bad_records_fail() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, out) = (folder.path().join("in.jsonl"), folder.path().join("set"));
    fs::write(&input, format!("{MESSAGES}\n{{}}\n{SHAREGPT}\n")).expect("writing");
    written(&skipping(&input, &out), &bytes());
    assert!(matches!(run(&skipping(&input, &out), &bytes()), Ok(Outcome::AlreadyThere(_))));
    let failing = preparation(&input, &out, by_document(0.0));
    assert!(matches!(run(&failing, &bytes()), Err(Error::Occupied { .. })));
}

#[test]
fn an_array_of_records_is_refused_with_the_way_to_convert_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sharegpt.json");
    fs::write(&path, format!("[\n  {SHAREGPT},\n  {SHAREGPT}\n]")).expect("writing");
    assert!(matches!(Corpus::find(&[path], false), Err(Error::JsonArray { .. })));
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Level::fast());
    encoder.write_all(text).expect("memory takes everything");
    encoder.finish().expect("memory takes everything")
}

fn zstd(text: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest)
}

#[test]
fn compressed_text_gives_the_set_of_the_plain_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = CORPUS.repeat(40);
    let (first, second) = text.split_at(text.len() / 3);
    let skippable = [&[0x53, 0x2A, 0x4D, 0x18, 3, 0, 0, 0][..], b"xyz"].concat();
    for (rule, line) in [
        (SplitRule::Position { val_fraction: 0.2 }, text.clone()),
        (by_document(0.0), format!("{MESSAGES}\n").repeat(50)),
    ] {
        let (halves, whole) = ([first, second].map(str::as_bytes), line.as_bytes());
        let two = |compress: fn(&[u8]) -> Vec<u8>| match rule {
            SplitRule::Position { .. } => halves.map(compress).concat(),
            SplitRule::Document { .. } => compress(whole),
        };

        let shards = |name: &str, contents_: Vec<u8>| {
            let (input, out) = (folder.path().join(name), folder.path().join(format!("{name}.set")));
            fs::write(&input, contents_).expect("writing");
            written(&preparation(&input, &out, rule), &bytes());
            let set = contents(&out);
            fs::remove_dir_all(&out).expect("removing");
            set.into_iter()
                .filter(|(name, _)| Path::new(name).extension() != Some("json".as_ref()))
                .collect::<Vec<_>>()
        };

        let plain = shards("plain", whole.to_vec());
        assert!(plain.len() >= 2);
        assert!(shards("text.gz", two(gzip)) == plain, "two members in one gzip file");
        assert!(shards("text.zst", [skippable.clone(), two(zstd)].concat()) == plain, "two Zstandard frames");
    }
}

#[test]
fn compression_is_detected_by_contents() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, compressed, compression) in [
        ("a", gzip(SHAREGPT.as_bytes()), Compression::Gzip),
        ("b", zstd(SHAREGPT.as_bytes()), Compression::Zstd),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, compressed).expect("writing");
        let corpus = Corpus::find(std::slice::from_ref(&path), false).expect("it is found");
        let file = &corpus.files()[0];
        assert_eq!((file.format, file.compression), (Format::JsonLines, Some(compression)));
        assert_eq!(file.bytes, SHAREGPT.len() as u64);
    }
}

#[test]
fn a_broken_compressed_file_is_an_error_with_its_path() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = CORPUS.repeat(10);
    for (name, whole) in [("a.gz", gzip(text.as_bytes())), ("b.zst", zstd(text.as_bytes()))] {
        let path = folder.path().join(name);
        let mut flipped = whole.clone();
        let middle = whole.len() / 2;
        flipped[middle] ^= 0x55;
        for broken in [&whole[..whole.len() - 5], &whole[..5], &flipped] {
            fs::write(&path, broken).expect("writing");
            match Corpus::find(std::slice::from_ref(&path), false) {
                Err(Error::Read { path, .. }) => assert!(path.ends_with(name)),
                other => panic!("{name}: {other:?}"),
            }
        }
    }
}
