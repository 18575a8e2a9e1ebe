//! Connections with limits (`health_answers_while_idle_connections_hold_every_slot`): `axum::serve` sets no timer,
//! which hyper's time limits need.

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

use crate::client::{Client, Connection};
use crate::connection_slots::{ConnectionSlots, RequestGuard, Slot};
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::monitored_stream::MonitoredStream;

pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    metrics: Arc<Metrics>,
    mut closing: watch::Receiver<bool>,
) {
    let slots = ConnectionSlots::new(limits.connections);
    let graceful = GracefulShutdown::new();
    let mut connections = 0;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _changed = closing.wait_for(|closing| *closing) => break,
        };
        match accepted {
            Ok((stream, peer)) => match slots.take().await {
                Some((slot, dismissed)) => {
                    metrics.dismissed_connections.add(usize::from(dismissed));
                    connections += 1;
                    let client = Client::new(peer.ip(), connections);
                    connect(stream, client, slot, router.clone(), &limits, &metrics, &graceful);
                }
                None => metrics.refused_connections.add(1),
            },
            Err(error) => pause_after(&error).await,
        }
    }

    drop(listener);
    // Late connections end with the runtime.
    let _late = tokio::time::timeout(limits.drain_time, graceful.shutdown()).await;
}

/// Without file descriptors, the next accept fails too.
async fn pause_after(error: &io::Error) {
    tracing::warn!("could not accept a connection: {error}");
    tokio::time::sleep(Duration::from_millis(50)).await;
}

fn connect(
    stream: TcpStream,
    client: Client,
    slot: Arc<Slot>,
    router: Router,
    limits: &Limits,
    metrics: &Arc<Metrics>,
    graceful: &GracefulShutdown,
) {
    let Ok(local) = stream.local_addr() else { return };
    let connection = Connection { local: local.ip(), client };
    // Nagle's algorithm delays each token.
    let _best_effort = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write_time));

    let monitored = MonitoredStream::new(Box::pin(stream), Arc::clone(&slot));
    let asked = Arc::clone(&slot);
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(connection);
        let guard = asked.request();
        let answer = router.clone().oneshot(request.map(Body::new));
        async move {
            // Without an answer hyper closes the connection; clients may repeat the request.
            let guard = guard.ok_or_else(|| io::Error::other("the connection is being closed"))?;
            let Ok(answer) = answer.await;
            Ok::<_, io::Error>(answer.map(|body| AnswerBody { body, _guard: guard }))
        }
    });

    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle_time)
        .max_buf_size(limits.head_bytes)
        .max_headers(limits.head_lines)
        .serve_connection(TokioIo::new(monitored), service);
    let connection = graceful.watch(connection);

    let counted = OpenConnection::new(Arc::clone(metrics));
    let head_time = limits.head_time;
    tokio::spawn(async move {
        let (mut connection, mut displaced) = (pin!(connection), pin!(slot.displaced()));
        let mut head_timer = pin!(tokio::time::sleep(head_time));
        poll_fn(|cx| {
            // A broken connection is no error of the server.
            if connection.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            slot.update_idle();
            if let Some(begun) = slot.head_begun() {
                let deadline = begun + head_time;
                if head_timer.deadline() != deadline {
                    head_timer.as_mut().reset(deadline);
                }
                if head_timer.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
            }
            displaced.as_mut().poll(cx)
        })
        .await;
        drop(counted);
    });
}

/// Hyper drops it after the last frame, which ends the request.
struct AnswerBody {
    body: Body,
    _guard: RequestGuard,
}

impl hyper::body::Body for AnswerBody {
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

struct OpenConnection(Arc<Metrics>);

impl OpenConnection {
    fn new(metrics: Arc<Metrics>) -> Self {
        metrics.connections.add(1);
        Self(metrics)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.sub(1);
    }
}
