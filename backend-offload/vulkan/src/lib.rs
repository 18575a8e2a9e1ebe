//! No code: this package holds only tests and benchmarks.
