//! The endpoints of the API.

mod answer;
mod chat;
mod completions;
mod parameters;
mod service;

pub(crate) use chat::chat;
pub(crate) use completions::completions;
pub(crate) use service::{detokenize, health, metrics, model, models, tokenize};
