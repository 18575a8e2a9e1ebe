//! A language model behind an OpenAI-compatible API and a web page.
//!
//! Models are behind the trait [`Engine`], so this crate builds in seconds
//! (`the_server_builds_without_burn_and_the_trainer_without_the_server`). A function given to [`Web::start`] loads a
//! model and answers through an [`InferenceWorker`]:
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
//! let server = Web::start(settings, |worker| {
//!     Echo::default().answer(worker);
//!     Ok(())
//! })?;
//! println!("http://{}", server.address());
//! server.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A request passes `listen`, `connection_slots`, `routes`, `body`, `api`, `queue` (in `turns`) and `scheduler`; its
//! answer, `sequence` and `api/answer`.

#[cfg(not(feature = "structured"))]
mod absent_grammar;
mod access;
mod api;
mod args;
mod body;
mod body_budget;
mod client;
mod connection_slots;
mod echo;
mod engine;
mod error;
mod grammar;
#[cfg(feature = "structured")]
mod guided_grammar;
mod limits;
mod listen;
mod metrics;
mod monitored_stream;
mod pace;
mod page;
mod program;
mod queue;
mod record;
#[cfg(test)]
mod reference;
mod request_id;
mod routes;
mod scheduler;
mod sequence;
mod signals;
mod state;
mod stop;
mod turns;
mod web;
mod worker;

pub use access::{ApiKey, BadKey};
pub use args::{KEY_VARIABLE, ServerArgs};
pub use echo::{Echo, EchoArgs};
pub use engine::{
    Adjustment, Counter, Counters, Decoder, EncodeError, Engine, EngineError, Key, KvMemory, Likelihood,
    Message, Model, PromptRead, Role, Sampling, SequenceRequest, Token, Vocabulary,
};
pub use grammar::Grammar;
pub use limits::Limits;
pub use program::{init_logging, run};
pub use web::{Settings, Web};
pub use worker::InferenceWorker;
