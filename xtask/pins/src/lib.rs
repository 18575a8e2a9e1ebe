//! Only a manifest: it fixes features of shared dependencies, for one build of all commands.
