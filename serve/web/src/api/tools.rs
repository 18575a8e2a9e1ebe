//! Functions that an answer may call: offered in the prompt, enforced by a grammar, read from the answer.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use crate::body::Fields;
use crate::error::ApiError;
use crate::grammar::Form;

const FUNCTIONS: usize = 128;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SentTool {
    #[serde(rename = "type")]
    _kind: FunctionKind,
    function: Function,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
pub(super) enum FunctionKind {
    Function,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Function {
    name: String,
    description: Option<String>,
    parameters: Option<Map<String, Value>>,
    /// Arguments always follow their schema.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected none, auto, required, or a function by name")]
enum SentChoice {
    Word(Word),
    Named {
        #[serde(rename = "type")]
        _kind: FunctionKind,
        function: Named,
    },
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Word {
    None,
    Auto,
    Required,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
}

pub(super) struct Tools {
    functions: Vec<Function>,
    must_call: bool,
}

impl Tools {
    pub(super) fn read(fields: &mut Fields) -> Result<Option<Self>, ApiError> {
        let sent: Vec<SentTool> = fields.optional("tools")?.unwrap_or_default();
        let choice = fields.optional::<SentChoice>("tool_choice")?;
        let _only_one_at_a_time: Option<bool> = fields.optional("parallel_tool_calls")?;
        let mut functions: Vec<Function> = sent.into_iter().map(|tool| tool.function).collect();
        check(&functions)?;

        let must_call = match choice {
            Some(SentChoice::Word(Word::None)) => return Ok(None),
            None | Some(SentChoice::Word(Word::Auto)) => false,
            Some(SentChoice::Word(Word::Required)) => true,
            Some(SentChoice::Named { function: Named { name }, .. }) => {
                functions.retain(|function| function.name == name);
                true
            }
        };
        if functions.is_empty() && must_call {
            let message = "`tool_choice` asks for a function that `tools` does not have";
            return Err(ApiError::parameter("tool_choice", message));
        }
        Ok((!functions.is_empty()).then_some(Self { functions, must_call }))
    }

    pub(super) fn instructions(&self) -> String {
        let may = if self.must_call { "Answer with" } else { "You may answer with" };
        let mut text = format!(
            "{may} a call of a function, as JSON and nothing else: {{\"name\":\"...\",\"arguments\":{{...}}}}\nFunctions:"
        );
        for Function { name, description, parameters, .. } in &self.functions {
            let function = json!({ "name": name, "description": description, "parameters": parameters });
            text.push('\n');
            text += &function.to_string();
        }
        text
    }

    pub(super) fn form(&self) -> Form {
        let schema = |function: &Function| match &function.parameters {
            Some(parameters) if !parameters.is_empty() => Value::Object(parameters.clone()),
            _ => json!({ "type": "object" }),
        };
        let functions =
            self.functions.iter().map(|function| (function.name.clone(), schema(function))).collect();
        if self.must_call { Form::Call(functions) } else { Form::CallOrText(functions) }
    }
}

fn check(functions: &[Function]) -> Result<(), ApiError> {
    let wrong = |message: String| Err(ApiError::parameter("tools", message));
    if functions.len() > FUNCTIONS {
        return wrong(format!("`tools` has {}, and at most {FUNCTIONS} may be given", functions.len()));
    }
    for (at, Function { name, .. }) in functions.iter().enumerate() {
        let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
        if !is_plain || !(1..=64).contains(&name.len()) {
            return wrong(format!("`tools[{at}].function.name` has 1 to 64 letters, digits, `_` and `-`"));
        }
        if functions[..at].iter().any(|other| other.name == *name) {
            return wrong(format!("`tools` has two functions of the name `{name}`"));
        }
    }
    Ok(())
}

pub(super) fn response_format(fields: &mut Fields) -> Result<Option<Form>, ApiError> {
    #[derive(Deserialize)]
    #[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
    enum Sent {
        Text,
        JsonObject,
        JsonSchema { json_schema: Named },
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Named {
        #[serde(rename = "name")]
        _name: String,
        #[serde(rename = "description")]
        _description: Option<String>,
        #[serde(rename = "strict")]
        _strict: Option<bool>,
        schema: Map<String, Value>,
    }

    Ok(match fields.optional("response_format")? {
        None | Some(Sent::Text) => None,
        Some(Sent::JsonObject) => Some(Form::Json(json!({ "type": "object" }))),
        Some(Sent::JsonSchema { json_schema }) => Some(Form::Json(Value::Object(json_schema.schema))),
    })
}

/// A part of an answer that may be a call.
#[derive(Debug, PartialEq)]
pub(super) enum Said {
    Text(String),
    Name(String),
    Arguments(String),
}

/// The grammar fixes a call's form, without whitespace.
#[derive(Debug, Default)]
pub(super) struct CallReader {
    state: State,
    /// Text before the arguments, or a last brace, which may be the call's.
    held: String,
    /// Arguments given out.
    arguments: String,
}

#[derive(Debug, Default, PartialEq)]
enum State {
    #[default]
    Begin,
    Text,
    Name,
    Arguments,
}

const BEFORE_NAME: &str = "{\"name\":\"";
const BEFORE_ARGUMENTS: &str = "\",\"arguments\":";

impl CallReader {
    pub(super) fn push(&mut self, text: &str) -> Vec<Said> {
        let mut parts = Vec::new();
        self.held += text;
        if self.state == State::Begin && !self.held.is_empty() {
            self.state = if self.held.starts_with('{') { State::Name } else { State::Text };
        }
        if self.state == State::Name
            && let Some((before, rest)) = self.held.split_once(BEFORE_ARGUMENTS)
            && let Some(name) = before.strip_prefix(BEFORE_NAME)
        {
            parts.push(Said::Name(name.to_owned()));
            self.held = rest.to_owned();
            self.state = State::Arguments;
        }
        let ready = match self.state {
            State::Begin | State::Name => 0,
            State::Text => self.held.len(),
            State::Arguments => self.held.strip_suffix('}').unwrap_or(&self.held).len(),
        };
        let rest = self.held.split_off(ready);
        let ready = std::mem::replace(&mut self.held, rest);
        if !ready.is_empty() {
            parts.push(if self.state == State::Arguments {
                self.arguments += &ready;
                Said::Arguments(ready)
            } else {
                Said::Text(ready)
            });
        }
        parts
    }

    /// The rest, and whether the answer is a complete call, whose last brace belongs to no argument. A stop string or a
    /// length may cut a call anywhere, so only its text tells.
    pub(super) fn finish(&mut self) -> (Option<Said>, bool) {
        let rest = std::mem::take(&mut self.held);
        let is_complete_call = self.state == State::Arguments
            && rest == "}"
            && serde_json::from_str::<IgnoredAny>(&self.arguments).is_ok();
        let said = match self.state {
            _ if rest.is_empty() || is_complete_call => None,
            State::Arguments => Some(Said::Arguments(rest)),
            _ => Some(Said::Text(rest)),
        };
        (said, is_complete_call)
    }
}

pub(super) fn call_text(name: &str, arguments: &str) -> String {
    format!("{BEFORE_NAME}{name}{BEFORE_ARGUMENTS}{arguments}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&str]) -> (Vec<Said>, bool) {
        let mut reader = CallReader::default();
        let mut parts: Vec<Said> = pieces.iter().flat_map(|piece| reader.push(piece)).collect();
        let (rest, is_complete_call) = reader.finish();
        parts.extend(rest);
        (parts, is_complete_call)
    }

    fn arguments(parts: &[Said]) -> String {
        let text = |part: &Said| match part {
            Said::Name(_) => String::new(),
            Said::Arguments(text) => text.clone(),
            Said::Text(_) => panic!("{part:?}"),
        };
        parts.iter().map(text).collect()
    }

    #[test]
    fn a_call_is_read_however_it_is_split() {
        let text = call_text("weather", "{\"at\":{\"city\":\"Rome\"}}");
        for size in 1..text.len() {
            let pieces: Vec<&str> =
                text.as_bytes().chunks(size).map(|piece| std::str::from_utf8(piece).unwrap()).collect();
            let (parts, is_complete_call) = read(&pieces);
            assert!(is_complete_call, "pieces of {size}");
            assert_eq!(parts[0], Said::Name("weather".to_owned()));
            assert_eq!(arguments(&parts), "{\"at\":{\"city\":\"Rome\"}}", "pieces of {size}");
        }
    }

    #[test]
    fn a_call_is_complete_at_its_last_brace_alone() {
        let given = "{\"at\":{\"city\":\"}{}\"},\"days\":[3]}";
        let text = call_text("f", given);
        let begin = text.len() - 1 - given.len();
        for end in begin + 1..text.len() {
            let (parts, is_complete_call) = read(&[&text[..end]]);
            assert!(!is_complete_call, "{}", &text[..end]);
            assert_eq!(arguments(&parts), text[begin..end], "all that was said");
        }
        let (parts, is_complete_call) = read(&[&text]);
        assert_eq!((arguments(&parts).as_str(), is_complete_call), (given, true));
    }

    #[test]
    fn a_call_that_was_cut_keeps_its_braces_and_a_text_is_no_call() {
        let (cut, _) = read(&["{\"name\":\"f\",\"arguments\":{\"a\":{}"]);
        assert_eq!(cut[1..], [Said::Arguments("{\"a\":{".to_owned()), Said::Arguments("}".to_owned())]);
        let said = |texts: &[&str]| -> Vec<Said> {
            texts.iter().map(|text| Said::Text((*text).to_owned())).collect()
        };
        assert_eq!(read(&["Hi", " {}"]), (said(&["Hi", " {}"]), false));
        assert_eq!(read(&["{\"na"]), (said(&["{\"na"]), false));
    }
}
