//! Longest matches: built, searched, matched token by token, and damaged.

mod brute;
mod build;
mod damage;
mod duplicates;
mod features;
mod matcher;
mod sets;
