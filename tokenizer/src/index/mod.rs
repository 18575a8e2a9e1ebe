//! Longest matches: for any context, the longest suffix that occurs earlier in an indexed text, and the token that
//! followed there. A language model may take that token as a second input.
//!
//! # Definition
//!
//! The context of a position is the sequence of tokens that ends there. It begins with the token that opens the
//! document, or 32 tokens back. The match of a position is the earlier position whose context shares the most last
//! tokens; among equally long matches, **the first in the text**
//! (`every_position_has_the_follower_of_its_longest_earlier_match`). Its follower lies at or before the position, so
//! the feature reveals nothing about the next token. A follower may be the token that opens the next document: a model
//! has to predict a document's end too.
//!
//! The first match does not depend on chunks, threads or memory (`chunks_memory_and_threads_change_no_byte`). Only with
//! this choice do 32 numbers suffice to find every position's match in one pass over the sorted positions
//! (`self_matches.rs`). The first of many matches in a growing document is found within 32 steps (`document.rs`). And a
//! text indexed in parts gives each position the same match as a text indexed whole.
//!
//! # Building
//!
//! Positions are sorted by their contexts, in chunks that fit the memory (`sort.rs`), and chunks are merged
//! (`merge.rs`). One pass forwards and one backwards over the sorted positions give every position's match
//! (`self_matches.rs`). Each finished piece is a file with a checksum, so an interrupted build resumes
//! (`build_folder.rs`).
//!
//! # Two files
//!
//! `order.bin` answers look-ups of any context: in decoding, in evaluation, from another corpus. It holds the sorted
//! positions, 4 bytes a token. Above them is a tree with the minimum of every 64 (`minima.rs`).
//!
//! `followers.bin` holds the matches of the text's own positions, 3 bytes a token: the follower's id and the match's
//! length. A look-up in the order would have to exclude later positions, which no sorted order does quickly. It would
//! also touch some fifty places of the files per token; training reads this file in sequence instead. With the length,
//! a reader can choose the shortest match that counts and compare matches of several indexes. Together the files take
//! 7.07 bytes a token.
//!
//! # Damaged files
//!
//! Headers are compared with the manifest and the set (`no_header_or_manifest_bytes_make_opening_panic`). Every
//! position is looked up within bounds, and no entry can prolong a loop. A match counts only after a comparison with
//! the text (`no_entry_bytes_make_a_look_up_panic_or_lie`).

mod budget;
mod build;
mod build_folder;
mod corpora;
mod document;
mod duplicates;
mod features;
mod files;
mod follower;
mod manifest;
mod matcher;
mod merge;
mod minima;
mod opened_index;
mod problem;
mod search;
mod self_matches;
mod sort;
mod text;

pub use build::{IndexBuild, IndexProgress, IndexStep};
pub use corpora::{Corpora, Match, Source};
pub use duplicates::Duplicates;
pub use features::Features;
use follower::Follower;
pub use manifest::IndexManifest;
pub use matcher::Matcher;
pub use opened_index::Index;
pub use problem::IndexProblem;
