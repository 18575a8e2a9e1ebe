//! Tests of memory and of gradients, each in its own process.

use std::env;
use std::process::Command;
use std::thread;

const ALONE: &str = "MODELS_TEST_ALONE";

/// Whether this process runs the calling test alone. Otherwise a child runs it: each backward pass sweeps all threads'
/// tapes, and removes an operation whose only input has been dropped before its output is registered.
pub(crate) fn is_alone() -> bool {
    // A run with one test thread names it `main`.
    let name = thread::current().name().filter(|name| *name != "main").map(str::to_owned);
    let (None, Some(name)) = (env::var_os(ALONE), name) else { return true };
    let run = Command::new(env::current_exe().expect("this test's own path"))
        .args([name.as_str(), "--exact", "--include-ignored"])
        .env(ALONE, "1")
        .output()
        .expect("a second process");
    let printed = String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success() && printed.contains(" 1 passed"),
        "{printed}{}",
        String::from_utf8_lossy(&run.stderr)
    );
    false
}
