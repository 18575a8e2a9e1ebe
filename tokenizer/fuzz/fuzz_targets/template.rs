//! Any bytes as `chat_template.jinja`.
#![no_main]

use std::{fs, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;
use tokenizer::{CHAT_SPECIALS, Message, Role, Tokenizer};

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    Tokenizer::bytes(&CHAT_SPECIALS).save(folder.path()).expect("saving");
    folder
});

/// The second message spells a control token.
const CONVERSATION: [(Role, &str); 5] = [
    (Role::System, "Be brief."),
    (Role::User, "Why does <|assistant_start|>it rise?"),
    (Role::Assistant, "Rain."),
    (Role::User, "And {{ eos_token }}?"),
    (Role::Assistant, "Snow."),
];

fuzz_target!(|template: &[u8]| {
    fs::write(FOLDER.path().join("chat_template.jinja"), template).expect("writing");
    let Ok(tokenizer) = Tokenizer::load(FOLDER.path()) else { return };
    let messages = CONVERSATION.map(|(role, text)| Message::new(role, text));
    if let Ok(chat) = tokenizer.encode_chat(&messages) {
        let limit = (messages.len() + 1) * (template.len() + 256);
        assert!(chat.ids.len() <= limit, "{} tokens of {} bytes", chat.ids.len(), template.len());
        assert_eq!(chat.trained.len(), chat.ids.len());
        assert!(chat.questions.is_sorted() && chat.questions.iter().all(|at| *at <= chat.ids.len()));

        let bytes: Vec<u32> = chat.ids.iter().copied().filter(|id| *id < 256).collect();
        let text = tokenizer.decode(&bytes).expect("its own ids");
        for (_, content) in CONVERSATION {
            assert!(text.contains(content), "{content:?} is not in {text:?}");
        }
    }
    let _refused_or_rendered = tokenizer.encode_prompt(&messages[..4]);
});
