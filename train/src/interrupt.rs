//! Ctrl-C as a flag: the first asks for a clean end, the second ends the process.

use std::{
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context;

/// Set by the first Ctrl-C.
pub(crate) fn flag() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&flag);
    ctrlc::set_handler(move || {
        if raised.swap(true, Ordering::Relaxed) {
            #[expect(
                clippy::disallowed_methods,
                reason = "the second signal asks to stop at once; files are written aside and renamed, so none is half done"
            )]
            process::exit(130);
        }
        eprintln!("\nstopping; Ctrl-C again to stop at once");
    })
    .context("listening for Ctrl-C")?;
    Ok(flag)
}
