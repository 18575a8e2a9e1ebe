//! Hostile tokenizer files: an error, never a panic, a hang or exhausted memory.

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
fn a_token_listed_twice_is_refused() {
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
fn an_unknown_regex_in_a_file_is_never_run() {
    let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let unknown = refused(|json| json["pre_tokenizer"] = split("(x+x+)+y"));
    assert!(matches!(unknown, Problem::UnknownPattern(pattern) if pattern == "(x+x+)+y"));
    let replace = json!({"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": ""});
    assert!(matches!(refused(|json| json["normalizer"] = replace.clone()), Problem::UnknownPattern(_)));
    assert!(matches!(refused(|json| json["decoder"] = replace), Problem::UnknownPattern(_)));
}

#[test]
fn unsupported_models_and_components_are_refused_by_name() {
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

fn replace(pattern: &str, content: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
}

#[test]
fn a_chain_that_multiplies_text_is_refused_before_it_runs() {
    let chain = |count| vec![replace("a", &"a".repeat(64)); count];
    let compositions: Vec<Value> =
        (0..8).flat_map(|_| [replace("a", "\u{FDFA}"), json!({"type": "NFKC"})]).collect();
    let prefixes = vec![json!({"type": "Prepend", "prepend": "x".repeat(64)}); 8];
    for steps in [chain(2), chain(30), compositions, prefixes] {
        let normalizer =
            refused(|json| json["normalizer"] = json!({"type": "Sequence", "normalizers": steps}));
        assert!(matches!(normalizer, Problem::Growth { place: "normalizer", .. }), "{normalizer}");
    }
    let decoder = refused(|json| json["decoder"] = json!({"type": "Sequence", "decoders": chain(5)}));
    assert!(matches!(decoder, Problem::Growth { place: "decoder", .. }), "{decoder}");
    let levels = vec![json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}); 20];
    let pre_tokenizer =
        refused(|json| json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": levels}));
    assert!(matches!(pre_tokenizer, Problem::Growth { place: "pre-tokenizer", .. }), "{pre_tokenizer}");
    let affix = refused(|json| json["model"]["end_of_word_suffix"] = json!("x".repeat(5000)));
    assert!(matches!(affix, Problem::TooLarge { what: Limit::AffixChars, .. }), "{affix}");
}

#[test]
fn a_published_normalizer_chain_is_accepted_and_limits_text_length() {
    let mut json = trained();
    json["normalizer"] = json!({"type": "Sequence", "normalizers": [
        {"type": "NFKC"}, {"type": "Lowercase"}, {"type": "Prepend", "prepend": "\u{2581}"}, replace(" ", "\u{2581}")]});
    json["pre_tokenizer"] = Value::Null;
    let tokenizer = Tokenizer::from_json(json.to_string().as_bytes()).expect("it is well-formed");
    let limit = match tokenizer.encode(&" ".repeat(2 << 20)) {
        Err(Error::TextTooLong { limit, .. }) => limit,
        other => panic!("{:?}", other.map(|ids| ids.len())),
    };
    assert!((500_000..1_000_000).contains(&limit), "128 MiB for 198 bytes each: {limit}");
}

#[test]
fn an_oversized_vocabulary_is_refused_before_allocation() {
    for vocab_size in [(1 << 20) + 1, 100_000_000_000, usize::MAX] {
        let training = tokenizer::BpeTraining { vocab_size, ..tokenizer::BpeTraining::default() };
        let trained = training.train([Ok("text and text".to_owned())]);
        assert!(matches!(trained, Err(Error::Option { option: "vocab-size", .. })), "{vocab_size}");
    }
}

/// Panics if `work` takes longer than any refusal.
#[cfg(unix)]
fn promptly<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(std::time::Duration::from_mins(2)).expect("an answer within two minutes")
}

