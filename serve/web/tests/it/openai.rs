//! The `openai` Python package against this server.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use suite::Need;
use web::{ApiKey, Echo, Limits, Settings};

use super::client::{Served, settings};

/// Where `serve/web/tests/install-clients` puts Python with the package.
fn python() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients/bin/python3")
}

/// Whether a client is installed here.
pub(crate) fn is_here(client: &str, here: bool) -> bool {
    let missing = (!here).then(|| format!("{client} is not here"));
    Need::Clients.is_met(missing.as_deref())
}

#[test]
fn the_openai_package_for_python_finds_what_it_expects() {
    if !is_here("Python with the package `openai`", python().exists()) {
        return;
    }
    let start = |settings: Settings, echo: Echo| Served::start(settings, move |desk| echo.answer(desk));
    let delay = Duration::from_millis(3);
    let locked = Settings {
        key: Some(ApiKey::new("0123456789abcdef0123456789abcdef").unwrap()),
        ..settings(Limits::default())
    };
    let servers = [
        Served::echo(Echo::default()),
        start(
            settings(Limits { queue: 1, ..Limits::default() }),
            Echo { slots: 1, delay, ..Echo::default() },
        ),
        start(locked, Echo::default()),
        Served::echo(Echo { fail_every: Some(1), ..Echo::default() }),
    ];
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openai_client.py");
    let output = Command::new(python())
        .arg(script)
        .args(servers.each_ref().map(|server| format!("http://{}", server.address)))
        // Nothing of the machine's own settings for the package or for proxies.
        .env_clear()
        .output()
        .unwrap();
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{wrong}");
    assert_eq!(said.lines().count(), 8, "{said}");
}
