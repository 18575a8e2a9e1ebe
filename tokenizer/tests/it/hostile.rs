//! Tokenizer files that are broken or mean harm: an error, never a panic, a hang or a flood of memory.

use serde_json::{Value, json};
use tokenizer::{Error, Limit, Problem, Tokenizer};

use crate::fixtures::goldens;

fn trained() -> Value {
    let json = std::fs::read(goldens().join("trained.json")).expect("the golden is committed");
    serde_json::from_slice(&json).expect("the golden parses")
}

fn refused(change: impl FnOnce(&mut Value)) -> Problem {
    let mut definition = trained();
    change(&mut definition);
    match Tokenizer::from_json(definition.to_string().as_bytes()) {
        Err(problem) => problem,
        Ok(tokenizer) => panic!("loaded as {}", tokenizer.kind()),
    }
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let json = trained().to_string();
    for end in (0..json.len()).step_by(97) {
        assert!(Tokenizer::from_json(&json.as_bytes()[..end]).is_err(), "cut at {end}");
    }
}

#[test]
fn merges_need_tokens_that_exist() {
    let missing = refused(|json| json["model"]["merges"][0] = json!(["nope", "a"]));
    assert!(matches!(missing, Problem::UnknownInMerge { at: 1, .. }));
    let result = refused(|json| json["model"]["merges"][1] = json!("Q Z"));
    assert!(matches!(result, Problem::UnknownInMerge { at: 2, token } if token == "QZ"));
    let twice = refused(|json| json["model"]["merges"][1] = json["model"]["merges"][0].clone());
    assert!(matches!(twice, Problem::RepeatedMerge { at: 2 }));
    assert!(matches!(refused(|json| json["model"]["merges"][0] = json!("a b c")), Problem::Json(_)));
}

#[test]
fn ids_are_bounded_and_belong_to_one_token() {
    let large = refused(|json| json["model"]["vocab"]["a"] = json!(u32::MAX));
    assert!(matches!(large, Problem::TooLarge { what: Limit::TokenId, .. }));
    let shared = refused(|json| json["model"]["vocab"]["a"] = json["model"]["vocab"]["b"].clone());
    assert!(matches!(shared, Problem::RepeatedId { .. }));
    let added = refused(|json| json["added_tokens"][0]["id"] = json!(7));
    assert!(matches!(added, Problem::RepeatedId { id: 7, .. }));
}

#[test]
fn a_token_listed_twice_is_noticed() {
    let json = trained().to_string().replacen(r#""!":"#, r#""!":9000,"!":"#, 1);
    assert!(
        matches!(Tokenizer::from_json(json.as_bytes()), Err(Problem::RepeatedToken(token)) if token == "!")
    );
}

#[test]
fn sizes_are_bounded() {
    let long = refused(|json| json["added_tokens"][0]["content"] = json!("x".repeat(5000)));
    assert!(matches!(long, Problem::TooLarge { what: Limit::TokenBytes, found: 5000, .. }));
    let empty = refused(|json| json["added_tokens"][0]["content"] = json!(""));
    assert!(matches!(empty, Problem::EmptyToken(_)));
    let token = json!({"id": 1, "content": "x"});
    let many = refused(|json| json["added_tokens"] = json!(vec![token; 20_000]));
    assert!(matches!(many, Problem::TooLarge { what: Limit::AddedTokens, .. }));
}

#[test]
fn a_file_larger_than_any_tokenizer_is_not_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokenizer.json");
    let file = std::fs::File::create(&path).expect("creating");
    file.set_len(200 << 30).expect("a sparse file");
    assert!(matches!(Tokenizer::load(&path), Err(Error::FileTooLarge { .. })));
}

#[test]
fn a_regex_of_the_files_own_is_never_run() {
    let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let unknown = refused(|json| json["pre_tokenizer"] = split("(x+x+)+y"));
    assert!(matches!(unknown, Problem::UnknownPattern(pattern) if pattern == "(x+x+)+y"));
    let replace = json!({"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": ""});
    assert!(matches!(refused(|json| json["normalizer"] = replace.clone()), Problem::UnknownPattern(_)));
    assert!(matches!(refused(|json| json["decoder"] = replace), Problem::UnknownPattern(_)));
}

