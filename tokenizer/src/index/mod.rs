//! Longest matches: a context's longest suffix that occurs earlier in an indexed text, and the token that followed, a
//! model's optional second input.
//!
//! # Definition
//!
//! A position's context is the tokens that end there, from the token that opens the document, or 32. Its match is the
//! earlier position whose context shares the most last tokens; of several, **the first in the text**
//! (`every_position_has_the_follower_of_its_longest_earlier_match`). The follower lies at or before the position: it
//! reveals nothing of the next token. Followers may open the next document: models also predict a document's end.
//!
//! So the match depends neither on chunks, threads or memory (`chunks_memory_and_threads_change_no_byte`), nor on
//! division into indexes. 32 numbers suffice to find all matches in one pass (`self_matches.rs`), and 32 steps in a
//! growing document (`document.rs`).
//!
//! # Building
//!
//! Positions are sorted by context, in chunks that fit the memory (`sort.rs`), merged (`merge.rs`) and matched
//! (`self_matches.rs`). An interrupted build resumes from finished files (`build_folder.rs`).
//!
//! # Two files
//!
//! `order.bin` looks up any context: in decoding, evaluation, another corpus. It holds the sorted positions, 4 bytes a
//! token, and the minima of every 64 (`minima.rs`).
//!
//! `followers.bin` holds follower and length of the text's own matches, 3 bytes a token. Training reads it in sequence;
//! the order would touch some fifty places a token. Lengths let a reader compare indexes. Both files take 7.07 bytes a
//! token.
//!
//! # Damaged files
//!
//! Headers are compared with manifest and set (`no_header_or_manifest_bytes_make_opening_panic`), and matches with the
//! text (`no_entry_bytes_make_a_look_up_panic_or_lie`).

mod budget;
mod build;
mod build_folder;
mod corpora;
mod document;
mod duplicates;
mod features;
mod files;
mod follower;
mod format;
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
