//! Streams, events and modules by handle. Handles are not reused.

use std::{collections::HashMap, sync::Arc, thread::ThreadId};

use crate::{
    kernels::Kernel,
    races::Clock,
    schedule::{Mark, StreamId},
};

#[derive(Debug)]
pub(crate) struct Handles {
    pub(crate) streams: HashMap<u64, Stream>,
    pub(crate) events: HashMap<u64, Event>,
    pub(crate) modules: HashMap<u64, Module>,
    /// CUDA's default stream, which has no handle. One serves all devices.
    pub(crate) legacy: StreamId,
    next: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    /// Whether this stream and the default stream wait for each other.
    pub(crate) blocking: bool,
    pub(crate) device: usize,
}

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) device: usize,
    pub(crate) record: Option<Record>,
}

#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) device: usize,
    pub(crate) kernel: Arc<Kernel>,
    /// Bytes of dynamic shared memory that a launch may request.
    pub(crate) shared: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) mark: Mark,
    pub(crate) clock: Clock,
    pub(crate) time: f64,
    /// Time of the recording call.
    pub(crate) called: f64,
    pub(crate) recorder: ThreadId,
}

impl Handles {
    pub(crate) fn new(legacy: StreamId) -> Self {
        Self { streams: HashMap::new(), events: HashMap::new(), modules: HashMap::new(), legacy, next: 0 }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.next += 16;
        self.next
    }

    pub(crate) fn stream_ids(&self) -> impl Iterator<Item = StreamId> {
        self.streams.values().map(|stream| stream.id).chain([self.legacy])
    }

    pub(crate) fn implied_waits(&self, stream: StreamId) -> Vec<StreamId> {
        let blocking = self.streams.values().filter(|stream| stream.blocking).map(|stream| stream.id);
        if stream == self.legacy {
            blocking.collect()
        } else if blocking.into_iter().any(|id| id == stream) {
            vec![self.legacy]
        } else {
            Vec::new()
        }
    }
}
