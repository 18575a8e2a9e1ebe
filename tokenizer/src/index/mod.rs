//! Longest matches: for any context, the longest of its last tokens that occurs earlier in an indexed text, and the token
//! that followed there. A language model may take that token as a second input.
//!
//! # What is found
//!
//! The context of a position are the tokens up to it, read backwards to the one that opens its document, at most 32. Of
//! all positions before it in the text, the match is one whose context has the most last tokens in common with it; among
//! equally long ones it is **the first in the text**. Its follower lies at or before the position itself, so the feature
//! knows nothing of what comes next: no position can match itself or what lies behind it. A follower may be the token
//! that opens the next document, for "here it ended" is what the model has to predict there, too.
//!
//! "The first" is a choice that costs nothing. It does not depend on chunks, threads or memory. It is the only one by which
//! 32 numbers are enough to find every position's match while going through the sorted text (`earliest.rs`), and by
//! which the first of many matches is found in a growing document within 32 steps (`document.rs`). And a text that is
//! indexed in parts gives each position what it would get if it were indexed whole.
//!
//! # How it is built
//!
//! Positions are sorted by their contexts, in chunks that fit the memory (`sort.rs`); chunks are merged (`merge.rs`); a pass
//! forwards and one backwards over the sorted positions give every position's match (`earliest.rs`). Whatever is finished
//! lies in a file that proves itself by a checksum, so a build that was stopped goes on (`workshop.rs`).
//!
//! # What is kept, and why twice
//!
//! `order.bin` holds the sorted positions, 4 bytes a token, and the least of every 64 above them (`minima.rs`), for looking
//! up contexts that are not of the text: in decoding, in evaluation, from another corpus. `followers.bin` holds what was
//! found for the text's own positions, 3 bytes a token: the id and the match's length. A look-up instead would
//! have to leave out later positions, which no sorted order does quickly, and would touch some fifty places of the
//! files for a token that training reads in sequence anyway. The length is kept so that the shortest match that counts is
//! the reader's choice, and so that matches in other indexes can be compared. Both files are 7.07 bytes a token.
//!
//! # What is not trusted
//!
//! Headers are compared with what the manifest and the set say. Behind them, every position is looked up within bounds, every
//! loop has an end that no entry moves, and a match counts only once it was compared with the text.

mod budget;
mod build;
mod corpora;
mod document;
mod duplicates;
mod earliest;
mod features;
mod files;
mod follower;
mod manifest;
mod matcher;
mod merge;
mod minima;
mod opened;
mod problem;
mod search;
mod sort;
mod text;
mod workshop;

pub use build::{IndexBuild, IndexProgress, IndexStep};
pub use corpora::{Corpora, Match, Source};
pub use duplicates::Duplicates;
pub use features::Features;
use follower::Follower;
pub use manifest::IndexManifest;
pub use matcher::Matcher;
pub use opened::Index;
pub use problem::IndexProblem;
