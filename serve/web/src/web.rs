//! A running server: its socket, threads and shutdown.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{oneshot, watch};
use tokio::task;

use crate::access::{Access, ApiKey, parse_host, parse_origin};
use crate::body_budget::BodyBudget;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::signals::Signals;
use crate::state::{Server, Status};
use crate::worker::InferenceWorker;
use crate::{listen, routes};

/// Time to end a running trainer.
const LOADING_END: Duration = Duration::from_secs(2);

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Any but loopback needs a key.
    pub host: IpAddr,
    /// 0 picks a free one.
    pub port: u16,
    /// Required on all routes but `/health`.
    pub key: Option<ApiKey>,
    /// Names besides `localhost` and the address.
    pub hosts: Vec<String>,
    /// Origins with pages that may use this server.
    pub origins: Vec<String>,
    /// Limits on requests and connections.
    pub limits: Limits,
}

/// A drop ends it at once; [`Web::stop`] lets answers finish.
pub struct Web {
    address: SocketAddr,
    closing: watch::Sender<bool>,
    queue: Arc<Queue>,
    listening: task::JoinHandle<()>,
    inference: JoinHandle<anyhow::Result<()>>,
    status: watch::Receiver<Status>,
    ended: Option<oneshot::Receiver<()>>,
    runtime: Runtime,
}

impl Web {
    /// Listens, and calls `work` on the inference thread.
    pub fn start(
        settings: Settings,
        work: impl FnOnce(InferenceWorker) -> anyhow::Result<()> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let Settings { host, port, key, hosts, origins, limits } = settings;
        if !host.is_loopback() && key.is_none() {
            bail!(
                "{host} can be reached by other machines, which needs an API key: put one into a file and name it by \
                 --api-key-file, or into the environment as SPILLWAY_API_KEY"
            );
        }
        let hosts = hosts.iter().map(|host| parse_host(host)).collect::<anyhow::Result<_>>()?;
        let origins = origins.iter().map(|origin| parse_origin(origin)).collect::<anyhow::Result<_>>()?;
        let access = Access { key, hosts, everywhere: host.is_unspecified(), origins };
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
            bodies: BodyBudget::new(limits.all_body_bytes.max(limits.body_bytes)),
            metrics: Arc::clone(&metrics),
            status: status_seen.clone(),
        });
        let (closing, closing_seen) = watch::channel(false);
        let router = routes::router(&server);
        let serving = listen::serve(listener, router, limits, Arc::clone(&metrics), closing_seen);
        let listening = runtime.spawn(serving);
        let worker = InferenceWorker { status, queue: Arc::clone(&queue), metrics, examples: Vec::new() };
        let (end, ended) = oneshot::channel();
        let inference = thread::Builder::new().name("inference".to_owned()).spawn(move || {
            // Dropped when the thread ends or panics.
            let _end = end;
            work(worker)
        });
        let inference = inference.context("starting the inference thread")?;
        Ok(Self {
            address,
            closing,
            queue,
            listening,
            inference,
            status: status_seen,
            ended: Some(ended),
            runtime,
        })
    }

    /// The listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns at a signal, or once the inference thread has ended.
    pub(crate) fn wait(&mut self, signals: &mut Signals) {
        let ended = self.ended.take();
        signals.heard_before(async {
            match ended {
                Some(ended) => drop(ended.await),
                None => std::future::pending().await,
            }
        });
    }

    /// Also ends a model that is still loading, after [`LOADING_END`].
    #[expect(
        clippy::disallowed_methods,
        reason = "neither waits for destructors: a second signal, and a load"
    )]
    pub(crate) fn end_at_next_signal(&self, mut signals: Signals) {
        let is_loading = matches!(*self.status.borrow(), Status::Loading(_));
        thread::spawn(move || {
            let loaded = async move {
                if is_loading {
                    tokio::time::sleep(LOADING_END).await;
                } else {
                    std::future::pending::<()>().await;
                }
            };
            std::process::exit(if signals.heard_before(loaded) { 130 } else { 0 });
        });
    }

    /// Accepts nothing more; ends after all answers or [`Limits::drain_time`].
    pub fn stop(self) -> anyhow::Result<()> {
        let Self { closing, queue, listening, inference, runtime, .. } = self;
        closing.send_replace(true);
        let drained = runtime.block_on(listening);
        // Closes unfinished answers; the scheduler drops their sequences.
        runtime.shutdown_timeout(Duration::from_millis(100));
        queue.close();
        drained.context("the listening task failed")?;
        inference.join().map_err(|_payload| anyhow!("the inference thread panicked"))?
    }
}
