//! Reads ahead on a thread without tensors, which would vary the device's order of operations.

use std::{
    marker::PhantomData,
    ops::Range,
    sync::{
        Arc,
        mpsc::{Receiver, sync_channel},
    },
    thread,
};

use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::tensor::backend::Backend;
use burn_dataset::Dataset;

const AHEAD: usize = 2;

pub(crate) struct StepLoader<B, D> {
    items: Arc<D>,
    range: Range<usize>,
    _backend: PhantomData<fn() -> B>,
}

impl<B, D> StepLoader<B, D> {
    pub(crate) fn new(items: Arc<D>, range: Range<usize>) -> Self {
        Self { items, range, _backend: PhantomData }
    }
}

impl<B, D, I> DataLoader<B, I> for StepLoader<B, D>
where
    B: Backend,
    D: Dataset<I> + 'static,
    I: Send + 'static,
{
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<I> + 'a> {
        let (sender, items) = sync_channel(AHEAD);
        let (source, range) = (Arc::clone(&self.items), self.range.clone());
        thread::spawn(move || {
            for item in range.map_while(|index| source.get(index)) {
                if sender.send(item).is_err() {
                    return;
                }
            }
        });
        Box::new(ReadAhead { items, given: 0, total: self.range.len() })
    }

    fn num_items(&self) -> usize {
        self.range.len()
    }

    /// Items stay on the host.
    fn to_device(&self, _device: &B::Device) -> Arc<dyn DataLoader<B, I>> {
        Arc::new(Self::new(Arc::clone(&self.items), self.range.clone()))
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<B, I>> {
        let from = self.range.start;
        Arc::new(Self::new(Arc::clone(&self.items), from + start..(from + end).min(self.range.end)))
    }
}

struct ReadAhead<I> {
    items: Receiver<I>,
    given: usize,
    total: usize,
}

impl<I> Iterator for ReadAhead<I> {
    type Item = I;

    fn next(&mut self) -> Option<I> {
        let item = self.items.recv().ok()?;
        self.given += 1;
        Some(item)
    }
}

impl<I> DataLoaderIterator<I> for ReadAhead<I> {
    fn progress(&self) -> Progress {
        Progress { items_processed: self.given, items_total: self.total }
    }
}
