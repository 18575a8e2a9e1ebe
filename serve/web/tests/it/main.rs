//! Tests of the server over loopback sockets, with the echo or a scripted engine behind it.

mod abuse;
mod access;
mod chat;
mod client;
mod completions;
mod engines;
mod lifecycle;
mod openai;
mod page;
mod program;
mod service;
mod webdriver;
