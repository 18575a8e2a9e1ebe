//! Only a manifest: it fixes features of shared dependencies, so that all commands share one build.
