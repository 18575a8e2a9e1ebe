//! Properties of the pager.

mod allocations;
