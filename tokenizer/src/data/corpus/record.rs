//! A JSON-lines record: a text, or a conversation in a common layout.

use serde::Deserialize;

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
    /// For `conversations` or a prompt.
    system: Option<String>,
}

/// As in chat APIs or `ShareGPT`.
#[derive(Deserialize)]
struct Turn {
    #[serde(alias = "from")]
    role: String,
    #[serde(alias = "value")]
    content: String,
}

/// One of these, or both of the last two.
pub(super) const KEYS: [&str; 5] = ["text", "messages", "conversations", "prompt", "completion"];

/// The error is the reason.
pub(super) fn parse(line: &[u8]) -> Result<Body, String> {
    let record: Record = serde_json::from_slice(line).map_err(|error| reason(&error))?;
    let Record { text, messages, conversations, prompt, completion, system } = record;
    let body = match (text, messages, conversations, prompt, completion) {
        (Some(text), None, None, None, None) if text.is_empty() => {
            return Err("has an empty `text`".to_owned());
        }
        (Some(text), None, None, None, None) => Body::Text(text),
        (None, Some(messages), None, None, None) => Body::Chat(turns(None, messages)?),
        (None, None, Some(turns_), None, None) => Body::Chat(turns(system, turns_)?),
        (None, None, None, Some(prompt), Some(completion)) => {
            let turn = |role: &str, content| Turn { role: role.to_owned(), content };
            Body::Chat(turns(system, vec![turn("user", prompt), turn("assistant", completion)])?)
        }
        (None, None, None, None, None) => {
            return Err(
                "has none of `text`, `messages`, `conversations`, `prompt` with `completion`".to_owned()
            );
        }
        (None, None, None, Some(_), None) => return Err("has a `prompt` without a `completion`".to_owned()),
        (None, None, None, None, Some(_)) => return Err("has a `completion` without a `prompt`".to_owned()),
        _ => return Err("is several things at once: a text, a conversation or a prompt".to_owned()),
    };
    Ok(body)
}

fn turns(system: Option<String>, turns: Vec<Turn>) -> Result<Vec<Message>, String> {
    let opening = system.filter(|system| !system.is_empty()).map(|system| Message::new(Role::System, system));
    let message = |turn: Turn| Ok(Message::new(role(&turn.role)?, turn.content));
    opening.map(Ok).into_iter().chain(turns.into_iter().map(message)).collect()
}

fn role(name: &str) -> Result<Role, String> {
    match name {
        "system" => Ok(Role::System),
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
