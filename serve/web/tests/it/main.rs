//! The server over loopback sockets.

mod abuse;
mod access;
mod chat;
mod client;
mod completions;
mod engines;
mod fairness;
mod lifecycle;
mod memory;
mod openai;
mod page;
mod program;
mod proxies;
mod responses;
mod service;
#[cfg(feature = "structured")]
mod tools;
mod webdriver;
