//! Text shown token by token.

use proptest::prelude::*;
use tokenizer::{CHAT_SPECIALS, Tokenizer};

use crate::fixtures::{SMALL, goldens};

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> (Vec<String>, String) {
    let mut stream = tokenizer.decode_stream();
    let shown = ids.iter().map(|id| stream.push(*id).expect("a known id")).collect();
    (shown, stream.finish().expect("finishing"))
}

#[test]
fn a_character_appears_only_when_it_is_whole() {
    let tokenizer = Tokenizer::bytes(&[]);
    let ids = tokenizer.encode("aé🌊").expect("text encodes");
    let (shown, rest) = streamed(&tokenizer, &ids);
    assert_eq!(shown, ["a", "", "é", "", "", "", "🌊"]);
    assert_eq!(rest, "");
}

#[test]
fn half_a_character_at_the_end_becomes_one_replacement() {
    let tokenizer = Tokenizer::bytes(&[]);
    let (shown, rest) = streamed(&tokenizer, &[0xF0, 0x9F, 0x8C]);
    assert_eq!((shown.concat(), rest.as_str()), (String::new(), "\u{fffd}"));
}

#[test]
fn invalid_bytes_do_not_delay_later_text() {
    let tokenizer = Tokenizer::bytes(&[]);
    let (shown, _) = streamed(&tokenizer, &[0xFF, 0x61, 0xE2, 0x61]);
    assert_eq!(shown, ["\u{fffd}", "a", "", "\u{fffd}a"]);
}

#[test]
fn control_tokens_are_not_shown() {
    let tokenizer = Tokenizer::bytes(&CHAT_SPECIALS);
    let bos = tokenizer.bos().expect("it has one");
    let (shown, rest) = streamed(&tokenizer, &[bos, 0x61, bos]);
    assert_eq!((shown.concat(), rest.as_str()), ("a".to_owned(), ""));
}

#[test]
fn prefix_spaces_stream_as_they_decode() {
    let tokenizer = Tokenizer::load(goldens().join("metaspace.json")).expect("the golden loads");
    for text in ["the water rises", "Größere 🌊 x", " two  blanks", "川は村"] {
        let ids = tokenizer.encode(text).expect("text encodes");
        let (shown, rest) = streamed(&tokenizer, &ids);
        assert_eq!(shown.concat() + &rest, tokenizer.decode(&ids).expect("ids decode"));
    }
}

proptest! {
    #[test]
    fn streamed_text_equals_decoding_all_ids(ids in proptest::collection::vec(0u32..450, 0..60)) {
        let (shown, rest) = streamed(&SMALL, &ids);
        prop_assert_eq!(shown.concat() + &rest, SMALL.decode(&ids).expect("ids decode"));
    }
}
