//! Messages of a conversation as clients send them.

use serde::Deserialize;

use crate::engine::{Message, Role};
use crate::error::ApiError;
use crate::limits::Limits;

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
pub(super) enum SentRole {
    #[serde(alias = "developer")]
    System,
    User,
    Assistant,
}

/// Makes neighbouring messages of one role one message: some programs send each paragraph alone. Leaves out empty
/// messages: clients send an empty answer back.
pub(super) fn joined(
    name: &str,
    sent: Vec<(SentRole, String)>,
    limits: &Limits,
) -> Result<Vec<Message>, ApiError> {
    if sent.is_empty() || sent.len() > limits.messages {
        let message = format!("`{name}` has {} of them; 1 to {} are read", sent.len(), limits.messages);
        return Err(ApiError::parameter(name, message));
    }
    let mut messages: Vec<Message> = Vec::with_capacity(sent.len());
    for (role, content) in sent.into_iter().filter(|(_, content)| !content.is_empty()) {
        let role = match role {
            SentRole::System => Role::System,
            SentRole::User => Role::User,
            SentRole::Assistant => Role::Assistant,
        };
        match messages.last_mut() {
            Some(last) if last.role == role => {
                last.content.push_str("\n\n");
                last.content.push_str(&content);
            }
            _ => messages.push(Message { role, content }),
        }
    }
    if messages.is_empty() {
        return Err(ApiError::parameter(name, format!("`{name}` has no text to answer")));
    }
    Ok(messages)
}
