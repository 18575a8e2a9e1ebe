//! Signals: the first that asks to stop is a flag and asks for a clean end, the second ends the process.

use std::{
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context;

/// Lets a write beyond a limit on file sizes fail as any other write, instead of killing the process.
#[cfg(unix)]
pub(crate) fn survive_file_limits() {
    let seen = Arc::new(AtomicBool::new(false));
    // Refused only for signals that cannot be caught.
    let _caught = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, seen);
}

#[cfg(not(unix))]
pub(crate) fn survive_file_limits() {}

/// Set by the first Ctrl-C or request to terminate.
pub(crate) fn flag() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&flag);
    ctrlc::set_handler(move || {
        if raised.swap(true, Ordering::Relaxed) {
            #[expect(
                clippy::disallowed_methods,
                reason = "the second signal asks to stop at once; files are written aside and renamed, so none is half done"
            )]
            process::exit(1);
        }
        eprintln!("\nstopping after this step; once more to stop at once");
    })
    .context("listening for signals")?;
    Ok(flag)
}
