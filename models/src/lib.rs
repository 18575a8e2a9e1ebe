//! The GPT family. Will hold: the network, memory-lean attention and loss, sampling, weights in and out.
//! Nothing of it is built yet.
