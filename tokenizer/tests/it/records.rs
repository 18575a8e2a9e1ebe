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
fn an_array_of_records_is_read_like_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sharegpt.json");
    let odd =
        r#"{"messages": [{"role": "user", "content": "} ] \" {"}, {"role": "assistant", "content": "\\"}]}"#;
    fs::write(&path, format!("\u{feff}[\n  {SHAREGPT},\n  {odd},\n{{\n\"id\": 1}}, {SHAREGPT}\n]"))
        .expect("writing");
    let bodies = bodies(&path);
    let [Ok(first), Ok(Body::Chat(second)), Err(third), Ok(fourth)] = &bodies[..] else {
        panic!("{bodies:?}")
    };
    assert_eq!(first, fourth);
    assert_eq!((second[0].content.as_str(), second[1].content.as_str()), ("} ] \" {", "\\"));
    assert!(
        third.is_bad_record() && third.to_string().contains("sharegpt.json line 4: has none of"),
        "{third}"
    );
}

#[test]
fn a_damaged_array_names_the_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.json");
    for (end, line) in [(",\n  {\"id\": [", 3), ("\n  ", 3), (",\n7]", 3)] {
        fs::write(&path, format!("[\n{SHAREGPT}{end}")).expect("writing");
        match bodies(&path).pop() {
            Some(Err(Error::JsonArray { line: found, .. })) => assert_eq!(found, line, "{end}"),
            other => panic!("{end}: {other:?}"),
        }
    }
}

#[test]
fn instructions_and_parts_of_text_are_conversations() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.jsonl");
    for (line, question) in [
        (r#"{"instruction": "Up?", "input": "", "output": "Down.", "text": "Up? Down."}"#, "Up?"),
        (r#"{"instruction": "Turn", "input": "Up?", "output": "Down."}"#, "Turn\n\nUp?"),
        (
            r#"{"prompt": "Up?", "messages": [{"role": "user", "content": [{"type": "text", "text": "U"}, {"type":
            "text", "text": "p?"}]}, {"role": "assistant", "content": "Down."}]}"#,
            "Up?",
        ),
    ] {
        fs::write(&path, line.replace('\n', " ")).expect("writing");
        let bodies = bodies(&path);
        let [Ok(Body::Chat(messages))] = &bodies[..] else { panic!("{bodies:?}") };
        assert_eq!((messages[0].content.as_str(), messages[1].content.as_str()), (question, "Down."));
    }
    for (line, reason) in [
        (r#"{"instruction": "Up?"}"#, "without an `output`"),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#,
            "message 1 with a part of type \"image_url\"",
        ),
        (
            r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null}]}"#,
            "message 2 whose content",
        ),
    ] {
        fs::write(&path, line).expect("writing");
        let refused = bodies(&path).pop().expect("one record").expect_err("unusable").to_string();
        assert!(refused.contains(reason) && refused.contains("a.jsonl line 1"), "{refused}");
    }
}

#[test]
fn a_folder_of_records_is_read_without_its_description_and_other_splits() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in [
        ("README.md", "# About"),
        ("dataset_infos.json", "{\"default\": {}}"),
        ("train-00000-of-00002.jsonl", MESSAGES),
        ("train-00001-of-00002.jsonl", SHAREGPT),
        ("test-00000-of-00001.jsonl", COMPLETION),
    ] {
        fs::write(folder.path().join(name), text).expect("writing");
    }
    let corpus = Corpus::find(&[folder.path().to_owned()], false).expect("records");
    assert_eq!(corpus.files().len(), 2);
    assert!(corpus.files().iter().all(|file| file.name.starts_with("train-")));
    fs::write(folder.path().join("data-00000-of-00001.arrow"), [0xFF; 16]).expect("writing");
    let refused = Corpus::find(&[folder.path().to_owned()], false).expect_err("Arrow").to_string();
    assert!(refused.contains("to_parquet"), "{refused}");
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
