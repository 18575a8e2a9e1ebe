//! The server over loopback sockets.

mod abuse;
mod access;
mod chat;
mod client;
mod completions;
mod engines;
mod fairness;
mod lifecycle;
mod openai;
mod page;
mod program;
mod responses;
mod service;
mod webdriver;
