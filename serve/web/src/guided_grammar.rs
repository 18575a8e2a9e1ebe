//! Masks of allowed tokens, computed on the host from tokens' bytes by `llguidance`.

use std::fmt;
use std::sync::{Arc, OnceLock};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use crate::engine::Vocabulary;
use crate::grammar::Form;

/// The tokens that may follow in one answer.
#[derive(Clone)]
pub struct Grammar {
    matcher: Box<Matcher>,
    ends: Arc<[u32]>,
}

/// The first request builds a tree of all tokens, which takes some 100 ms for 100,000.
#[derive(Default)]
pub(crate) struct Grammars(OnceLock<Result<Factory, String>>);

struct Factory {
    parsers: ParserFactory,
    ends: Arc<[u32]>,
}

impl Grammars {
    pub(crate) fn compile(
        &self,
        form: &Form,
        vocabulary: &dyn Vocabulary,
        size: usize,
    ) -> Result<Grammar, String> {
        let built = self.0.get_or_init(|| factory(vocabulary, size));
        let Factory { parsers, ends } = built.as_ref().map_err(Clone::clone)?;
        let grammar = match form {
            Form::Json(schema) => TopLevelGrammar::from_json_schema(compact(schema)),
            Form::Call(functions) => TopLevelGrammar::from_lark(calls(functions, false)),
            Form::CallOrText(functions) => TopLevelGrammar::from_lark(calls(functions, true)),
        };
        let mut matcher = Matcher::new(parsers.create_parser(grammar));
        let first = matcher.compute_mask();
        if let Some(error) = matcher.get_error() {
            return Err(error.lines().next().unwrap_or_default().to_owned());
        }
        match first {
            Ok(mask) if !mask.is_zero() => Ok(Grammar { matcher: Box::new(matcher), ends: Arc::clone(ends) }),
            _ => Err("the model has no tokens for it".to_owned()),
        }
    }
}

fn factory(vocabulary: &dyn Vocabulary, size: usize) -> Result<Factory, String> {
    let ends: Arc<[u32]> = (0..size as u32).filter(|token| vocabulary.ends(*token)).collect();
    let Some(end) = ends.first() else {
        return Err("the model has no token that ends an answer".to_owned());
    };
    let words: Vec<Vec<u8>> = (0..size as u32)
        .map(|token| if vocabulary.is_text(token) { vocabulary.bytes(token) } else { Vec::new() })
        .collect();
    let trie = TokTrie::from(&TokRxInfo::new(size as u32, *end), &words).with_eos_tokens(&ends);
    let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let mut parsers = ParserFactory::new_simple(&tokens).map_err(|error| error.to_string())?;
    parsers.quiet();
    // Logs hold errors, not clients' texts.
    parsers.limits_mut().verbose_errors = false;
    Ok(Factory { parsers, ends })
}

/// Forbids free whitespace, which small models would not end.
fn compact(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Value::Object(members) = &mut schema {
        members.insert("x-guidance".to_owned(), json!({ "whitespace_flexible": false }));
    }
    schema
}

/// `{"name":"f","arguments":{}}`. Schemas stay documents: their references begin at their roots.
fn calls(functions: &[(String, Value)], may_speak: bool) -> String {
    let mut lark = String::from(if may_speak {
        "start: (call | TEXT)?\nTEXT: /[^{](?s:.)*/\n"
    } else {
        "start: call\n"
    });
    let names: Vec<String> = (0..functions.len()).map(|at| format!("f{at}")).collect();
    lark += &["call: ", &names.join(" | "), "\n"].concat();
    for (at, (name, schema)) in functions.iter().enumerate() {
        let opening = json!(format!("{{\"name\":{},\"arguments\":", json!(name)));
        let rules = format!("f{at}: {opening} a{at} \"}}\"\na{at}: %json {}\n", compact(schema));
        lark.push_str(&rules);
    }
    lark
}

