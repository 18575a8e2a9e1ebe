//! Version of an index's files, and the size of their headers.

pub(super) const FORMAT: u32 = 1;
pub(super) const HEADER_BYTES: usize = 64;
