//! A GGUF file's vocabulary, as `llama.cpp` reads it.
//!
//! It knows split patterns by name. Its `gpt2` is byte-level BPE. Its `llama` is BPE over characters with `▁` for
//! blanks, and merges by tokens' scores instead of pairs' ranks.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use crate::{
    encode::{split::Pattern, tokenizer::Tokenizer},
    format::{
        component::{self, PreTokenizer},
        definition::{Definition, SpelledMerge},
    },
};

/// A vocabulary in `llama.cpp`'s terms.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaCpp {
    /// Encoder: `gpt2` or `llama`.
    pub model: &'static str,
    /// Name of the split pattern.
    pub pattern: &'static str,
    /// Spellings by id.
    pub tokens: Vec<String>,
    /// Kinds by id.
    pub kinds: Vec<i32>,
    /// Scores by id (`llama`).
    pub scores: Option<Vec<f32>>,
    /// Merges (`gpt2`).
    pub merges: Option<Vec<String>>,
    /// Whether a blank precedes texts.
    pub adds_space: bool,
    /// Whether the first control token opens texts.
    pub opens_texts: bool,
    /// The chat template.
    pub chat_template: Option<String>,
}

/// A tokenizer that `llama.cpp` cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("llama.cpp cannot run this tokenizer: {0}")]
pub struct NotInLlamaCpp(&'static str);

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// A blank in vocabularies of characters.
const BLANK: &str = "▁";

impl Tokenizer {
    /// The vocabulary for a model with `rows` tokens, perhaps more than it has. Without control tokens beyond them that
    /// nothing writes.
    pub fn llama_cpp(&self, rows: usize) -> Result<LlamaCpp, NotInLlamaCpp> {
        let mut definition = self.definition();
        for token in &mut definition.added_tokens {
            token.special |= self.specials().contains(token.id);
        }
        let byte_level = byte_level(&definition)?;
        let (tokens, kinds) = spellings(&definition, rows.max(self.least_rows() as usize));
        let chat_template = self.chat_template().map(str::to_owned);
        let opens_texts = self.opens_texts();

        Ok(match byte_level {
            Some(pattern) => LlamaCpp {
                model: "gpt2",
                pattern,
                tokens,
                kinds,
                scores: None,
                merges: Some(merges(&definition)?),
                adds_space: false,
                opens_texts,
                chat_template,
            },
            None => LlamaCpp {
                model: "llama",
                pattern: "default",
                scores: Some(scores(&definition, &tokens, &kinds)?),
                tokens,
                kinds,
                merges: None,
                adds_space: adds_space(&definition),
                opens_texts,
                chat_template,
            },
        })
    }
}

/// Byte-level BPE's pattern; `None` for BPE over characters.
fn byte_level(definition: &Definition) -> Result<Option<&'static str>, NotInLlamaCpp> {
    let pre_tokenizer = definition.pre_tokenizer.as_ref();
    let checked = component::check_pre_tokenizer(pre_tokenizer);
    let ranked = definition.model.ignore_merges;
    // Nearly all text is in normal form C.
    let normalizer = definition.normalizer.as_ref().map(|normalizer| &normalizer["type"]);
    let normalized = normalizer.is_some_and(|kind| *kind != json!("NFC"));

    let pattern = match checked.unwrap_or(PreTokenizer::Other) {
        PreTokenizer::Other if are_single_digits(pre_tokenizer) && !ranked => "smollm",
        PreTokenizer::Other if definition.model.byte_fallback => return Ok(None),
        PreTokenizer::Other => return Err(NotInLlamaCpp("it cuts text by a rule that program lacks")),
        PreTokenizer::ByteLevel(Pattern::Whole) if definition.model.merges.is_empty() => "gpt-2",
        PreTokenizer::ByteLevel(Pattern::Digits3) if ranked => "llama-bpe",
        _ if ranked => return Err(NotInLlamaCpp("it prefers whole words to merges")),
        PreTokenizer::ByteLevel(Pattern::Gpt2) => "gpt-2",
        PreTokenizer::ByteLevel(Pattern::Digits3) => "dbrx",
        PreTokenizer::ByteLevel(Pattern::Digits1) => "qwen2",
        PreTokenizer::ByteLevel(Pattern::CaseAware) => "gpt-4o",
        PreTokenizer::ByteLevel(Pattern::Digits2) => {
            return Err(NotInLlamaCpp(
                "it cuts numbers into pairs of digits; `train tokenizer train --digits 3` makes one that it can",
            ));
        }
        PreTokenizer::ByteLevel(Pattern::Whole) => {
            return Err(NotInLlamaCpp("it merges across words"));
        }
    };
    if normalized {
        return Err(NotInLlamaCpp("it rewrites text before it cuts it"));
    }
    Ok(Some(pattern))
}

