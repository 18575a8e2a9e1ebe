//! Checks normalizers, pre-tokenizers and decoders without running them.
//!
//! A component passes if type and regular expression ([`crate::encode::split`]) are known and literals are short.

use serde_json::Value;

use crate::{
    encode::split::Pattern,
    format::{
        growth, limits,
        problem::{Limit, Problem},
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreTokenizer {
    /// Byte-level after exactly this pattern.
    ByteLevel(Pattern),
    Other,
}

struct Component {
    name: &'static str,
    steps: &'static str,
    known: &'static [&'static str],
}

const NORMALIZER: Component = Component {
    name: "normalizer",
    steps: "normalizers",
    known: &["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "Prepend", "Replace"],
};
const PRE_TOKENIZER: Component = Component {
    name: "pre-tokenizer",
    steps: "pretokenizers",
    known: &["ByteLevel", "Split", "Metaspace", "Digits", "Whitespace", "WhitespaceSplit", "Punctuation"],
};
const DECODER: Component = Component {
    name: "decoder",
    steps: "decoders",
    known: &["ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip", "BPEDecoder"],
};

pub(crate) fn check_normalizer(component: Option<&Value>) -> Result<(), Problem> {
    NORMALIZER.steps_of(component).map(|_| ())
}

/// Most bytes that a byte of text becomes before merging.
pub(crate) fn growth(normalizer: Option<&Value>, pre_tokenizer: Option<&Value>) -> Result<f64, Problem> {
    Ok(growth::factor(&NORMALIZER.steps_of(normalizer)?)
        * growth::factor(&PRE_TOKENIZER.steps_of(pre_tokenizer)?))
}

pub(crate) fn check_decoder(component: Option<&Value>) -> Result<(), Problem> {
    DECODER.steps_of(component).map(|_| ())
}

pub(crate) fn check_pre_tokenizer(component: Option<&Value>) -> Result<PreTokenizer, Problem> {
    let steps = PRE_TOKENIZER.steps_of(component)?;
    Ok(match steps.as_slice() {
        [only] => byte_level(only).unwrap_or(PreTokenizer::Other),
        [first, second] if byte_level(second) == Some(PreTokenizer::ByteLevel(Pattern::Whole)) => {
            isolating_split(first).map_or(PreTokenizer::Other, PreTokenizer::ByteLevel)
        }
        _ => PreTokenizer::Other,
    })
}

fn byte_level(step: &Value) -> Option<PreTokenizer> {
    let flag = |name, default| step.get(name).map_or(Some(default), Value::as_bool);
    if kind(step) != "ByteLevel" || flag("add_prefix_space", true)? {
        return None;
    }
    Some(PreTokenizer::ByteLevel(if flag("use_regex", true)? { Pattern::Gpt2 } else { Pattern::Whole }))
}

/// Accepts the plain form alone: inverting or gaps would change nothing.
fn isolating_split(step: &Value) -> Option<Pattern> {
    let isolated = step.get("behavior")?.as_str()? == "Isolated";
    let inverted = step.get("invert").and_then(Value::as_bool).unwrap_or(false);
    let regex = step.get("pattern")?.get("Regex")?.as_str()?;
    (kind(step) == "Split" && isolated && !inverted).then(|| Pattern::from_regex(regex)).flatten()
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or_default()
}

impl Component {
    fn steps_of<'v>(&self, component: Option<&'v Value>) -> Result<Vec<&'v Value>, Problem> {
        let mut steps = Vec::new();
        if let Some(component) = component.filter(|value| !value.is_null()) {
            self.collect(component, 0, &mut steps)?;
        }
        let bytes = growth::factor(&steps);
        if bytes > limits::GROWTH {
            return Err(Problem::Growth { place: self.name, bytes });
        }
        Ok(steps)
    }

    fn collect<'v>(&self, step: &'v Value, depth: usize, steps: &mut Vec<&'v Value>) -> Result<(), Problem> {
        Limit::Components.check(depth.max(steps.len()) + 1, limits::COMPONENTS)?;
        if kind(step) == "Sequence" {
            let inner = step.get(self.steps).and_then(Value::as_array);
            let inner = inner.ok_or_else(|| self.field(step, self.steps, "a list"))?;
            return inner.iter().try_for_each(|step| self.collect(step, depth + 1, steps));
        }
        self.check(step)?;
        steps.push(step);
        Ok(())
    }

    fn check(&self, step: &Value) -> Result<(), Problem> {
        if !self.known.contains(&kind(step)) {
            let known = format!("Sequence, {}", self.known.join(", "));
            return Err(Problem::UnknownComponent { place: self.name, kind: kind(step).to_owned(), known });
        }
        match kind(step) {
            "Split" => self.check_pattern(step),
            "Replace" => {
                self.check_pattern(step)?;
                self.check_literal(step, step.get("content"), "content", true)
            }
            "Prepend" => self.check_literal(step, step.get("prepend"), "prepend", true),
            _ => Ok(()),
        }
    }

    fn check_pattern(&self, step: &Value) -> Result<(), Problem> {
        let pattern = step.get("pattern");
        match pattern.and_then(|pattern| pattern.get("Regex")).and_then(Value::as_str) {
            Some(regex) if kind(step) == "Split" && Pattern::from_regex(regex).is_some() => Ok(()),
            Some(regex) => Err(Problem::UnknownPattern(regex.chars().take(limits::LITERAL_CHARS).collect())),
            None => {
                self.check_literal(step, pattern.and_then(|pattern| pattern.get("String")), "pattern", false)
            }
        }
    }

    fn check_literal(
        &self,
        step: &Value,
        literal: Option<&Value>,
        field: &'static str,
        may_be_empty: bool,
    ) -> Result<(), Problem> {
        let chars = literal.and_then(Value::as_str).map(|text| text.chars().count());
        match chars {
            Some(chars) if chars <= limits::LITERAL_CHARS && (may_be_empty || chars > 0) => Ok(()),
            _ => Err(self.field(
                step,
                field,
                "a text of at most 64 characters, not empty where it is searched for",
            )),
        }
    }

    fn field(&self, step: &Value, field: &'static str, expected: &'static str) -> Problem {
        Problem::ComponentField { place: self.name, kind: kind(step).to_owned(), field, expected }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn gpt2_and_llama3_shapes_are_recognised_as_byte_level() {
        let gpt2 = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true});
        assert_eq!(check_pre_tokenizer(Some(&gpt2)).unwrap(), PreTokenizer::ByteLevel(Pattern::Gpt2));
        let regex = Pattern::Digits3.regex().unwrap();
        let llama3 = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
        ]});
        assert_eq!(check_pre_tokenizer(Some(&llama3)).unwrap(), PreTokenizer::ByteLevel(Pattern::Digits3));
    }

    #[test]
    fn a_prefix_space_is_not_plain_byte_level() {
        let spaced = json!({"type": "ByteLevel", "add_prefix_space": true});
        assert_eq!(check_pre_tokenizer(Some(&spaced)).unwrap(), PreTokenizer::Other);
    }

    #[test]
    fn an_unknown_regex_is_refused_at_any_depth() {
        let evil = json!({"type": "Sequence", "pretokenizers": [{"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": false}]}]});
        assert!(matches!(check_pre_tokenizer(Some(&evil)), Err(Problem::UnknownPattern(_))));
        let replace = json!({"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""});
        assert!(matches!(check_normalizer(Some(&replace)), Err(Problem::UnknownPattern(_))));
        assert!(matches!(check_decoder(Some(&replace)), Err(Problem::UnknownPattern(_))));
    }

    #[test]
    fn nesting_is_bounded() {
        let mut nested = json!({"type": "NFC"});
        for _ in 0..40 {
            nested = json!({"type": "Sequence", "normalizers": [nested]});
        }
        assert!(matches!(check_normalizer(Some(&nested)), Err(Problem::TooLarge { .. })));
    }
}