#[cfg(unix)]
#[test]
fn fifos_devices_and_folders_are_refused_wherever_a_file_is_read() {
    use tokenizer::{Align, Corpus, Manifest, Split, TokenDataset, WindowPlan};

    use crate::fixtures::{SMALL, by_document, preparation, write_documents, written};

    let folder = tempfile::tempdir().expect("a folder");
    let (input, set, fifo) =
        (folder.path().join("in.jsonl"), folder.path().join("set"), folder.path().join("fifo"));
    write_documents(&input, 50);
    written(&preparation(&input, &set, by_document(0.2)), &SMALL);
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("mkfifo runs");
    assert!(made.success());
    for odd in [fifo, "/dev/zero".into(), folder.path().to_owned()] {
        let is_folder = odd.is_dir();
        let put = |name: &str| {
            let path = set.join(name);
            let kept = std::fs::read(&path).expect("reading");
            std::fs::remove_file(&path).expect("removing");
            std::os::unix::fs::symlink(&odd, &path).expect("a link");
            (path, kept)
        };
        let restore = |(path, kept): (std::path::PathBuf, Vec<u8>)| {
            std::fs::remove_file(&path).expect("removing");
            std::fs::write(path, kept).expect("writing");
        };
        let open = {
            let set = set.clone();
            move || {
                let plan = WindowPlan { length: 8, align: Align::Anywhere, shuffle: false };
                TokenDataset::open(&set, Split::Train, &SMALL, plan).map(|_| ())
            }
        };
        let not_a_file =
            |result: Result<(), Error>| assert!(matches!(result, Err(Error::NotAFile { .. })), "{result:?}");

        let shard = put("train-00000.bin");
        not_a_file(promptly(open.clone()));
        restore(shard);
        let manifest = put("manifest.json");
        let path = set.clone();
        not_a_file(promptly(move || Manifest::read(path).map(|_| ())));
        restore(manifest);
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            let file = put(name);
            let path = set.clone();
            not_a_file(promptly(move || Tokenizer::load(path).map(|_| ())));
            restore(file);
        }
        promptly(open).expect("everything is back");
        if !is_folder {
            let path = odd.clone();
            not_a_file(promptly(move || Corpus::find(&[path], false).map(|_| ())));
        }
    }
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
fn a_token_without_merges_is_found_only_with_ignore_merges() {
    let mut json = trained();
    let vocabulary = json["model"]["vocab"].as_object().expect("a table");
    let id = vocabulary.len() + json["added_tokens"].as_array().expect("a list").len();
    json["model"]["vocab"]["qzq"] = json!(id);
    for (ignored, tokens) in [(true, 1), (false, 3)] {
        json["model"]["ignore_merges"] = json!(ignored);
        let tokenizer = Tokenizer::from_json(json.to_string().as_bytes()).expect("it is well-formed");
        assert_eq!(tokenizer.kind(), "byte-level BPE");
        let ids = tokenizer.encode("qzq").expect("text encodes");
        assert_eq!(
            (ids.len(), ids.contains(&u32::try_from(id).expect("few tokens"))),
            (tokens, ignored),
            "{ids:?}"
        );
    }
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

#[test]
fn another_tokenizers_vocab_and_merges_are_not_taken_for_gpt_2s() {
    let load = |(name, contents): &(&str, Value)| {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("writing");
        write("vocab.json", &trained()["model"]["vocab"].to_string());
        write("merges.txt", "h e\n");
        write(name, &contents.to_string());
        Tokenizer::load(folder.path())
    };

    let class = |name: &str| ("tokenizer_config.json", json!({ "tokenizer_class": name }));
    let decoder = |tokens: Value| ("tokenizer_config.json", json!({ "added_tokens_decoder": tokens }));
    for known in [
        class("GPT2Tokenizer"),
        class("GPT2TokenizerFast"),
        decoder(json!({ "7": { "content": "x" } })),
        ("added_tokens.json", json!({ "x": 7 })),
    ] {
        load(&known).unwrap_or_else(|error| panic!("{known:?}: {error}"));
    }
    for (other, part) in [
        (class("Qwen2Tokenizer"), "class is `Qwen2Tokenizer`"),
        (decoder(json!({ "151645": { "content": "<|im_end|>" } })), "lacks the added token 151645"),
        (("added_tokens.json", json!({ "<|im_start|>": 151_644 })), "lacks the added token 151644"),
    ] {
        match load(&other) {
            Err(Error::Tokenizer { problem: Problem::NotGpt2(reason), .. }) => {
                assert!(reason.contains(part), "{reason}");
            }
            loaded => panic!("{other:?}: {loaded:?}"),
        }
    }
}
