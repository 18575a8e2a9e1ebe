//! `train index`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::program::{assert_code, assert_success, json, stderr, stdout, train};

/// 40 documents. Of the last ten, for validation, four are copies.
fn prepared(folder: &Path) {
    let document = |n: usize| format!("the {n}. river rises, the {}. river falls", n * 7 % 31);
    let order = (0..30).chain([3, 40, 41, 8, 42, 43, 21, 44, 45, 5]);
    let text = order.fold(String::new(), |mut text, n| {
        writeln!(text, "{{\"text\": \"{}\"}}", document(n)).expect("a string takes everything");
        text
    });
    fs::write(folder.join("in.jsonl"), text).expect("writing");
    let tokenizer = ["tokenizer", "train", "--kind", "bytes", "--input", "in.jsonl", "--out", "bytes"];
    assert_success(&train(folder, &tokenizer));
    let prepare =
        ["prepare", "--input", "in.jsonl", "--out", "set", "--tokenizer", "bytes", "--split", "position"];
    assert_success(&train(folder, &[&prepare[..], &["--val-fraction", "0.25"]].concat()));
}

#[test]
fn a_set_is_indexed_looked_up_and_compared_with_its_validation_part() {
    let folder = tempfile::tempdir().expect("a folder");
    prepared(folder.path());
    let build = ["index", "build", "--set", "set", "--out", "index", "--memory", "64MiB"];
    let built = train(folder.path(), &build);
    assert_success(&built);
    assert!(stdout(&built).contains("bytes per token"), "{}", stdout(&built));
    let inspect = |more: &[&str]| {
        train(folder.path(), &[&["index", "inspect", "index", "--set", "set"], more].concat())
    };
    let text = ["--tokenizer", "bytes", "--text", "the 17. ri"];
    let found = json(&inspect(&[&text[..], &["--json"]].concat()));
    let copies = &found["duplicates"];
    let copied = copies["of_them_copies"].as_u64().expect("a number");
    assert!((3..=4).contains(&copied) && copies["documents"].as_u64() > Some(copied), "{found}");
    assert_eq!((&found["whole"], found["match"]["next"].as_u64()), (&true.into(), Some(u64::from(b'v'))));
    let said = stdout(&inspect(&text));
    assert!(said.contains("followed by \"v\"") && said.contains("are copies of indexed ones"), "{said}");

    let file = folder.path().join("index/followers.bin");
    let mut bytes = fs::read(&file).expect("it is there");
    *bytes.last_mut().expect("it is not empty") ^= 1;
    fs::write(&file, bytes).expect("writing");
    let damaged = inspect(&[]);
    assert_code(&damaged, 1);
    assert!(stderr(&damaged).contains("followers.bin"), "{}", stderr(&damaged));
}

#[test]
fn an_index_of_another_set_and_a_bad_size_are_refused() {
    let [one, other] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    prepared(one.path());
    let refused = train(one.path(), &["index", "build", "--set", "set", "--out", "index", "--memory", "80%"]);
    assert_code(&refused, 2);
    assert_success(&train(one.path(), &["index", "build", "--set", "set", "--out", "index"]));
    fs::write(other.path().join("in.txt"), "a river rises, a river falls. ".repeat(20)).expect("writing");
    let prepare = ["prepare", "--input", "in.txt", "--tokenizer", "bytes", "--out", "set"];
    assert_success(&train(other.path(), &prepare));
    let index = one.path().join("index");
    let strange = train(other.path(), &["index", "inspect", &index.to_string_lossy(), "--set", "set"]);
    assert_code(&strange, 2);
    assert!(stderr(&strange).contains("train: "), "{}", stderr(&strange));
}
