//! A server as a complete program.

use tracing_subscriber::EnvFilter;

use crate::web::{Settings, Web};
use crate::worker::InferenceWorker;

/// Logs one line per request to standard error; `RUST_LOG=warn` keeps warnings and errors only.
pub fn init_logging() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_unset| EnvFilter::new("info"));
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // Fails if the program has installed a logger, which then stays.
    let _other = log.try_init();
}

/// Prints the address and serves until a termination signal arrives or `work` returns.
pub fn run(
    settings: Settings,
    work: impl FnOnce(InferenceWorker) -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<()> {
    let mut server = Web::start(settings, work)?;
    println!("http://{}", server.address());
    server.wait()?;
    eprintln!("ending; answers under way may finish");
    server.stop()
}
