//! Text shown token by token.

use std::sync::LazyLock;

use proptest::prelude::*;
use tokenizer::{CHAT_SPECIALS, DecodeStream, Tokenizer};

use crate::fixtures::{SMALL, goldens};

/// Prefix spaces and byte fallback.
static METASPACE: LazyLock<Tokenizer> = LazyLock::new(|| golden("metaspace"));

/// `<0x00>` in [`METASPACE`].
const FIRST_BYTE: u32 = 3;

fn golden(name: &str) -> Tokenizer {
    Tokenizer::load(goldens().join(format!("{name}.json"))).expect("the golden loads")
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> (Vec<String>, String) {
    drained(tokenizer.decode_stream(), ids)
}

fn drained(mut stream: DecodeStream, ids: &[u32]) -> (Vec<String>, String) {
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
    for text in ["the water rises", "Größere 🌊 x", " two  blanks", "川は村"] {
        let ids = METASPACE.encode(text).expect("text encodes");
        let (shown, rest) = streamed(&METASPACE, &ids);
        assert_eq!(shown.concat() + &rest, METASPACE.decode(&ids).expect("ids decode"));
    }
}

#[test]
fn a_stray_byte_behind_whole_characters_loses_no_later_text() {
    let bytes = "é".bytes().chain([0xFF]).map(|byte| FIRST_BYTE + u32::from(byte));
    let ids: Vec<u32> = bytes.chain(METASPACE.encode("water").expect("text encodes")).collect();
    let (shown, rest) = streamed(&METASPACE, &ids);
    assert_eq!(shown.concat() + &rest, "\u{fffd}\u{fffd}\u{fffd} water");
}

#[test]
fn an_unknown_id_is_an_error_that_loses_no_later_text() {
    for tokenizer in [&*METASPACE, &*SMALL] {
        let mut stream = tokenizer.decode_stream();
        assert!(stream.push(4_000_000).is_err());
        let ids = tokenizer.encode("water").expect("text encodes");
        let shown: String = ids.iter().map(|id| stream.push(*id).expect("a known id")).collect();
        assert_eq!(shown + &stream.finish().expect("finishing"), "water", "{}", tokenizer.kind());
    }
}

#[test]
fn a_continuation_keeps_its_first_blank_and_repeats_nothing() {
    for tokenizer in [&*METASPACE, &golden("nfc"), &*SMALL] {
        for (prompt, rest) in [
            ("The water", " rises, the  river"),
            ("x", "y"),
            ("🌊", " é"),
            ("a ", "\n🌊"),
            ("\u{fffd}", " b"),
        ] {
            let mut ids = tokenizer.encode(prompt).expect("text encodes");
            // Behind another token, without the blank of a text's beginning.
            let whole = tokenizer.encode(&format!("Q{rest}")).expect("text encodes");
            let first = tokenizer.encode("Q").expect("text encodes");
            let answer = whole.strip_prefix(first.as_slice()).expect("no token spans both");
            let (shown, end) = drained(tokenizer.decode_stream_after(&ids), answer);
            assert_eq!(shown.concat() + &end, rest, "{} after {prompt:?}", tokenizer.kind());

            ids.insert(0, tokenizer.specials().iter().next().expect("a control token").id);
            let (shown, end) = drained(tokenizer.decode_stream_after(&ids), answer);
            assert_eq!(shown.concat() + &end, rest, "behind a control token");
        }
    }
    let ids = METASPACE.encode("water").expect("text encodes");
    let (shown, rest) = drained(METASPACE.decode_stream_after(&[1]), &ids);
    assert_eq!(shown.concat() + &rest, "water", "a text that begins");
}

#[test]
fn bytes_of_tokens_join_to_the_text() {
    let texts = [
        "The water rises, the river widens.",
        "{\"name\": \"Größere\", \"n\": [1, 23]}",
        "川は村 🌊🚢\u{0} \u{200b}",
        "def f(x):\r\n    return  x\n",
    ];
    for (tokenizer, dummy) in [(&*METASPACE, " "), (&golden("nfc"), ""), (&*SMALL, "")] {
        for text in texts {
            let ids = tokenizer.encode(text).expect("text encodes");
            let bytes: Vec<u8> = ids.iter().flat_map(|id| tokenizer.token_bytes(*id)).collect();
            assert_eq!(String::from_utf8_lossy(&bytes), format!("{dummy}{text}"), "{}", tokenizer.kind());
        }
    }
}

#[test]
fn each_byte_of_byte_fallback_is_a_token_and_control_tokens_have_no_bytes() {
    for byte in 0..=u8::MAX {
        assert_eq!(METASPACE.token_bytes(FIRST_BYTE + u32::from(byte)), [byte]);
    }
    for tokenizer in [&*METASPACE, &golden("nfc"), &*SMALL] {
        let controls = tokenizer.specials().iter().map(|token| token.id);
        assert!(controls.chain([4_000_000]).all(|id| tokenizer.token_bytes(id).is_empty()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(suite::cases(256)))]

    #[test]
    fn streamed_text_equals_decoding_all_ids(ids in proptest::collection::vec(0u32..450, 0..60)) {
        let (shown, rest) = streamed(&SMALL, &ids);
        prop_assert_eq!(shown.concat() + &rest, SMALL.decode(&ids).expect("ids decode"));
    }

    #[test]
    fn streamed_bytes_of_byte_fallback_equal_decoding_all_ids(
        ids in proptest::collection::vec(prop_oneof![0u32..500, 3u32..131, 197u32..259], 0..30)
    ) {
        let (shown, rest) = streamed(&METASPACE, &ids);
        prop_assert_eq!(shown.concat() + &rest, METASPACE.decode(&ids).expect("ids decode"));
    }
}
