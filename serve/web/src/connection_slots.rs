//! Slots for connections. The longest idle one makes room
//! (`ten_thousand_connections_stay_within_the_limit_and_are_freed`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

#[derive(Debug)]
pub(crate) struct ConnectionSlots {
    free: Arc<Semaphore>,
    idle: Mutex<BTreeMap<u64, Arc<Notify>>>,
    next: AtomicU64,
}

impl ConnectionSlots {
    pub(crate) fn new(count: usize) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(count));
        Arc::new(Self { free, idle: Mutex::default(), next: AtomicU64::new(0) })
    }

    /// True if the slot is of the longest idle connection, now closed. `None` if none is idle.
    pub(crate) async fn take(self: &Arc<Self>) -> Option<(Arc<Slot>, bool)> {
        let (permit, dismissed) = match Arc::clone(&self.free).try_acquire_owned() {
            Ok(permit) => (permit, false),
            Err(_none_left) => {
                let (_since, close) = self.idle().pop_first()?;
                close.notify_one();
                (Arc::clone(&self.free).acquire_owned().await.ok()?, true)
            }
        };
        let slot = Slot {
            slots: Arc::clone(self),
            close: Arc::default(),
            idle_since: Mutex::new(None),
            head_begun: Mutex::new(None),
            has_request: AtomicBool::new(false),
            has_unsent: AtomicBool::new(false),
            _permit: permit,
        };
        slot.update_idle();
        Some((Arc::new(slot), dismissed))
    }

    fn idle(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Notify>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct Slot {
    slots: Arc<ConnectionSlots>,
    close: Arc<Notify>,
    idle_since: Mutex<Option<u64>>,
    head_begun: Mutex<Option<Instant>>,
    has_request: AtomicBool,
    has_unsent: AtomicBool,
    _permit: OwnedSemaphorePermit,
}

impl Slot {
    /// Called at a complete head: busy until the guard drops. `None` if the connection makes room.
    pub(crate) fn request(self: &Arc<Self>) -> Option<RequestGuard> {
        *self.head_begun.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let mut since = self.idle_since.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = *since {
            self.slots.idle().remove(&number)?;
            *since = None;
        }
        self.has_request.store(true, Ordering::Release);
        Some(RequestGuard(Arc::clone(self)))
    }

    /// Bytes begin a head unless a request is running.
    pub(crate) fn note_read(&self) {
        if !self.has_request.load(Ordering::Acquire) {
            let mut begun = self.head_begun.lock().unwrap_or_else(PoisonError::into_inner);
            begun.get_or_insert_with(Instant::now);
        }
    }

    pub(crate) fn head_begun(&self) -> Option<Instant> {
        *self.head_begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_unsent(&self, some: bool) {
        self.has_unsent.store(some, Ordering::Release);
    }

    /// Called after each poll: an answer's last byte leaves after the [`RequestGuard`] drops.
    pub(crate) fn update_idle(&self) {
        let busy = self.has_request.load(Ordering::Acquire) || self.has_unsent.load(Ordering::Acquire);
        let mut since = self.idle_since.lock().unwrap_or_else(PoisonError::into_inner);
        match *since {
            Some(number) if busy => {
                self.slots.idle().remove(&number);
                *since = None;
            }
            None if !busy => {
                let number = self.slots.next.fetch_add(1, Ordering::Relaxed);
                self.slots.idle().insert(number, Arc::clone(&self.close));
                *since = Some(number);
            }
            _ => {}
        }
    }

    pub(crate) async fn displaced(&self) {
        self.close.notified().await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(number) = *self.idle_since.get_mut().unwrap_or_else(PoisonError::into_inner) {
            self.slots.idle().remove(&number);
        }
    }
}

#[derive(Debug)]
pub(crate) struct RequestGuard(Arc<Slot>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.has_request.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use futures_util::poll;

    use super::*;

    async fn take_free(slots: &Arc<ConnectionSlots>) -> Arc<Slot> {
        let (slot, dismissed) = slots.take().await.expect("there is one");
        assert!(!dismissed);
        slot
    }

    #[tokio::test]
    async fn the_connection_idle_for_longest_is_displaced() {
        let slots = ConnectionSlots::new(3);
        let (first, second, third) =
            (take_free(&slots).await, take_free(&slots).await, take_free(&slots).await);
        // Idle for the shortest time.
        let request = first.request();
        first.update_idle();
        drop(request);
        first.update_idle();
        let mut newcomer = Box::pin(slots.take());
        assert!(
            poll!(newcomer.as_mut()).is_pending(),
            "the slot is not free before its connection has ended"
        );
        for (slot, leaves) in [(&first, false), (&second, true), (&third, false)] {
            assert_eq!(poll!(Box::pin(slot.displaced())).is_ready(), leaves);
        }
        drop(second);
        let (_newcomer, dismissed) = newcomer.await.expect("its slot is free");
        assert!(dismissed);
    }

    #[tokio::test]
    async fn a_connection_chosen_to_make_room_gets_no_request() {
        let slots = ConnectionSlots::new(1);
        let slot = take_free(&slots).await;
        let mut newcomer = Box::pin(slots.take());
        assert!(poll!(newcomer.as_mut()).is_pending());
        assert!(slot.request().is_none(), "it is about to be closed");
        drop(slot);
        assert!(newcomer.await.is_some());
    }

    #[tokio::test]
    async fn a_connection_with_unsent_bytes_is_not_displaced() {
        let slots = ConnectionSlots::new(1);
        let slot = take_free(&slots).await;
        let request = slot.request();
        slot.update_idle();
        assert!(matches!(poll!(Box::pin(slots.take())), Poll::Ready(None)));
        slot.set_unsent(true);
        drop(request);
        slot.update_idle();
        assert!(matches!(poll!(Box::pin(slots.take())), Poll::Ready(None)));
        slot.set_unsent(false);
        slot.update_idle();
        assert!(matches!(poll!(Box::pin(slots.take())), Poll::Pending), "now it is asked to close");
        assert!(poll!(Box::pin(slot.displaced())).is_ready());
    }
}
