//! Nothing: the package is its tests.
