//! Connections: bounded in number, in their heads' size and time, and in how long a write may wait.
//!
//! `axum::serve` sets no timer on a connection, without which hyper ignores its own time limits; so connections are
//! built here.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::routes::Local;

/// Answers connections until `closing` says so, then gives those that are open [`Limits::drain_time`].
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    metrics: Arc<Metrics>,
    mut closing: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(limits.connections));
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _changed = closing.wait_for(|closing| *closing) => break,
        };
        match accepted {
            Ok((stream, _)) => match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => connect(stream, place, router.clone(), &limits, &metrics, &graceful),
                Err(_none_left) => metrics.refused_connections.add(1),
            },
            Err(error) => wait_out(&error).await,
        }
    }
    drop(listener);
    // What is left after that ends with the runtime.
    let _late = tokio::time::timeout(limits.drain_time, graceful.shutdown()).await;
}

/// Without files for another connection, accepting fails at once and again.
async fn wait_out(error: &io::Error) {
    tracing::warn!("could not accept a connection: {error}");
    tokio::time::sleep(Duration::from_millis(50)).await;
}

fn connect(
    stream: TcpStream,
    place: OwnedSemaphorePermit,
    router: Router,
    limits: &Limits,
    metrics: &Arc<Metrics>,
    graceful: &GracefulShutdown,
) {
    let Ok(local) = stream.local_addr() else { return };
    // A token is a small packet that should not wait for the next.
    let _best_effort = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write_time));
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(Local(local.ip()));
        router.clone().oneshot(request.map(Body::new))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_buf_size(limits.head_bytes)
        .max_headers(limits.head_lines)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    let connection = graceful.watch(connection);
    let counted = Counted::new(Arc::clone(metrics));
    tokio::spawn(async move {
        // A connection that breaks off is the client's affair.
        let _result = connection.await;
        drop((place, counted));
    });
}

/// One of the open connections.
struct Counted(Arc<Metrics>);

impl Counted {
    fn new(metrics: Arc<Metrics>) -> Self {
        metrics.connections.add(1);
        Self(metrics)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.sub(1);
    }
}
