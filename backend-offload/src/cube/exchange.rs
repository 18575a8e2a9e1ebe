//! Tensors from one offloaded device to another, through host memory.
//!
//! CubeCL has each side of a transfer submitted to its own device: `send` to the source, `recv` to the
//! destination, in that order for any one stream. Devices run on threads of their own, so the bytes wait in
//! between at a place both know. Collective operations need buffers that stay put on every device and a
//! library this crate cannot test; they are refused.

use super::failures::read_error;
use super::runtime::InnerRuntime;
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
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// From device, to device, by the stream of the thread that asked. The type keeps runtimes apart.
type Route = (TypeId, DeviceId, DeviceId, StreamId);

type Parcel = Result<Bytes, String>;

static IN_TRANSIT: Mutex<Option<HashMap<Route, VecDeque<Parcel>>>> = Mutex::new(None);
static ARRIVAL: Condvar = Condvar::new();

/// A source that has not sent by then has died, and waiting longer would hang its reader for good.
const PATIENCE: Duration = Duration::from_mins(10);

fn post(route: Route, parcel: Parcel) {
    let mut guard = IN_TRANSIT.lock().unwrap_or_else(PoisonError::into_inner);
    guard.get_or_insert_default().entry(route).or_default().push_back(parcel);
    ARRIVAL.notify_all();
}

fn collect(route: Route) -> Parcel {
    let guard = IN_TRANSIT.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut guard, _) = ARRIVAL
        .wait_timeout_while(guard, PATIENCE, |transit| {
            let queue = transit.as_ref().and_then(|transit| transit.get(&route));
            queue.is_none_or(VecDeque::is_empty)
        })
        .unwrap_or_else(PoisonError::into_inner);
    let transit = guard.get_or_insert_default();
    let parcel = transit.get_mut(&route).and_then(VecDeque::pop_front);
    if transit.get(&route).is_some_and(VecDeque::is_empty) {
        transit.remove(&route);
    }
    parcel.unwrap_or_else(|| Err("the source device never sent the tensor".to_owned()))
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
        let route = (TypeId::of::<R>(), self.device, to, stream);
        // All bytes the tensor covers, padding included: it keeps its strides on the other side.
        let parcel = self
            .read_raw(descriptor.handle, stream)
            .and_then(block_on)
            .map_err(|error| error.to_string())
            .map(|mut bytes| bytes.remove(0));
        post(route, parcel);
        Ok(())
    }

    fn recv(
        &mut self,
        handle: Handle,
        _: ElemType,
        stream: StreamId,
        from: DeviceId,
    ) -> Result<(), ServerError> {
        let size = handle.size();
        self.initialize_memory(handle.memory.clone(), size, stream);
        let binding = handle.binding();
        match collect((TypeId::of::<R>(), from, self.device, stream)) {
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
        match self.table.name(binding) {
            Named::Block(id) => self.table.get_mut(id).failed = Some(error),
            Named::Small => self.failures.mark_small(&binding.memory, &error),
            Named::Unknown => {}
        }
    }
}
