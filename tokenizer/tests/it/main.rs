//! Integration tests, in one binary.

mod chat;
mod control_tokens;
mod corpus;
mod dataset;
mod errors;
mod fixtures;
mod foreign;
mod goldens;
mod gpt2;
mod hostile;
mod index;
mod parquet_text;
mod prepare;
mod records;
mod rendered_chats;
mod stream;
mod trained;
mod windows;
