//! Nothing: the package is its tests and benchmarks.
