//! The verbs as a user meets them.

mod prepare;
mod program;
mod tokenizer_train;
