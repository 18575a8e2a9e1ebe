//! GPT-2's vocabulary against `tiktoken-rs`.

use std::{collections::HashMap, env, fmt::Write, fs, path::PathBuf, sync::LazyLock};

use proptest::prelude::*;
use tiktoken_rs::CoreBPE;
use tokenizer::Tokenizer;

const TOKENS: u32 = 50_256;

static ORACLE: LazyLock<CoreBPE> =
    LazyLock::new(|| tiktoken_rs::r50k_base().expect("the ranks are built in"));

static GPT2: LazyLock<Tokenizer> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let tokens: Vec<Vec<u8>> =
        (0..TOKENS).map(|rank| ORACLE.decode_bytes(&[rank]).expect("every rank has bytes")).collect();
    let mut vocab: serde_json::Map<String, serde_json::Value> =
        tokens.iter().zip(0..).map(|(token, id)| (spell(token), id.into())).collect();
    vocab.insert("<|endoftext|>".to_owned(), TOKENS.into());
    fs::write(folder.path().join("vocab.json"), serde_json::Value::from(vocab).to_string()).expect("writing");
    fs::write(folder.path().join("merges.txt"), merges(&tokens)).expect("writing");
    Tokenizer::load(folder.path()).expect("the recovered files load")
});

/// Written independently of the crate's.
fn spell(token: &[u8]) -> String {
    let printable = |byte: &u8| (33..=126).contains(byte) || (161..=172).contains(byte) || *byte >= 174;
    let hidden: Vec<u8> = (0..=255).filter(|byte| !printable(byte)).collect();
    let spelled = |byte: &u8| match hidden.iter().position(|other| other == byte) {
        Some(at) => char::from_u32(256 + at as u32).expect("assigned"),
        None => char::from(*byte),
    };
    token.iter().map(spelled).collect()
}

/// Merging a token's bytes with better-ranked tokens leaves the two parts of its merge.
fn merges(tokens: &[Vec<u8>]) -> String {
    let ranks: HashMap<&[u8], usize> =
        tokens.iter().enumerate().map(|(rank, token)| (token.as_slice(), rank)).collect();
    let mut text = "#version: 0.2\n".to_owned();
    for (rank, token) in tokens.iter().enumerate().filter(|(_, token)| token.len() > 1) {
        let mut parts: Vec<&[u8]> = token.chunks(1).collect();
        while parts.len() > 2 {
            let joined = |at: usize| parts[at].len() + parts[at + 1].len();
            let start = |at: usize| parts[..at].iter().map(|part| part.len()).sum::<usize>();
            let known = |at: &usize| {
                ranks.get(&token[start(*at)..start(*at) + joined(*at)]).filter(|other| **other < rank)
            };
            let best = (0..parts.len() - 1).filter(|at| known(at).is_some()).min_by_key(|at| known(at));
            let at = best.expect("every token is merged from two better-ranked ones");
            let from = start(at);
            let length = joined(at);
            parts.splice(at..=at + 1, [&token[from..from + length]]);
        }
        writeln!(text, "{} {}", spell(parts[0]), spell(parts[1])).expect("writing to a string");
    }
    text
}

fn assert_same(text: &str) {
    let (ours, theirs) = (GPT2.encode(text).expect("text encodes"), ORACLE.encode_ordinary(text));
    assert_eq!(ours, theirs, "{text:?}");
    assert_eq!(GPT2.decode(&ours).expect("ids decode"), text);
}

#[test]
fn recovered_files_give_the_byte_level_kind_with_its_end_token() {
    assert_eq!((GPT2.kind(), GPT2.vocab_size(), GPT2.bos()), ("byte-level BPE", TOKENS + 1, Some(TOKENS)));
}

#[test]
fn whitespace_and_digits_encode_as_tiktoken_does() {
    for text in [
        "",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t\t",
        " \n ",
        "a ",
        " a",
        "a  b",
        "a\n\nb",
        "a \n b\n",
        "\u{a0}\u{a0}x",
        "\u{3000}y",
        "x\u{2028}\u{2029}\u{85}y",
        "   \n\n\n   \t",
        "1",
        "12",
        "123456789",
        " 1 23  456",
        "3.14e-10",
        "١٢٣",
        "²³Ⅷ½",
        "don't DON'T we'll I'd they've 's 'S '  ''s",
        "<|endoftext|>",
        "a<|endoftext|>b",
        "e\u{301}\u{200d}\u{feff}",
        "👩‍👩‍👧‍👦",
    ] {
        assert_same(text);
    }
    for blank in [' ', '\n', '\t', '\u{a0}'] {
        for count in 1..40 {
            assert_same(&format!("x{}y", String::from(blank).repeat(count)));
            assert_same(&String::from(blank).repeat(count));
        }
    }
    for count in 1..40 {
        assert_same(&"7".repeat(count));
    }
}

/// This repository's texts, and the file named by `TINYSHAKESPEARE`.
#[test]
fn whole_texts_encode_as_tiktoken_does() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let ours = ["tokenizer/tests/it/goldens/corpus.txt", "ARCHITECTURE.md", "docs/LOG.md"];
    let named = env::var_os("TINYSHAKESPEARE").map(PathBuf::from);
    for path in ours.map(|path| root.join(path)).into_iter().chain(named) {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_same(&text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(suite::cases(2000)))]

    #[test]
    fn any_unicode_encodes_as_tiktoken_does(text in any::<String>()) {
        assert_same(&text);
    }

    #[test]
    fn words_blanks_digits_and_quotes_in_any_order_encode_as_tiktoken_does(
        text in "([a-zA-Zéß]{1,8}|[ \t\n\r\u{a0}\u{3000}]{1,4}|[0-9²]{1,5}|'(s|t|re|ve|m|ll|d|S)|[!-/:-@]{1,3}|[漢字かな🌊]{1,3}){0,20}"
    ) {
        assert_same(&text);
    }
}
