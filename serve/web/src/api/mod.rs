//! The endpoints of the API.

mod answer;
mod chat;
mod completions;
mod messages;
mod parameters;
mod responses;
mod running;
mod service;
mod tools;

pub(crate) use chat::chat;
pub(crate) use completions::completions;
pub(crate) use responses::responses;
pub(crate) use service::{detokenize, health, metrics, model, models, tokenize};