impl Grammar {
    /// Lowers the logits of tokens that must not come next to minus infinity. At least one stays.
    pub fn mask(&mut self, logits: &mut [f32]) {
        let mask = self.matcher.compute_mask_or_eos();
        let mask = mask.inspect_err(|error| tracing::error!("a grammar failed: {error}")).ok();
        let mask = mask.filter(|mask| !mask.is_zero());
        for (token, logit) in (0..).zip(logits) {
            let allowed =
                mask.as_ref().map_or_else(|| self.ends.contains(&token), |mask| mask.is_allowed(token));
            if !allowed {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    /// Takes note of the chosen token.
    pub fn accept(&mut self, token: u32) {
        // A failed grammar allows only an end.
        let _failed = self.matcher.consume_token(token);
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grammars")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::echo::{ByteVocabulary, END, TOKENS};

    fn after(form: &Form, text: &str) -> (String, bool) {
        let vocabulary = ByteVocabulary { chats: true };
        let mut grammar = Grammars::default().compile(form, &vocabulary, TOKENS).unwrap();
        for byte in text.bytes() {
            let mut logits = [0.0; TOKENS];
            grammar.mask(&mut logits);
            assert!(logits[usize::from(byte)] == 0.0, "{:?} in {text}", char::from(byte));
            grammar.accept(u32::from(byte));
        }
        let mut logits = [0.0; TOKENS];
        grammar.mask(&mut logits);
        assert!(logits[END as usize + 1..].iter().all(|logit| *logit != 0.0), "control tokens");
        let allowed = (0..128_u8).filter(|byte| logits[usize::from(*byte)] == 0.0).map(char::from).collect();
        (allowed, logits[END as usize] == 0.0)
    }

    fn weather() -> Vec<(String, Value)> {
        let city = json!({ "type": "object", "properties": { "city": { "$ref": "#/$defs/city" } }, "required": ["city"],
            "additionalProperties": false, "$defs": { "city": { "enum": ["Rome", "Riga"] } } });
        vec![("weather".to_owned(), city), ("time".to_owned(), json!({ "type": "object" }))]
    }

    #[test]
    fn an_answer_in_json_follows_its_schema_and_ends_with_it() {
        let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" }, "ok": { "type": "boolean" } },
            "required": ["n", "ok"], "additionalProperties": false });
        let form = Form::Json(schema);
        assert_eq!(after(&form, ""), ("{".to_owned(), false));
        assert_eq!(after(&form, "{\"n\":-4,\"ok\":"), ("ft".to_owned(), false));
        assert_eq!(after(&form, "{\"n\":-4,\"ok\":true}"), (String::new(), true));
    }

    #[test]
    fn a_call_names_a_known_function_and_follows_the_schema_of_its_arguments() {
        let form = Form::Call(weather());
        assert_eq!(after(&form, "{\"name\":\""), ("tw".to_owned(), false));
        assert_eq!(
            after(&form, "{\"name\":\"weather\",\"arguments\":{\"city\":\"R"),
            ("io".to_owned(), false)
        );
        assert_eq!(
            after(&form, "{\"name\":\"weather\",\"arguments\":{\"city\":\"Rome\"}}"),
            (String::new(), true)
        );
    }

    #[test]
    fn an_answer_with_optional_calls_may_be_any_text_without_a_leading_brace() {
        let form = Form::CallOrText(weather());
        assert!(after(&form, "").1 && after(&form, "Hello, {world}\nand").1);
        assert_eq!(after(&form, "{\"na"), ("m".to_owned(), false));
    }

    #[test]
    fn a_schema_that_cannot_be_followed_is_an_error() {
        let vocabulary = ByteVocabulary { chats: true };
        for schema in [
            json!({ "type": "number", "minimum": 3, "maximum": 2 }),
            json!({ "type": "strange" }),
            json!(false),
        ] {
            let refused = Grammars::default().compile(&Form::Json(schema.clone()), &vocabulary, TOKENS);
            assert!(refused.is_err(), "{schema}");
        }
    }
}
