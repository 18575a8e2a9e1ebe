//! Control tokens that open texts, and those that need no row of an embedding.

use std::fs;

use serde_json::{Value, json};
use tokenizer::{CHAT_SPECIALS, ChatFormat, Tokenizer};

use crate::fixtures::SMALL;

#[test]
fn a_text_is_opened_where_the_files_say_so_or_nothing() {
    let opened = |control: &str, post_processor: &Value, config: &Value| {
        let folder = tempfile::tempdir().expect("a folder");
        Tokenizer::bytes(&[control]).save(folder.path()).expect("saving");
        let path = folder.path().join("tokenizer.json");
        let mut json: Value = serde_json::from_slice(&fs::read(&path).expect("reading")).expect("JSON");
        json["post_processor"] = post_processor.clone();
        fs::write(&path, json.to_string()).expect("writing");
        fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).expect("writing");
        let tokenizer = Tokenizer::load(folder.path()).expect("loading");
        (tokenizer.opens_texts(), tokenizer.written_opening())
    };

    let (end, none) = ("<|endoftext|>", json!({}));
    let bytes = json!({ "type": "ByteLevel", "trim_offsets": true });
    let template = json!({
        "type": "TemplateProcessing",
        "single": [{ "SpecialToken": { "id": end, "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
    });
    let both = json!({ "type": "Sequence", "processors": [bytes, template] });
    let written = Some(end.to_owned());
    assert_eq!(opened(end, &Value::Null, &none), (true, None), "the files say nothing");
    assert_eq!(opened(end, &Value::Null, &json!({ "add_bos_token": false })), (false, None));
    assert_eq!(opened(end, &bytes, &none), (false, None), "as published for Qwen2.5");
    assert_eq!(opened(end, &template, &none), (true, written.clone()));
    assert_eq!(opened(end, &both, &json!({ "add_bos_token": false })), (true, written.clone()));
    assert_eq!(opened("<|bos|>", &bytes, &none), (true, None), "a token of this crate");
    assert_eq!(opened("<pad>", &template, &none), (false, written), "no token opens documents");
}

#[test]
fn control_tokens_at_the_end_need_no_row_unless_something_writes_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let controls = ["<bos>", "<start_of_turn>", "<end_of_turn>", "<image_soft_token>"];
    Tokenizer::bytes(&controls).save(folder.path()).expect("saving");
    let load = |config: &Value| {
        fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).expect("writing");
        Tokenizer::load(folder.path()).expect("loading")
    };

    let plain = load(&json!({ "bos_token": "<bos>" }));
    assert_eq!((plain.vocab_size(), plain.least_rows()), (260, 257));
    let gemma = plain.with_format(ChatFormat::Gemma).expect("it has the tokens");
    assert_eq!((gemma.vocab_size(), gemma.least_rows()), (260, 259));
    let template = "{% for m in messages %}{{ '<image_soft_token>' + m.content }}{% endfor %}";
    for written in [json!({ "chat_template": template }), json!({ "eos_token": "<image_soft_token>" })] {
        assert_eq!(load(&written).least_rows(), 260, "{written}");
    }
    assert_eq!(Tokenizer::bytes(&CHAT_SPECIALS).least_rows(), 261);
    assert_eq!(SMALL.least_rows(), SMALL.vocab_size());
}