/// Single digits, then GPT-2's pattern: `SmolLM`.
fn are_single_digits(pre_tokenizer: Option<&Value>) -> bool {
    let steps = pre_tokenizer.and_then(|steps| steps["pretokenizers"].as_array());
    let Some([digits, bytes]) = steps.map(Vec::as_slice) else { return false };
    digits["type"] == json!("Digits")
        && digits["individual_digits"] == json!(true)
        && matches!(component::check_pre_tokenizer(Some(bytes)), Ok(PreTokenizer::ByteLevel(Pattern::Gpt2)))
}

fn spellings(definition: &Definition, rows: usize) -> (Vec<String>, Vec<i32>) {
    let mut tokens: Vec<String> = (0..rows).map(|id| format!("[PAD{id}]")).collect();
    let mut kinds = vec![UNUSED; rows];
    let mut put = |id: u32, text: &str, kind| {
        let Some(token) = tokens.get_mut(id as usize) else { return };
        text.clone_into(token);
        kinds[id as usize] = kind;
    };

    let is_byte = |token: &str| {
        let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        hex.is_some_and(|hex| hex.len() == 2 && u8::from_str_radix(hex, 16).is_ok())
    };
    for (token, id) in &definition.model.vocab.0 {
        let byte = definition.model.byte_fallback && is_byte(token);
        put(*id, token, if byte { BYTE } else { NORMAL });
    }
    for added in &definition.added_tokens {
        put(added.id, &added.content, if added.special { CONTROL } else { USER_DEFINED });
    }
    if let Some(unknown) = &definition.model.unk_token
        && let Some((token, id)) = definition.model.vocab.0.iter().find(|(token, _)| token == unknown)
    {
        put(*id, token, UNKNOWN);
    }
    (tokens, kinds)
}

fn merges(definition: &Definition) -> Result<Vec<String>, NotInLlamaCpp> {
    let spelled = |SpelledMerge(left, right): &SpelledMerge| {
        let blank = left.contains(' ') || right.contains(' ');
        (!blank).then(|| format!("{left} {right}")).ok_or(NotInLlamaCpp("a merge holds a blank"))
    };
    definition.model.merges.iter().map(spelled).collect()
}

/// Each token's rank, negated. Fails where scores would choose another pair than merges.
fn scores(definition: &Definition, tokens: &[String], kinds: &[i32]) -> Result<Vec<f32>, NotInLlamaCpp> {
    let normal: HashSet<&str> = tokens
        .iter()
        .zip(kinds)
        .filter(|(_, kind)| **kind == NORMAL)
        .map(|(token, _)| token.as_str())
        .collect();
    let mut ranks: HashMap<String, usize> = HashMap::new();
    let mut pairs: HashSet<(&str, &str)> = HashSet::new();
    let mut last = String::new();
    for SpelledMerge(left, right) in &definition.model.merges {
        let joined = format!("{left}{right}");
        pairs.insert((left, right));
        // Others are cut from the text before merging.
        if joined != last && normal.contains(joined.as_str()) && ranks.contains_key(&joined) {
            return Err(NotInLlamaCpp("merges into one token have others between them"));
        }
        let next = ranks.len();
        ranks.entry(joined.clone()).or_insert(next);
        last = joined;
    }

    let is_merged = |token: &&str| {
        let mut cuts = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        cuts.all(|(left, right)| {
            !normal.contains(left) || !normal.contains(right) || pairs.contains(&(left, right))
        })
    };
    if !normal.iter().all(is_merged) {
        return Err(NotInLlamaCpp("it has tokens in two parts that no merge joins"));
    }

    let unmerged = -(ranks.len() as f32);
    Ok(tokens.iter().map(|token| ranks.get(token).map_or(unmerged, |rank| -(*rank as f32))).collect())
}