#[test]
fn other_families_and_components_are_named() {
    assert!(
        matches!(refused(|json| json["model"]["type"] = json!("Unigram")), Problem::NotBpe(kind) if kind == "Unigram")
    );
    let unknown =
        refused(|json| json["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}));
    assert!(matches!(unknown, Problem::UnknownComponent { kind, .. } if kind == "Precompiled"));
    let flood =
        refused(|json| json["normalizer"] = json!({"type": "Prepend", "prepend": "x".repeat(100_000)}));
    assert!(matches!(flood, Problem::ComponentField { field: "prepend", .. }));
    let endless = refused(|json| {
        json["normalizer"] = json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"});
    });
    assert!(matches!(endless, Problem::ComponentField { field: "pattern", .. }));
    assert!(matches!(refused(|json| json["model"]["dropout"] = json!(0.1)), Problem::Dropout(_)));
}

#[test]
fn deep_nesting_does_not_exhaust_the_stack() {
    let deep = |levels| "[".repeat(levels) + &"]".repeat(levels);
    let json = format!("{{\"normalizer\": {}, \"model\": {{\"vocab\": {{}}}}}}", deep(100_000));
    assert!(matches!(Tokenizer::from_json(json.as_bytes()), Err(Problem::Json(_))));
}

#[test]
fn no_text_becomes_a_control_token_by_merging() {
    let forged = refused(|json| {
        let the = json["model"]["vocab"]["he"].clone();
        json["added_tokens"][0] = json!({"id": the, "content": "he", "special": true});
    });
    assert!(matches!(forged, Problem::MergeMakesControlToken { token, .. } if token == "he"));
    let byte = refused(|json| {
        let a = json["model"]["vocab"]["a"].clone();
        json["added_tokens"][0] = json!({"id": a, "content": "a", "special": true});
    });
    assert!(matches!(byte, Problem::ControlTokenIsText(token) if token == "a"));
}

#[test]
fn no_text_becomes_a_control_token_as_a_whole_piece() {
    let mut json = trained();
    json["model"]["ignore_merges"] = json!(true);
    json["pre_tokenizer"] =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json["model"]["vocab"]["<|bos|>"] = json["added_tokens"][0]["id"].clone();
    let tokenizer = Tokenizer::from_json(json.to_string().as_bytes()).expect("it is well-formed");
    assert_eq!(tokenizer.kind(), "byte-level BPE");
    let ids = tokenizer.encode("<|bos|>").expect("text encodes");
    assert!(ids.iter().all(|id| !tokenizer.specials().contains(*id)), "{ids:?}");

    json["normalizer"] = json!({"type": "NFC"});
    let tokenizer = Tokenizer::from_json(json.to_string().as_bytes()).expect("it is well-formed");
    assert_eq!(tokenizer.kind(), "BPE");
    assert!(
        matches!(tokenizer.encode("<|bos|>"), Err(Error::ControlTokenFromText { token }) if token == "<|bos|>")
    );
}

#[test]
fn merges_txt_is_read_line_by_line_within_limits() {
    let load = |merges: &[u8]| {
        let folder = tempfile::tempdir().expect("a folder");
        let vocab = trained()["model"]["vocab"].to_string();
        std::fs::write(folder.path().join("vocab.json"), vocab).expect("writing");
        std::fs::write(folder.path().join("merges.txt"), merges).expect("writing");
        Tokenizer::load(folder.path())
    };
    assert_eq!(
        load(b"#version: 0.2\nh e\n\n").expect("it is well-formed").encode("he").expect("text encodes").len(),
        1
    );
    for broken in
        [&b"#version: 0.2\nh e\nhe\n"[..], b"#version: 0.2\nh e\nh e x\n", b"#version: 0.2\nh e\n\xff \xff\n"]
    {
        match load(broken) {
            Err(Error::Tokenizer { path, problem: Problem::MergeLine(3) }) => {
                assert!(path.ends_with("merges.txt"));
            }
            other => panic!("{other:?}"),
        }
    }
}
