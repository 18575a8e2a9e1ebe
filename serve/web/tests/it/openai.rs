//! The `openai` packages for Python and JavaScript against this server.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use suite::Need;
use web::{ApiKey, Echo, Limits, Settings};

use super::client::{TestServer, settings};

/// Installed by `serve/web/tests/install-clients`.
fn python() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients/bin/python3")
}

/// If not, fails where clients are required.
pub(crate) fn is_client_installed(client: &str, here: bool) -> bool {
    let missing = (!here).then(|| format!("{client} is not here"));
    Need::Clients.is_met(missing.as_deref())
}

const CALL: &str = r#"{"name":"weather","arguments":{"city":"Rome","days":3}}"#;

#[test]
fn the_openai_python_package_works() {
    if !is_client_installed("Python with the package `openai`", python().exists()) {
        return;
    }
    let start =
        |settings: Settings, echo: Echo| TestServer::start(settings, move |worker| echo.answer(worker));
    let delay = Duration::from_millis(3);
    let locked = Settings {
        key: Some(ApiKey::new("0123456789abcdef0123456789abcdef").unwrap()),
        ..settings(Limits::default())
    };

    let servers = [
        TestServer::echo(Echo::default()),
        start(
            settings(Limits { queue: 1, ..Limits::default() }),
            Echo { slots: 1, delay, ..Echo::default() },
        ),
        start(locked, Echo::default()),
        TestServer::echo(Echo { fail_every: Some(1), ..Echo::default() }),
        TestServer::echo(Echo { script: vec![CALL.to_owned()], ..Echo::default() }),
    ];

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openai_client.py");
    let output = Command::new(python())
        .arg(script)
        .args(servers.each_ref().map(|server| format!("http://{}", server.address)))
        .args(cfg!(feature = "structured").then_some("structured"))
        // Proxies would interfere.
        .env_clear()
        .output()
        .unwrap();

    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{wrong}");
    assert_eq!(said.lines().count(), if cfg!(feature = "structured") { 11 } else { 9 }, "{said}");
}

#[test]
fn the_openai_javascript_package_works() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
    if !is_client_installed("Node with the package `openai`", folder.join("node_modules/openai").exists()) {
        return;
    }
    let locked = Settings {
        key: Some(ApiKey::new("0123456789abcdef0123456789abcdef").unwrap()),
        ..settings(Limits::default())
    };
    let servers = [
        TestServer::echo(Echo::default()),
        TestServer::start(locked, |worker| Echo::default().answer(worker)),
        TestServer::echo(Echo { fail_every: Some(1), ..Echo::default() }),
    ];

    let mut client = Command::new("node");
    client.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openai_client.mjs")).arg(folder);
    client.args(servers.each_ref().map(|server| format!("http://{}", server.address)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let output = client.env_clear().env("PATH", path).output().unwrap();
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("done"), "{said}\n{wrong}");
}
