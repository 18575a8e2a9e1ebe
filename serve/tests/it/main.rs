//! The server with a model behind it.

#[path = "../../web/tests/it/client.rs"]
#[expect(dead_code, reason = "its owner uses the rest")]
mod client;

mod answers;
mod load;
mod looking_up;
mod models_at_work;
