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
    on_request(move || {
        if raised.swap(true, Ordering::Relaxed) {
            terminal::give_back();
            end_at_once();
        }
        eprintln!("\n{said}; once more to stop at once");
    })
    .context("listening for signals")?;
    Ok(flag)
}

/// A program under `nohup` ignores that its terminal closes.
#[cfg(unix)]
pub(crate) fn on_request(mut asked: impl FnMut() + Send + 'static) -> anyhow::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let hangup = (!ignores_hangups()).then_some(SIGHUP);
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM].into_iter().chain(hangup))?;
    let hear = move || signals.forever().for_each(|_| asked());
    std::thread::Builder::new().name("signals".to_owned()).spawn(hear)?;
    Ok(())
}

#[cfg(unix)]
fn ignores_hangups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}

#[cfg(not(unix))]
fn on_request(asked: impl FnMut() + Send + 'static) -> anyhow::Result<()> {
    Ok(ctrlc::set_handler(asked)?)
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
