//! Limits on what a tokenizer file may ask of the reader. Each limit is several times what the largest published
//! tokenizer needs, and keeps a hostile file from turning into gigabytes or minutes.

/// Bytes of `tokenizer.json`, `vocab.json` or `merges.txt`.
pub const FILE_BYTES: u64 = 128 << 20;
/// Bytes of `tokenizer_config.json`.
pub const CONFIG_BYTES: u64 = 8 << 20;
/// Entries of the vocabulary, and the bound for every token id.
pub const VOCABULARY: usize = 1 << 20;
/// Merge rules.
pub const MERGES: usize = 1 << 21;
/// Bytes of one token as spelled in the file.
pub const TOKEN_BYTES: usize = 2048;
/// Tokens listed beside the vocabulary.
pub const ADDED_TOKENS: usize = 1 << 14;
/// Characters of a literal in a normalizer, pre-tokenizer or decoder.
pub const LITERAL_CHARS: usize = 64;
/// Steps nested in one another or in a row within one component.
pub const COMPONENTS: usize = 32;
/// Bytes that one byte of text may become in all steps of one component.
pub const GROWTH: f64 = 256.0;
/// Bytes that a text given to an encoder may become in the tokenizer's normalizer and pre-tokenizer.
pub const NORMALIZED_BYTES: usize = 128 << 20;
/// Bytes of a chat template.
pub const TEMPLATE_BYTES: usize = 16 << 10;
/// Bytes of one text given to an encoder in one call; positions in it are 32-bit.
pub const TEXT_BYTES: usize = 1 << 30;
