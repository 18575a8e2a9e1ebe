//! Longest matches.

mod brute;
mod build;
mod damage;
mod duplicates;
mod features;
mod matcher;
mod sets;
