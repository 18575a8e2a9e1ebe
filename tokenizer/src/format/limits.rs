//! Limits on tokenizer files: several times the largest published one's needs.

/// Bytes of `tokenizer.json`, `vocab.json` or `merges.txt`.
pub const FILE_BYTES: u64 = 128 << 20;
/// Bytes of `tokenizer_config.json`.
pub const CONFIG_BYTES: u64 = 8 << 20;
/// Vocabulary entries, and a bound of ids.
pub const VOCABULARY: usize = 1 << 20;
/// Merge rules.
pub const MERGES: usize = 1 << 21;
/// Bytes of one spelled token.
pub const TOKEN_BYTES: usize = 2048;
/// Tokens listed outside the vocabulary.
pub const ADDED_TOKENS: usize = 1 << 14;
/// Characters of a component's literal.
pub const LITERAL_CHARS: usize = 64;
/// Steps of a component, nested or in a row.
pub const COMPONENTS: usize = 32;
/// Bytes that a text byte may become in one component.
pub const GROWTH: f64 = 256.0;
/// Bytes that a text may become before merging.
pub const NORMALIZED_BYTES: usize = 128 << 20;
/// Bytes of a chat template.
pub const TEMPLATE_BYTES: usize = 16 << 10;
/// Bytes of text per call; positions are 32-bit.
pub const TEXT_BYTES: usize = 1 << 30;
