//! What the crate promises, tested from outside.

mod chat;
mod corpus;
mod dataset;
mod errors;
mod fixtures;
mod goldens;
mod gpt2;
mod hostile;
#[cfg(feature = "parquet")]
mod parquet_text;
mod prepare;
mod stream;
mod trained;
mod windows;
