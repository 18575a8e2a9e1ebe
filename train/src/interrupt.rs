//! Signals: the first request to stop sets a flag, the second ends the process.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use anyhow::Context;

use crate::progress::terminal;

/// Writes beyond the file size limit then fail instead of killing the process.
#[cfg(unix)]
pub(crate) fn survive_file_limits() {
    let seen = Arc::new(AtomicBool::new(false));
    // Fails only for signals that cannot be caught.
    let _caught = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, seen);
}

#[cfg(not(unix))]
pub(crate) fn survive_file_limits() {}

/// The first request to stop sets the flag and prints `said`.
pub(crate) fn flag(said: &'static str) -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&flag);
    ctrlc::set_handler(move || {
        if raised.swap(true, Ordering::Relaxed) {
            terminal::give_back();
            end_at_once();
        }
        eprintln!("\n{said}; once more to stop at once");
    })
    .context("listening for signals")?;
    Ok(flag)
}

#[cfg(unix)]
pub(crate) fn hear_launcher(flag: &Arc<AtomicBool>) -> anyhow::Result<()> {
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(flag))
        .context("listening for signals")?;
    Ok(())
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "on Unix it can fail")]
pub(crate) fn hear_launcher(_: &Arc<AtomicBool>) -> anyhow::Result<()> {
    Ok(())
}

/// Ctrl-C sets the flag, or ends the program if it is already set, as between answers.
#[cfg(unix)]
pub(crate) fn answer_flag() -> anyhow::Result<Arc<AtomicBool>> {
    use signal_hook::{consts::SIGINT, flag};
    let set = Arc::new(AtomicBool::new(true));
    // In this order: a signal that sets the flag must find it unset.
    flag::register_conditional_default(SIGINT, Arc::clone(&set)).context("listening for signals")?;
    flag::register(SIGINT, Arc::clone(&set)).context("listening for signals")?;
    Ok(set)
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "on Unix it can fail")]
pub(crate) fn answer_flag() -> anyhow::Result<Arc<AtomicBool>> {
    Ok(Arc::default())
}

/// Without cleanup: other threads are at work. Complete files are renamed: none is half written.
#[cfg(unix)]
fn end_at_once() -> ! {
    signal_hook::low_level::exit(1)
}

#[cfg(not(unix))]
fn end_at_once() -> ! {
    #[expect(clippy::disallowed_methods, reason = "the second signal asks to stop at once")]
    std::process::exit(1)
}
