//! A record: a text, or a conversation in a common layout.

use serde::Deserialize;
use serde_json::Value;

use super::Body;
use crate::chat::message::{Message, Role};

/// Ignores other fields.
#[derive(Deserialize)]
struct Record {
    text: Option<String>,
    messages: Option<Vec<Turn>>,
    conversations: Option<Vec<Turn>>,
    prompt: Option<String>,
    completion: Option<String>,
    instruction: Option<String>,
    input: Option<String>,
    output: Option<String>,
    system: Option<String>,
}

/// As in chat APIs or `ShareGPT`.
#[derive(Deserialize)]
struct Turn {
    #[serde(alias = "from")]
    role: String,
    #[serde(alias = "value", default)]
    content: Value,
}

/// A record has one of the first three, or two of the others.
pub(super) const KEYS: [&str; 6] =
    ["text", "messages", "conversations", "prompt", "completion", "instruction"];

pub(super) const FIELDS: [&str; 9] =
    ["text", "messages", "conversations", "prompt", "completion", "instruction", "input", "output", "system"];

pub(super) fn parse(line: &[u8]) -> Result<Body, String> {
    body(serde_json::from_slice(line).map_err(|error| reason(&error))?)
}

pub(super) fn from_value(value: Value) -> Result<Body, String> {
    body(serde_json::from_value(value).map_err(|error| error.to_string())?)
}

fn body(record: Record) -> Result<Body, String> {
    let Record { text, messages, conversations, prompt, completion, instruction, input, output, system } =
        record;
    // Published sets repeat a conversation's first question as `prompt`, and an instruction as `text`.
    if let Some(messages) = messages {
        return Ok(Body::Chat(turns(None, messages)?));
    }
    if let Some(conversations) = conversations {
        return Ok(Body::Chat(turns(system, conversations)?));
    }
    let (question, answer) = match (instruction, text, prompt, completion) {
        (Some(instruction), _, None, None) => {
            let output = output.ok_or("has an `instruction` without an `output`")?;
            match input.filter(|input| !input.is_empty()) {
                Some(input) => (format!("{instruction}\n\n{input}"), output),
                None => (instruction, output),
            }
        }
        (None, Some(text), None, None) if text.is_empty() => return Err("has an empty `text`".to_owned()),
        (None, Some(text), None, None) => return Ok(Body::Text(text)),
        (None, None, Some(prompt), Some(completion)) => (prompt, completion),
        (None, None, None, None) => return Err("has none of the known keys".to_owned()),
        (None, None, Some(_), None) => return Err("has a `prompt` without a `completion`".to_owned()),
        (None, None, None, Some(_)) => return Err("has a `completion` without a `prompt`".to_owned()),
        _ => return Err("is several things at once: a text, a conversation or a prompt".to_owned()),
    };
    let turn = |role: &str, content| Turn { role: role.to_owned(), content: Value::String(content) };
    Ok(Body::Chat(turns(system, vec![turn("user", question), turn("assistant", answer)])?))
}

fn turns(system: Option<String>, turns: Vec<Turn>) -> Result<Vec<Message>, String> {
    let opening = system.filter(|system| !system.is_empty()).map(|system| Message::new(Role::System, system));
    let message = |(at, turn): (usize, Turn)| {
        let content = content(turn.content).map_err(|what| format!("has a message {} {what}", at + 1))?;
        Ok(Message::new(role(&turn.role)?, content))
    };
    opening.map(Ok).into_iter().chain(turns.into_iter().enumerate().map(message)).collect()
}

fn content(content: Value) -> Result<String, String> {
    match content {
        Value::String(text) => Ok(text),
        Value::Array(parts) => parts.iter().map(part).collect(),
        _ => Err("whose content is neither a text nor a list of texts".to_owned()),
    }
}

fn part(part: &Value) -> Result<&str, String> {
    part.get("text").and_then(Value::as_str).ok_or_else(|| {
        let kind = part.get("type").and_then(Value::as_str).unwrap_or("unknown");
        let shown: String = kind.chars().take(32).collect();
        format!("with a part of type {shown:?}; only text is read")
    })
}

fn role(name: &str) -> Result<Role, String> {
    match name {
        "system" | "developer" => Ok(Role::System),
        "user" | "human" => Ok(Role::User),
        "assistant" | "gpt" | "chatgpt" | "model" | "bot" => Ok(Role::Assistant),
        other => {
            let shown: String = other.chars().take(32).collect();
            Err(format!(
                "has the role {shown:?}; known are system, user (human) and assistant (gpt, model, bot)"
            ))
        }
    }
}

fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line 1 column ") {
        Some((what, column)) => format!("{what} (column {column})"),
        None => text,
    }
}
