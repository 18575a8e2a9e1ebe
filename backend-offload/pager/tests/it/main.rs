//! Promises of the pager.

mod allocations;
