//! Byte-pair tokenizers and token shards. Will hold: BPE training and loading, chat encoding, the streaming
//! path from text to memory-mapped shards, and the small generated corpus. Nothing of it is built yet.