fn adds_space(definition: &Definition) -> bool {
    let prepends = |step: &Value| match step["type"].as_str() {
        Some("Prepend") => step["prepend"] == json!(BLANK),
        Some("Metaspace") => {
            step["prepend_scheme"].as_str().is_none_or(|scheme| scheme != "never")
                && step["add_prefix_space"] != json!(false)
        }
        _ => false,
    };
    let steps = |step: &Value, list: &str| match step[list].as_array() {
        Some(steps) => steps.clone(),
        None => vec![step.clone()],
    };
    let normalizer = definition.normalizer.iter().flat_map(|step| steps(step, "normalizers"));
    let pre_tokenizer = definition.pre_tokenizer.iter().flat_map(|step| steps(step, "pretokenizers"));
    normalizer.chain(pre_tokenizer).any(|step| prepends(&step))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::special::CHAT_SPECIALS;

    fn json(pre_tokenizer: &Value, model: &Value) -> Tokenizer {
        let mut definition = json!({
            "pre_tokenizer": pre_tokenizer,
            "added_tokens": [{ "id": 3, "content": "<s>", "special": true }, { "id": 4, "content": "<tool>" }],
            "model": { "type": "BPE", "vocab": { "a": 0, "b": 1, "ab": 2 }, "merges": [["a", "b"]] },
        });
        for (key, value) in model.as_object().expect("an object") {
            definition["model"][key] = value.clone();
        }
        Tokenizer::from_json(definition.to_string().as_bytes()).expect("a tokenizer")
    }

    fn split(pattern: Pattern) -> Value {
        json!({ "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": pattern.regex() }, "behavior": "Isolated", "invert": false },
            { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false }
        ]})
    }

    #[test]
    fn a_pattern_goes_by_the_name_that_llama_cpp_gives_it() {
        let pattern = |pre_tokenizer: Value, ignore_merges: bool| {
            let found = json(&pre_tokenizer, &json!({ "ignore_merges": ignore_merges })).llama_cpp(5);
            found.map(|found| (found.model, found.pattern))
        };
        let gpt2 = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true });
        let smollm = json!({ "type": "Sequence", "pretokenizers": [
            { "type": "Digits", "individual_digits": true }, gpt2
        ]});
        let known = [
            (gpt2, false, "gpt-2"),
            (split(Pattern::Digits3), true, "llama-bpe"),
            (split(Pattern::Digits3), false, "dbrx"),
            (split(Pattern::Digits1), false, "qwen2"),
            (split(Pattern::CaseAware), false, "gpt-4o"),
            (smollm, false, "smollm"),
        ];
        for (pre_tokenizer, ignore_merges, name) in known {
            assert_eq!(pattern(pre_tokenizer, ignore_merges), Ok(("gpt2", name)));
        }
        assert!(pattern(split(Pattern::Digits2), false).unwrap_err().to_string().contains("--digits 3"));
        assert!(pattern(split(Pattern::Digits1), true).is_err());
        assert!(pattern(json!({ "type": "Whitespace" }), false).is_err());
    }

    #[test]
    fn rows_beyond_the_vocabulary_are_unused_and_controls_keep_their_spelling() {
        let found = json(&split(Pattern::Digits1), &json!({})).llama_cpp(6).unwrap();
        assert_eq!(found.tokens, ["a", "b", "ab", "<s>", "<tool>", "[PAD5]"]);
        assert_eq!(found.kinds, [NORMAL, NORMAL, NORMAL, CONTROL, USER_DEFINED, UNUSED]);
        assert_eq!(found.merges, Some(vec!["a b".to_owned()]));
        assert!(!found.opens_texts, "no control token opens texts");
    }

    #[test]
    fn control_tokens_of_larger_models_take_no_row() {
        let definition = json!({
            "pre_tokenizer": split(Pattern::Digits1),
            "added_tokens": [
                { "id": 1, "content": "<s>", "special": true }, { "id": 2, "content": "<image>", "special": true }
            ],
            "model": { "type": "BPE", "vocab": { "a": 0 }, "merges": [] },
        });
        let found = Tokenizer::from_json(definition.to_string().as_bytes()).expect("a tokenizer");
        let found = found.llama_cpp(2).unwrap();
        assert_eq!(found.tokens, ["a", "<s>"]);
        assert_eq!(found.kinds, [NORMAL, CONTROL]);
    }

    #[test]
    fn a_vocabulary_of_bytes_keeps_its_template_and_opens_texts() {
        let found = Tokenizer::bytes(&CHAT_SPECIALS).llama_cpp(261).unwrap();
        assert_eq!((found.pattern, found.opens_texts), ("gpt-2", true));
        assert_eq!(found.tokens[32], "Ġ");
        assert_eq!(found.merges, Some(Vec::new()));
        assert!(found.chat_template.is_some());
    }

    #[test]
    fn merges_over_characters_become_scores_that_choose_the_same_pairs() {
        let characters = |vocab: &[&str], merges: Value| {
            let vocab: serde_json::Map<_, _> =
                vocab.iter().enumerate().map(|(id, token)| ((*token).to_owned(), json!(id))).collect();
            let definition = json!({
                "normalizer": { "type": "Sequence", "normalizers": [
                    { "type": "Prepend", "prepend": BLANK },
                    { "type": "Replace", "pattern": { "String": " " }, "content": BLANK }
                ]},
                "model": {
                    "type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "vocab": vocab, "merges": merges
                },
            });
            Tokenizer::from_json(definition.to_string().as_bytes()).expect("a tokenizer").llama_cpp(0)
        };
        let vocab = ["<unk>", "<0x0A>", "a", "b", "c", "ab", "abc", "bc"];
        let all = json!([["a", "b"], ["b", "c"], ["a", "bc"], ["ab", "c"]]);
        let found = characters(&vocab, all).unwrap();
        assert_eq!((found.model, found.pattern, found.adds_space), ("llama", "default", true));
        assert_eq!(found.kinds[..3], [UNKNOWN, BYTE, NORMAL]);
        assert_eq!(found.scores, Some(vec![-3.0, -3.0, -3.0, -3.0, -3.0, 0.0, -2.0, -1.0]));
        assert_eq!(found.merges, None);

        let apart = json!([["a", "bc"], ["a", "b"], ["b", "c"], ["ab", "c"]]);
        assert!(characters(&vocab, apart).is_err(), "another merge lies between two into `abc`");
        let missing = json!([["a", "b"], ["b", "c"], ["a", "bc"]]);
        assert!(characters(&vocab, missing).is_err(), "`ab` and `c` would merge, too");
    }
}
