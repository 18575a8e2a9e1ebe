//! Spilling.
