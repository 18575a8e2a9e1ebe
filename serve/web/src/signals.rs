//! Signals that end the program.

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};

/// Hears signals from [`listen`](Self::listen) on, also after the server's threads have ended.
pub(crate) struct Signals {
    runtime: Runtime,
    #[cfg(unix)]
    streams: [tokio::signal::unix::Signal; 2],
}

impl Signals {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build().context("listening for signals")?;
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let _within = runtime.enter();
            let listen = |kind| signal(kind).context("listening for signals");
            let streams = [listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?];
            Ok(Self { runtime, streams })
        }
        #[cfg(not(unix))]
        Ok(Self { runtime })
    }

    /// Returns true at a signal, or false once `other` is done.
    pub(crate) fn heard_before(&mut self, other: impl Future<Output = ()>) -> bool {
        #[cfg(unix)]
        let signal = {
            let [terminate, interrupt] = &mut self.streams;
            async {
                tokio::select! {
                    _ = terminate.recv() => (),
                    _ = interrupt.recv() => (),
                }
            }
        };
        #[cfg(not(unix))]
        let signal = async { drop(tokio::signal::ctrl_c().await) };
        self.runtime.block_on(async {
            tokio::select! {
                () = signal => true,
                () = other => false,
            }
        })
    }
}
