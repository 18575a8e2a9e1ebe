//! Conversations, compared with what Hugging Face's code makes of their rendered text.

use std::fs;

use serde_json::{Value, json};
use tokenizer::{ChatFormat, ChatIds, Message, Role, Tokenizer};

use crate::fixtures::goldens;

/// With Zephyr's turns.
const ZEPHYR: &str = "\
{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + eos_token + '\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}";

fn golden(name: &str) -> Value {
    serde_json::from_slice(&fs::read(goldens().join(name)).expect("the golden is committed")).expect("JSON")
}

/// Llama 2's vocabulary as it was published, as later files have it, and as the newest have it.
fn vocabularies() -> [Value; 3] {
    let metaspace = golden("metaspace.json");
    let blanks = |scheme: &str| {
        let mut json = metaspace.clone();
        json["normalizer"] = Value::Null;
        json["pre_tokenizer"] =
            json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": scheme, "split": false});
        json
    };
    [metaspace.clone(), blanks("always"), blanks("first")]
}

fn loaded(definition: &Value, template: &str) -> Tokenizer {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("tokenizer.json"), definition.to_string()).expect("writing");
    let config = json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}).to_string();
    fs::write(folder.path().join("tokenizer_config.json"), config).expect("writing");
    Tokenizer::load(folder.path()).expect("loading")
}

/// Hugging Face's ids, where control tokens in the text count.
fn reference(tokenizer: &Tokenizer, rendered: &str) -> Vec<u32> {
    let folder = tempfile::tempdir().expect("a folder");
    tokenizer.save(folder.path()).expect("saving");
    let reference =
        hf::Tokenizer::from_file(folder.path().join("tokenizer.json")).expect("their code loads it");
    reference.encode(rendered, false).expect("it encodes").get_ids().to_vec()
}

fn conversation() -> [Message; 4] {
    [
        (Role::User, "the water"),
        (Role::Assistant, "rises é."),
        (Role::User, "the mill?"),
        (Role::Assistant, "It is below."),
    ]
    .map(|(role, text)| Message::new(role, text))
}

/// Trained tokens, of one answer or one closing control token each.
fn trained(chat: &ChatIds) -> Vec<Vec<u32>> {
    let tokens: Vec<(u32, bool)> = chat.ids.iter().copied().zip(chat.trained.iter().copied()).collect();
    let stretches = tokens.chunk_by(|one, next| one.1 == next.1).filter(|stretch| stretch[0].1);
    stretches.map(|stretch| stretch.iter().map(|(id, _)| *id).collect()).collect()
}

#[test]
fn conversations_have_the_ids_of_their_rendered_text() {
    for definition in vocabularies() {
        for (name, rendered) in [
            (
                "llama2",
                "<s>[INST] the water [/INST] rises é. </s><s>[INST] the mill? [/INST] It is below. </s>",
            ),
            (
                "mistral-v1",
                "<s> [INST] the water [/INST] rises é.</s> [INST] the mill? [/INST] It is below.</s>",
            ),
            ("mistral-v3", "<s>[INST] the water[/INST] rises é.</s>[INST] the mill?[/INST] It is below.</s>"),
            ("mistral", "<s>[INST]the water[/INST]rises é.</s>[INST]the mill?[/INST]It is below.</s>"),
            (
                "",
                "<|user|>\nthe water</s>\n<|assistant|>\nrises é.</s>\n<|user|>\nthe mill?</s>\n<|assistant|>\n\
                 It is below.</s>\n",
            ),
        ] {
            let mut tokenizer = loaded(&definition, ZEPHYR);
            if let Ok(format) = name.parse::<ChatFormat>() {
                tokenizer = tokenizer.with_format(format).expect("it takes it");
            }
            assert_eq!(tokenizer.kind(), "BPE");
            let chat = tokenizer.encode_chat(&conversation()).expect("it encodes");
            assert_eq!(
                chat.ids,
                reference(&tokenizer, rendered),
                "{name}: {:?}",
                tokenizer.decode(&chat.ids)
            );
            assert_eq!(tokenizer.encode_with_specials(rendered).expect("it encodes"), chat.ids, "{name}");
            let prompt = tokenizer.encode_prompt(&conversation()[..3]).expect("it encodes");
            assert!(chat.ids.starts_with(&prompt), "{name}: generation continues what training saw");

            let trained = trained(&chat);
            let answers: Vec<String> =
                trained.iter().map(|ids| tokenizer.decode(ids).expect("they decode")).collect();
            let answers: Vec<&str> =
                answers.iter().map(|text| text.trim()).filter(|text| !text.is_empty()).collect();
            assert_eq!(answers, ["rises é.", "It is below."], "{name}");
            let end = tokenizer.eos().expect("it has one");
            assert_eq!(trained.concat().iter().filter(|id| **id == end).count(), 2, "{name}");
        }
    }
}

