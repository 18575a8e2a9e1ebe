//! Connections: bounded in number, in their heads' size and time, and in how long a write may wait.
//!
//! `axum::serve` sets no timer on a connection, without which hyper ignores its own time limits; so connections are
//! built here.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::places::{Place, Places, Request};
use crate::routes::Local;
use crate::wire::Wire;

/// Answers connections until `closing` says so, then gives those that are open [`Limits::drain_time`].
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    metrics: Arc<Metrics>,
    mut closing: watch::Receiver<bool>,
) {
    let places = Places::new(limits.connections);
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _changed = closing.wait_for(|closing| *closing) => break,
        };
        match accepted {
            Ok((stream, _)) => match places.take().await {
                Some((place, dismissed)) => {
                    metrics.dismissed_connections.add(usize::from(dismissed));
                    connect(stream, place, router.clone(), &limits, &metrics, &graceful);
                }
                None => metrics.refused_connections.add(1),
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
    place: Arc<Place>,
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
    let wire = Wire::new(Box::pin(stream), Arc::clone(&place));
    let asked = Arc::clone(&place);
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(Local(local.ip()));
        let (asking, answer) = (asked.request(), router.clone().oneshot(request.map(Body::new)));
        async move { answer.await.map(|answer| answer.map(|body| Answer { body, _asking: asking })) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_buf_size(limits.head_bytes)
        .max_headers(limits.head_lines)
        .serve_connection(TokioIo::new(wire), service);
    let connection = graceful.watch(connection);
    let counted = Counted::new(Arc::clone(metrics));
    tokio::spawn(async move {
        let (mut connection, mut needed) = (pin!(connection), pin!(place.needed()));
        poll_fn(|cx| {
            // A connection that breaks off is the client's affair.
            if connection.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            place.settle();
            needed.as_mut().poll(cx)
        })
        .await;
        drop(counted);
    });
}

/// The body of an answer, which ends its request when the last of it has been handed over.
struct Answer {
    body: Body,
    _asking: Request,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
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
