//! Transfers of tensors between offloaded devices, through host memory.
//!
//! CubeCL submits `send` to the source, then `recv` to the destination, each on its device's thread. [`Transit`] holds
//! the bytes in between. An early `recv` blocks its device; every `send` precedes its `recv`, so waits form no cycle.
//!
//! Every `send` posts one parcel: the bytes, or an error that marks the destination's tensor as failed. A `recv` gives
//! up after [`PATIENCE`]; its late parcel is dropped.

use super::failures::read_error;
use super::inner::InnerRuntime;
use super::server::OffloadServer;
use super::table::Named;
use super::transfer::flat;
use crate::error::OffloadError;
use cubecl_common::bytes::Bytes;
use cubecl_common::device::DeviceId;
use cubecl_common::future::block_on;
use cubecl_common::stream_id::StreamId;
use cubecl_core::ir::ElemType;
use cubecl_core::server::{
    Binding, ComputeServer, CopyDescriptor, Handle, ReduceOperation, ServerCommunication, ServerError,
};
use std::any::TypeId;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// Runtime, source, destination, requesting stream.
type Route = (TypeId, DeviceId, DeviceId, StreamId);

type Parcel = Result<Bytes, String>;

/// The source may compile kernels first.
const PATIENCE: Duration = Duration::from_mins(10);

static IN_TRANSIT: LazyLock<Transit> = LazyLock::new(Transit::default);

#[derive(Default)]
struct Transit {
    routes: Mutex<HashMap<Route, Lane>>,
    arrival: Condvar,
}

#[derive(Default)]
struct Lane {
    parcels: VecDeque<Parcel>,
    /// Late parcels to drop.
    unwanted: u32,
}

impl Transit {
    fn sending(&self, route: Route) -> Sending<'_> {
        Sending { transit: self, route, posted: false }
    }

    fn post(&self, route: Route, parcel: Parcel) {
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = routes.entry(route).or_default();
        if lane.unwanted > 0 {
            lane.unwanted -= 1;
        } else {
            lane.parcels.push_back(parcel);
        }
        self.arrival.notify_all();
    }

    fn collect(&self, route: Route, patience: Duration) -> Parcel {
        let routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let missing =
            |routes: &mut HashMap<Route, Lane>| routes.get(&route).is_none_or(|lane| lane.parcels.is_empty());
        let (mut routes, _) = self
            .arrival
            .wait_timeout_while(routes, patience, missing)
            .unwrap_or_else(PoisonError::into_inner);
        let lane = routes.entry(route).or_default();
        let parcel = lane.parcels.pop_front();
        lane.unwanted += u32::from(parcel.is_none());
        if lane.parcels.is_empty() && lane.unwanted == 0 {
            routes.remove(&route);
        }
        parcel.unwrap_or_else(|| Err("the source device never sent the tensor".to_owned()))
    }
}

/// A drop without a post posts an error.
struct Sending<'a> {
    transit: &'a Transit,
    route: Route,
    posted: bool,
}

impl Sending<'_> {
    fn post(mut self, parcel: Parcel) {
        self.posted = true;
        self.transit.post(self.route, parcel);
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if !self.posted {
            let error = "the source device panicked while it read the tensor".to_owned();
            self.transit.post(self.route, Err(error));
        }
    }
}

impl<R: InnerRuntime> ServerCommunication for OffloadServer<R> {
    const SERVER_COMM_ENABLED: bool = true;

    fn comm_init(&mut self, _: Vec<DeviceId>) -> Result<(), ServerError> {
        Ok(())
    }

    fn sync_collective(&mut self, _: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    fn send(
        &mut self,
        descriptor: CopyDescriptor,
        _: ElemType,
        stream: StreamId,
        to: DeviceId,
    ) -> Result<(), ServerError> {
        let sending = IN_TRANSIT.sending((TypeId::of::<R>(), self.device.id, to, stream));
        // With padding, which the strides need.
        let parcel = self
            .read_raw(descriptor.handle, stream)
            .and_then(block_on)
            .map_err(|error| error.to_string())
            .map(|mut bytes| bytes.remove(0));
        sending.post(parcel);
        Ok(())
    }

    fn recv(
        &mut self,
        handle: Handle,
        _: ElemType,
        stream: StreamId,
        from: DeviceId,
    ) -> Result<(), ServerError> {
        // Collected first: a failure leaves no parcel to another reader.
        let parcel = IN_TRANSIT.collect((TypeId::of::<R>(), from, self.device.id, stream), PATIENCE);
        let size = handle.size();
        self.initialize_memory(handle.memory.clone(), size, stream);
        let binding = handle.binding();
        match parcel {
            Ok(bytes) => self.write_buffer(flat(binding, size), bytes, stream),
            Err(message) => {
                let operation = format!("receiving a tensor from {from:?}");
                self.fail_binding(&binding, OffloadError::RuntimePanic { operation, message }, stream);
            }
        }
        Ok(())
    }

    fn all_reduce(
        &mut self,
        _: Binding,
        dst: Binding,
        _: ElemType,
        stream: StreamId,
        _: ReduceOperation,
        _: Vec<DeviceId>,
    ) -> Result<(), ServerError> {
        let error = OffloadError::Unsupported {
            operation: "all_reduce".to_owned(),
            backend: "an offloaded device",
            reason: "collective operations need buffers that never move",
        };
        let reported = read_error(&error);
        self.fail_binding(&dst, error, stream);
        Err(reported)
    }
}

impl<R: InnerRuntime> OffloadServer<R> {
    fn fail_binding(&mut self, binding: &Binding, error: OffloadError, stream: StreamId) {
        let error = self.new_failure(Arc::new(error), stream);
        match self.device.buffers.name(binding) {
            Named::Block(id) => self.device.buffers.get_mut(id).failed = Some(error),
            Named::Small => self.device.fail_small(binding, &error),
            Named::Unknown => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    const SOON: Duration = Duration::from_millis(20);

    fn route() -> Route {
        (TypeId::of::<Transit>(), DeviceId::new(0, 0), DeviceId::new(0, 1), StreamId::current())
    }

    fn bytes(byte: u8) -> Bytes {
        Bytes::from_bytes_vec(vec![byte])
    }

    #[test]
    fn a_send_that_panics_fails_its_reader_at_once() {
        let transit = Transit::default();
        let sent = catch_unwind(AssertUnwindSafe(|| {
            let _sending = transit.sending(route());
            panic!("on purpose");
        }));
        assert!(sent.is_err());
        let message = transit.collect(route(), Duration::ZERO).expect_err("nothing was read");
        assert!(message.contains("panicked"), "{message}");
    }

    #[test]
    fn parcels_of_one_route_arrive_in_order_and_leave_nothing() {
        let transit = Transit::default();
        transit.sending(route()).post(Ok(bytes(1)));
        transit.sending(route()).post(Ok(bytes(2)));
        let next = || transit.collect(route(), SOON).expect("sent")[0];
        assert_eq!((next(), next()), (1, 2));
        assert!(transit.routes.lock().expect("no panic").is_empty());
    }

    #[test]
    fn a_late_parcel_is_not_taken_for_the_next() {
        let transit = Transit::default();
        assert!(transit.collect(route(), SOON).is_err(), "no send comes");
        transit.sending(route()).post(Ok(bytes(1)));
        transit.sending(route()).post(Ok(bytes(2)));
        assert_eq!(transit.collect(route(), SOON).expect("sent")[0], 2);
    }
}