#[test]
fn an_answers_first_token_holds_the_templates_blank() {
    let [definition, ..] = vocabularies();
    let tokenizer = loaded(&definition, ZEPHYR).with_format(ChatFormat::Llama2).expect("it takes it");
    let chat = [Message::new(Role::User, "the mill?"), Message::new(Role::Assistant, "the water")];
    let prompt = tokenizer.encode_prompt(&chat[..1]).expect("it encodes");
    let chat = tokenizer.encode_chat(&chat).expect("it encodes");
    let known = tokenizer.encode("the water").expect("it encodes");
    assert_eq!(known.len(), 2, "both words with their blanks");
    assert_eq!(trained(&chat)[0], known);
    assert!(chat.ids[prompt.len()..].starts_with(&known), "no blank is left to the template");
}

#[test]
fn an_answer_that_would_share_a_word_with_the_question_is_encoded_alone() {
    let [definition, ..] = vocabularies();
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ eos_token }}";
    let tokenizer = loaded(&definition, template);
    let encode = |text: &str| tokenizer.encode(text).expect("it encodes");
    assert_eq!(encode("the water").len(), 2, "a token would hold both");
    let chat = [Message::new(Role::User, "the wa"), Message::new(Role::Assistant, "ter")];
    let chat = tokenizer.encode_chat(&chat).expect("it encodes");
    let eos = tokenizer.eos().expect("it has one");
    assert_eq!(chat.ids, [encode("the wa"), encode("ter"), vec![eos]].concat());
    assert_eq!(trained(&chat), [[encode("ter"), vec![eos]].concat()]);
}

#[test]
fn control_tokens_swallow_blanks_where_the_vocabulary_says_so() {
    let template = "{% for m in messages %}{{ '<|' + m.role + '_start|>\n' + m.content + '\n<|' + m.role + '_end|>\n' }}\
                    {% endfor %}";
    let mut definition = golden("trained.json");
    for (token, flag) in [(1, "rstrip"), (2, "lstrip"), (2, "rstrip"), (3, "rstrip")] {
        definition["added_tokens"][token][flag] = true.into();
    }
    let tokenizer = loaded(&definition, template);
    let chat = [Message::new(Role::User, "  the \nwater "), Message::new(Role::Assistant, "\trises \n")];
    let chat = tokenizer.encode_chat(&chat).expect("it encodes");
    let rendered =
        "<|user_start|>\n  the \nwater \n<|user_end|>\n<|assistant_start|>\n\trises \n\n<|assistant_end|>\n";
    assert_eq!(
        tokenizer.encode_with_specials(rendered).expect("it encodes"),
        reference(&tokenizer, rendered)
    );

    let shown = |ids: &[u32]| tokenizer.decode(ids).expect("they decode");
    assert_eq!(shown(&chat.ids), "the \nwaterrises \n\n\n");
    assert_eq!(shown(&trained(&chat).concat()), "rises \n");
}
