//! A server as a whole program.

use tracing_subscriber::EnvFilter;

use crate::desk::Desk;
use crate::web::{Settings, Web};

/// One line a request on the standard error output; `RUST_LOG=warn` leaves out those that are nobody's fault.
pub fn keep_a_log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_unset| EnvFilter::new("info"));
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // A program that keeps a log of its own keeps that.
    let _other = log.try_init();
}

/// Serves until it is asked to terminate, or until `work` ends, and prints where.
pub fn run(
    settings: Settings,
    work: impl FnOnce(Desk) -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<()> {
    let mut server = Web::start(settings, work)?;
    println!("http://{}", server.address());
    server.wait()?;
    eprintln!("ending; answers under way may finish");
    server.stop()
}
