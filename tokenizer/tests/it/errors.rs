//! Error messages, word for word.

use std::{fs, path::Path};

use tokenizer::{
    Align, BpeTraining, Error, Message, Role, ShardFormat, Split, TokenDataset, Tokenizer, WindowPlan,
};

use crate::fixtures::{SMALL, by_document, preparation, run, write_documents, written};

const PLAN: WindowPlan = WindowPlan { length: 32, align: Align::Anywhere, shuffle: false };

/// With `DIR` for the test's folder.
fn message(result: Result<impl std::fmt::Debug, Error>, folder: &Path) -> String {
    result.expect_err("this has to fail").to_string().replace(&folder.display().to_string(), "DIR")
}

#[test]
fn a_missing_file_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let absent = folder.path().join("absent");
    let plan = preparation(&absent, &folder.path().join("set"), by_document(0.1));
    insta::assert_snapshot!("missing_input", message(run(&plan, &SMALL), folder.path()));
    insta::assert_snapshot!("missing_tokenizer", message(Tokenizer::load(&absent), folder.path()));
    insta::assert_snapshot!(
        "folder_without_tokenizer",
        message(Tokenizer::load(folder.path()), folder.path())
    );
    let opened = TokenDataset::open(folder.path(), Split::Train, &SMALL, PLAN);
    insta::assert_snapshot!("folder_without_set", message(opened, folder.path()));
}

#[test]
fn an_empty_corpus_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let input = folder.path().join("in");
    fs::create_dir(&input).expect("a folder");
    let plan = preparation(&input, &folder.path().join("set"), by_document(0.1));
    insta::assert_snapshot!("no_input_files", message(run(&plan, &SMALL), folder.path()));
    fs::write(input.join("a.jsonl"), "{\"text\": \"\"}\n".repeat(3)).expect("writing");
    insta::assert_snapshot!("empty_corpus", message(run(&plan, &SMALL), folder.path()));
    let trained = BpeTraining::default().train([Ok(String::new())]);
    insta::assert_snapshot!("empty_training", message(trained, folder.path()));
    fs::write(input.join("a.jsonl"), "{\"text\": \"one\"}\n").expect("writing");
    insta::assert_snapshot!("empty_split", message(run(&plan, &SMALL), folder.path()));
}

#[test]
fn a_too_small_vocabulary_names_the_minimum() {
    let trained = BpeTraining { vocab_size: 260, ..BpeTraining::default() }.train([Ok("text".to_owned())]);
    insta::assert_snapshot!("vocabulary_too_small", message(trained, Path::new("DIR")));
}

#[test]
fn invalid_utf8_is_located() {
    let folder = tempfile::tempdir().expect("a folder");
    let input = folder.path().join("latin1.txt");
    fs::write(&input, b"Gr\xfc\xdfe").expect("writing");
    let plan = preparation(&input, &folder.path().join("set"), by_document(0.1));
    insta::assert_snapshot!("not_utf8", message(run(&plan, &SMALL), folder.path()));
}

#[test]
fn a_malformed_line_is_numbered() {
    let folder = tempfile::tempdir().expect("a folder");
    let input = folder.path().join("in.jsonl");
    let plan = preparation(&input, &folder.path().join("set"), by_document(0.1));
    for (name, line) in [
        ("line_7_malformed", "{\"text\": \"never closed"),
        ("line_7_without_text", "{\"body\": \"x\"}"),
        ("line_7_unknown_role", "{\"messages\": [{\"role\": \"robot\", \"content\": \"x\"}]}"),
    ] {
        fs::write(&input, format!("{}{line}\n", "{\"text\": \"fine\"}\n".repeat(6))).expect("writing");
        insta::assert_snapshot!(name, message(run(&plan, &SMALL), folder.path()));
    }
}

#[test]
fn a_document_that_does_not_encode_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let input = folder.path().join("in.jsonl");
    let out = folder.path().join("set");
    fs::write(&input, "{\"text\": \"abc\"}\n{\"text\": \"abd\"}\n").expect("writing");
    let letters = Tokenizer::characters(&"abc".chars().collect(), &[]).expect("an alphabet");
    let plan = preparation(&input, &out, by_document(0.1));
    insta::assert_snapshot!("outside_the_alphabet", message(run(&plan, &letters), folder.path()));
    fs::write(&input, "{\"messages\": [{\"role\": \"user\", \"content\": \"\"}]}\n").expect("writing");
    insta::assert_snapshot!("empty_message", message(run(&plan, &SMALL), folder.path()));
    let spoken = [Message::new(Role::User, "x"), Message::new(Role::User, "y")];
    insta::assert_snapshot!("out_of_turn", message(SMALL.encode_chat(&spoken), folder.path()));
}

#[test]
fn a_broken_tokenizer_file_names_problem_and_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokenizer.json");
    let split =
        r#"{"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": false}"#;
    for (name, json) in [
        ("tokenizer_cut_short", "{\"model\": {\"vocab\": {\"a\"".to_owned()),
        ("tokenizer_of_another_family", "{\"model\": {\"type\": \"Unigram\", \"vocab\": {}}}".to_owned()),
        (
            "tokenizer_with_its_own_regex",
            format!("{{\"pre_tokenizer\": {split}, \"model\": {{\"vocab\": {{}}}}}}"),
        ),
        ("tokenizer_merge_unknown", "{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"a b\"]}}".to_owned()),
    ] {
        fs::write(&path, json).expect("writing");
        insta::assert_snapshot!(name, message(Tokenizer::load(&path), folder.path()));
    }
}

#[test]
fn a_refused_shard_names_the_expected_value() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, out) = (folder.path().join("in.jsonl"), folder.path().join("set"));
    write_documents(&input, 500);
    written(&preparation(&input, &out, by_document(0.1)), &SMALL);
    let open = |tokenizer| TokenDataset::open(&out, Split::Train, tokenizer, PLAN);
    let hide = |text: String| text.replace(&SMALL.fingerprint().to_string(), "FINGERPRINT");
    let bytes = Tokenizer::bytes(&[]);
    insta::assert_snapshot!("tokenizer_mismatch", hide(message(open(&bytes), folder.path())));

    let shard = out.join("train-00002.bin");
    let whole = fs::read(&shard).expect("reading");
    fs::write(&shard, &whole[..2000]).expect("writing");
    insta::assert_snapshot!("truncated_shard", message(open(&SMALL), folder.path()));
    fs::write(&shard, b"PK\x03\x04".repeat(500)).expect("writing");
    insta::assert_snapshot!("foreign_shard", message(open(&SMALL), folder.path()));
    let files = [out.join("train-00000.bin")];
    let foreign = TokenDataset::from_files(&files, ShardFormat::LlmC, 10, None, PLAN).expect("it opens");
    let first = foreign.window(tokenizer::Cursor::start(0));
    insta::assert_snapshot!("id_beyond_the_vocabulary", message(first, folder.path()));
}

#[test]
fn an_occupied_folder_names_its_contents() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, out) = (folder.path().join("in.jsonl"), folder.path().join("set"));
    write_documents(&input, 50);
    written(&preparation(&input, &out, by_document(0.1)), &SMALL);
    let other = preparation(&input, &out, by_document(0.2));
    insta::assert_snapshot!("another_set_is_there", message(run(&other, &SMALL), folder.path()));
    fs::remove_file(out.join("manifest.json")).expect("removing");
    insta::assert_snapshot!("something_else_is_there", message(run(&other, &SMALL), folder.path()));
}
