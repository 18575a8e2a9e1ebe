//! Signals: the first that asks to stop is a flag and asks for a clean end, the second ends the process.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use anyhow::Context;

use crate::progress::terminal;

/// Lets a write beyond a limit on file sizes fail as any other write, instead of killing the process.
#[cfg(unix)]
pub(crate) fn survive_file_limits() {
    let seen = Arc::new(AtomicBool::new(false));
    // Refused only for signals that cannot be caught.
    let _caught = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, seen);
}

#[cfg(not(unix))]
pub(crate) fn survive_file_limits() {}

/// Set by the first Ctrl-C or request to terminate, which is answered by `said`.
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

/// Sets `flag` when the launcher of several processes passes on the wish to stop, too.
#[cfg(unix)]
pub(crate) fn hear_launcher(flag: &Arc<AtomicBool>) -> anyhow::Result<()> {
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(flag))
        .context("listening for signals")?;
    Ok(())
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it can fail")]
pub(crate) fn hear_launcher(_: &Arc<AtomicBool>) -> anyhow::Result<()> {
    Ok(())
}

/// For a program that answers: while this is unset, Ctrl-C sets it and asks for the end of an answer. While it is set,
/// between answers or after the first Ctrl-C, another ends the program as it does by itself.
#[cfg(unix)]
pub(crate) fn of_an_answer() -> anyhow::Result<Arc<AtomicBool>> {
    use signal_hook::{consts::SIGINT, flag};
    let set = Arc::new(AtomicBool::new(true));
    // In this order: the signal that sets it finds it unset.
    flag::register_conditional_default(SIGINT, Arc::clone(&set)).context("listening for signals")?;
    flag::register(SIGINT, Arc::clone(&set)).context("listening for signals")?;
    Ok(set)
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it can fail")]
pub(crate) fn of_an_answer() -> anyhow::Result<Arc<AtomicBool>> {
    Ok(Arc::default())
}

/// Without what usually happens at the end: other threads are in the middle of their work. Files are written aside and
/// renamed, so none is half done.
#[cfg(unix)]
fn end_at_once() -> ! {
    signal_hook::low_level::exit(1)
}

#[cfg(not(unix))]
fn end_at_once() -> ! {
    #[expect(clippy::disallowed_methods, reason = "the second signal asks to stop at once")]
    std::process::exit(1)
}
