//! Places for connections, and who makes room when none is left: whoever has asked nothing for longest.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Places for connections, as many as are allowed at once.
#[derive(Debug)]
pub(crate) struct Places {
    free: Arc<Semaphore>,
    /// Connections without a request, longest first, and how each is told to leave.
    quiet: Mutex<BTreeMap<u64, Arc<Notify>>>,
    next: AtomicU64,
}

impl Places {
    pub(crate) fn new(count: usize) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(count));
        Arc::new(Self { free, quiet: Mutex::default(), next: AtomicU64::new(0) })
    }

    /// A place, and whether somebody had to leave for it. `None` where every connection has a request.
    pub(crate) async fn take(self: &Arc<Self>) -> Option<(Arc<Place>, bool)> {
        let (permit, dismissed) = match Arc::clone(&self.free).try_acquire_owned() {
            Ok(permit) => (permit, false),
            Err(_none_left) => {
                let (_since, leave) = self.quiet().pop_first()?;
                leave.notify_one();
                (Arc::clone(&self.free).acquire_owned().await.ok()?, true)
            }
        };
        let place = Place {
            places: Arc::clone(self),
            leave: Arc::default(),
            quiet_since: Mutex::new(None),
            has_request: AtomicBool::new(false),
            has_unsent: AtomicBool::new(false),
            _permit: permit,
        };
        place.settle();
        Some((Arc::new(place), dismissed))
    }

    fn quiet(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Notify>>> {
        self.quiet.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection's.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    leave: Arc<Notify>,
    quiet_since: Mutex<Option<u64>>,
    has_request: AtomicBool,
    has_unsent: AtomicBool,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    /// A request's head is complete; until what comes back is dropped, nobody asks this connection to leave.
    pub(crate) fn request(self: &Arc<Self>) -> Request {
        self.has_request.store(true, Ordering::Release);
        Request(Arc::clone(self))
    }

    /// Whether the client has yet to take bytes of an answer.
    pub(crate) fn unsent(&self, some: bool) {
        self.has_unsent.store(some, Ordering::Release);
    }

    /// After each piece of work on the connection: an answer has ended only when its last byte is sent, so that this is
    /// not told by the request alone.
    pub(crate) fn settle(&self) {
        let busy = self.has_request.load(Ordering::Acquire) || self.has_unsent.load(Ordering::Acquire);
        let mut since = self.quiet_since.lock().unwrap_or_else(PoisonError::into_inner);
        match *since {
            Some(number) if busy => {
                self.places.quiet().remove(&number);
                *since = None;
            }
            None if !busy => {
                let number = self.places.next.fetch_add(1, Ordering::Relaxed);
                self.places.quiet().insert(number, Arc::clone(&self.leave));
                *since = Some(number);
            }
            _ => {}
        }
    }

    /// Waits until another connection needs the place.
    pub(crate) async fn needed(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(number) = *self.quiet_since.get_mut().unwrap_or_else(PoisonError::into_inner) {
            self.places.quiet().remove(&number);
        }
    }
}

/// A request from its head to its answer's last byte.
#[derive(Debug)]
pub(crate) struct Request(Arc<Place>);

impl Drop for Request {
    fn drop(&mut self) {
        self.0.has_request.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use futures_util::poll;

    use super::*;

    async fn taken(places: &Arc<Places>) -> Arc<Place> {
        let (place, dismissed) = places.take().await.expect("there is one");
        assert!(!dismissed);
        place
    }

    #[tokio::test]
    async fn the_connection_that_is_idle_for_longest_makes_room() {
        let places = Places::new(3);
        let (first, second, third) = (taken(&places).await, taken(&places).await, taken(&places).await);
        // It has asked since, and waits again: the last to leave.
        let request = first.request();
        first.settle();
        drop(request);
        first.settle();
        let mut newcomer = Box::pin(places.take());
        assert!(
            poll!(newcomer.as_mut()).is_pending(),
            "the place is not free before its connection has ended"
        );
        for (place, leaves) in [(&first, false), (&second, true), (&third, false)] {
            assert_eq!(poll!(Box::pin(place.needed())).is_ready(), leaves);
        }
        drop(second);
        let (_newcomer, dismissed) = newcomer.await.expect("its place is free");
        assert!(dismissed);
    }

    #[tokio::test]
    async fn an_answer_with_bytes_unsent_makes_no_room() {
        let places = Places::new(1);
        let place = taken(&places).await;
        let request = place.request();
        place.settle();
        assert!(matches!(poll!(Box::pin(places.take())), Poll::Ready(None)));
        place.unsent(true);
        drop(request);
        place.settle();
        assert!(matches!(poll!(Box::pin(places.take())), Poll::Ready(None)));
        place.unsent(false);
        place.settle();
        assert!(matches!(poll!(Box::pin(places.take())), Poll::Pending), "now it is asked to leave");
        assert!(poll!(Box::pin(place.needed())).is_ready());
    }
}
