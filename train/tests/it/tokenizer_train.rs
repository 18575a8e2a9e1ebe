//! `train tokenizer train`.

use std::fs;

use tokenizer::Tokenizer;

use crate::program::{assert_success, failure, train, write_text};

#[test]
fn one_command_makes_a_tokenizer_of_each_kind() {
    let folder = tempfile::tempdir().expect("a folder");
    write_text(&folder.path().join("in.txt"), 500);
    for (kind, name, size) in
        [("bpe", "byte-level BPE", 300), ("characters", "characters", 31), ("bytes", "bytes", 261)]
    {
        let arguments =
            ["tokenizer", "train", "--input", "in.txt", "--out", kind, "--kind", kind, "--vocab-size", "300"];
        assert_success(&train(folder.path(), &arguments));
        let tokenizer = Tokenizer::load(folder.path().join(kind)).expect("it loads");
        assert_eq!((tokenizer.kind(), tokenizer.vocab_size()), (name, size));
        assert!(tokenizer.bos().is_some());
    }
}

#[test]
fn the_same_text_gives_the_same_files() {
    let folder = tempfile::tempdir().expect("a folder");
    write_text(&folder.path().join("in.txt"), 500);
    for out in ["a", "b"] {
        assert_success(&train(
            folder.path(),
            &["tokenizer", "train", "--input", "in.txt", "--out", out, "--vocab-size", "400"],
        ));
    }
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        let read = |out: &str| fs::read(folder.path().join(out).join(file)).expect("reading");
        assert_eq!(read("a"), read("b"));
    }
}

#[test]
fn a_tokenizer_is_not_overwritten() {
    let folder = tempfile::tempdir().expect("a folder");
    write_text(&folder.path().join("in.txt"), 50);
    let arguments = ["tokenizer", "train", "--input", "in.txt", "--out", "t", "--kind", "bytes"];
    assert_success(&train(folder.path(), &arguments));
    insta::assert_snapshot!(failure(&train(folder.path(), &arguments), folder.path()));
}

#[test]
fn a_vocabulary_too_small_for_bytes_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    write_text(&folder.path().join("in.txt"), 50);
    let arguments = ["tokenizer", "train", "--input", "in.txt", "--out", "t", "--vocab-size", "260"];
    insta::assert_snapshot!(failure(&train(folder.path(), &arguments), folder.path()));
}
