//! Nothing but a manifest: features of shared dependencies, so that every command compiles each of them once.
