//! A running server: its socket, its threads, and its end.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use axum::http::HeaderValue;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{oneshot, watch};
use tokio::task;

use crate::access::{Access, ApiKey};
use crate::desk::Desk;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::state::{Server, Status};
use crate::{listen, routes};

/// Where and for whom to serve.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The address to listen on; one that other machines reach needs a key.
    pub host: IpAddr,
    /// Zero takes any that is free.
    pub port: u16,
    /// The secret that every route but `/health` asks for.
    pub key: Option<ApiKey>,
    /// Further names that requests may call this server by.
    pub hosts: Vec<String>,
    /// Origins whose pages may ask this server, such as `https://example.org`.
    pub origins: Vec<String>,
    /// Bounds on what clients do.
    pub limits: Limits,
}

/// A server that listens. Dropping it ends it at once; [`Web::stop`] lets answers end first.
pub struct Web {
    address: SocketAddr,
    closing: watch::Sender<bool>,
    queue: Arc<Queue>,
    listening: task::JoinHandle<()>,
    inference: JoinHandle<anyhow::Result<()>>,
    ended: Option<oneshot::Receiver<()>>,
    runtime: Runtime,
}

impl Web {
    /// Listens, and has `work` load a model and answer on a thread of its own.
    pub fn start(
        settings: Settings,
        work: impl FnOnce(Desk) -> anyhow::Result<()> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let Settings { host, port, key, hosts, origins, limits } = settings;
        if !host.is_loopback() && key.is_none() {
            bail!(
                "{host} can be reached by other machines, which needs an API key: put one into a file and name it by \
                 --api-key-file, or into the environment as SPILLWAY_API_KEY"
            );
        }
        let hosts = hosts.into_iter().map(|host| host.to_ascii_lowercase()).collect();
        let origins = origins.iter().map(|origin| {
            let value = HeaderValue::from_str(origin).ok().filter(|_| origin.contains("://"));
            value.with_context(|| format!("`{origin}` is no origin; write one as https://example.org"))
        });
        let access = Access { key, hosts, origins: origins.collect::<anyhow::Result<_>>()? };
        let runtime =
            Builder::new_multi_thread().worker_threads(2).max_blocking_threads(4).enable_all().build();
        let runtime = runtime.context("starting the server's threads")?;
        let listener = runtime.block_on(TcpListener::bind((host, port)));
        let listener =
            listener.with_context(|| format!("listening on {host} port {port}; --port takes another"))?;
        let address = listener.local_addr().context("asking for the port")?;

        let (queue, metrics) = (Arc::new(Queue::new(limits.queue)), Arc::new(Metrics::default()));
        let (status, status_seen) = watch::channel(Status::Loading("looking for a model".to_owned()));
        let server = Arc::new(Server {
            limits: limits.clone(),
            access,
            queue: Arc::clone(&queue),
            metrics: Arc::clone(&metrics),
            status: status_seen,
        });
        let (closing, closing_seen) = watch::channel(false);
        let router = routes::router(&server);
        let serving = listen::serve(listener, router, limits, Arc::clone(&metrics), closing_seen);
        let listening = runtime.spawn(serving);
        let desk = Desk { status, queue: Arc::clone(&queue), metrics };
        let (end, ended) = oneshot::channel();
        let inference = thread::Builder::new().name("inference".to_owned()).spawn(move || {
            // Dropped at the end, by a panic too.
            let _end = end;
            work(desk)
        });
        let inference = inference.context("starting the inference thread")?;
        Ok(Self { address, closing, queue, listening, inference, ended: Some(ended), runtime })
    }

    /// Address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a request to terminate, or for the inference thread to end by itself.
    pub fn wait(&mut self) -> anyhow::Result<()> {
        let ended = self.ended.take();
        self.runtime.block_on(async {
            tokio::select! {
                signal = signal() => signal,
                _ended = async { match ended { Some(ended) => drop(ended.await), None => std::future::pending().await } } => Ok(()),
            }
        })
    }

    /// Takes no more connections, lets answers end within [`Limits::drain_time`], and ends.
    pub fn stop(self) -> anyhow::Result<()> {
        let Self { closing, queue, listening, inference, runtime, .. } = self;
        closing.send_replace(true);
        let drained = runtime.block_on(listening);
        // Answers that took too long lose their connection, which the scheduler notices.
        runtime.shutdown_timeout(Duration::from_millis(100));
        queue.close();
        drained.context("the listening task failed")?;
        inference.join().map_err(|_payload| anyhow!("the inference thread panicked"))?
    }
}

#[cfg(unix)]
async fn signal() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("listening for signals")?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        pressed = tokio::signal::ctrl_c() => pressed.context("listening for signals"),
    }
}

#[cfg(not(unix))]
async fn signal() -> anyhow::Result<()> {
    tokio::signal::ctrl_c().await.context("listening for signals")
}
