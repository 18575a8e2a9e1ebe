//! From text files to training windows.

pub(crate) mod corpus;
pub(crate) mod dataset;
pub(crate) mod prepare;
pub(crate) mod shard;

pub use corpus::{Body, Compression, Corpus, CorpusFile, Format, Part};
pub use dataset::{Align, Cursor, ShardFormat, Split, Targets, TokenDataset, Window, WindowPlan};
pub use prepare::{BadRecords, OnBadRecord, Outcome, Preparation, Progress};
pub use shard::{
    Input, MANIFEST, Manifest, ShardEntry, ShardProblem, SideEntry, SplitEntry, SplitRule, TokenizerEntry,
};
