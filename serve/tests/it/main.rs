//! Tests of the server with a model.

#[path = "../../web/tests/it/client.rs"]
#[expect(dead_code, reason = "its owner uses the rest")]
mod client;

mod answers;
mod harness;
mod load;
mod lookup;
mod reference;
mod saved_runs;
mod scores;
mod served_models;
