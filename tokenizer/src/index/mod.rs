//! Longest matches: a context's longest suffix that occurs earlier in an indexed text, and the token that followed. A
//! model may read that token as a second input.
//!
//! # Definition
//!
//! A position's context is the tokens that end there, from the token that opens the document, or 32 tokens. Its match
//! is the earlier position whose context shares the most last tokens; of several, **the first in the text**
//! (`every_position_has_the_follower_of_its_longest_earlier_match`). The follower lies at or before the position, so it
//! reveals nothing of the next token. It may open the next document: models also predict a document's end.
//!
//! The first match does not depend on chunks, threads or memory (`chunks_memory_and_threads_change_no_byte`). Thanks to
//! this choice, 32 numbers suffice to find all matches in one pass over sorted positions (`self_matches.rs`), and a
//! growing document finds its match in 32 steps (`document.rs`). A text indexed in parts gives the matches of the
//! whole.
//!
//! # Building
//!
//! Positions are sorted by context, in chunks that fit the memory (`sort.rs`), and merged (`merge.rs`). A pass forwards
//! and one backwards give all matches (`self_matches.rs`). Finished pieces are files with checksums, so an interrupted
//! build resumes (`build_folder.rs`).
//!
//! # Two files
//!
//! `order.bin` looks up any context: in decoding, in evaluation, from another corpus. It holds the sorted positions, 4
//! bytes a token, and a tree with the minimum of every 64 (`minima.rs`).
//!
//! `followers.bin` holds the matches of the text's own positions, 3 bytes a token: follower and length. The order would
//! have to exclude later positions and touch some fifty places a token; training reads this file in sequence. Lengths
//! let a reader choose the shortest match and compare indexes. Both files take 7.07 bytes a token.
//!
//! # Damaged files
//!
//! Headers are compared with manifest and set (`no_header_or_manifest_bytes_make_opening_panic`). Positions are looked
//! up within bounds, no entry prolongs a loop, and matches are compared with the text
//! (`no_entry_bytes_make_a_look_up_panic_or_lie`).

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
