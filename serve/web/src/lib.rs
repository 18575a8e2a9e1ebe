//! A language model behind an OpenAI-compatible API and a page in the browser.
//!
//! This crate knows requests, answers, limits and who may ask; it knows models by the trait [`Engine`] alone, so that it
//! builds in seconds and is tested without any. A program hands it a function that loads a model on the inference
//! thread and answers at a [`Desk`]:
//!
//! ```
//! use web::{Echo, Limits, Settings, Web};
//!
//! let settings = Settings {
//!     host: "127.0.0.1".parse()?,
//!     port: 0,
//!     key: None,
//!     hosts: Vec::new(),
//!     origins: Vec::new(),
//!     limits: Limits::default(),
//! };
//! let server = Web::start(settings, |desk| {
//!     Echo::default().answer(desk);
//!     Ok(())
//! })?;
//! println!("http://{}", server.address());
//! server.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A request passes, from the outside in: `listen` (connections and their times), `places` (how many there are),
//! `routes` (names, the key, headers, the log), `body` (bytes to fields), `api` (fields to sequences), `queue`,
//! `scheduler` (which sequences are in the engine), and comes back through `sequence` (tokens to text) and `api/answer`.

mod access;
mod api;
mod args;
mod body;
mod desk;
mod echo;
mod engine;
mod error;
mod limits;
mod listen;
mod metrics;
mod page;
mod places;
mod program;
mod queue;
mod routes;
mod scheduler;
mod sequence;
mod state;
mod stop;
mod web;
mod wire;

pub use access::{ApiKey, BadKey};
pub use args::ServerArgs;
pub use desk::Desk;
pub use echo::{Echo, EchoArgs};
pub use engine::{
    Ask, Counter, Counters, Decoder, EncodeError, Engine, EngineError, Key, Likelihood, Message, Model, Role,
    Sampling, Token, Vocabulary,
};
pub use limits::Limits;
pub use program::{keep_a_log, run};
pub use web::{Settings, Web};
