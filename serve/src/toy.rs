//! A model for whoever has none: the trainer makes its toy beside the server.
//!
//! The trainer is a program of its own. It lies beside this one where both were installed or built; under `cargo run`
//! cargo builds it first.

use std::env::{self, consts::EXE_SUFFIX};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use web::Desk;

/// Where it lies afterwards, as `train` itself would name it.
const RUN: &str = "runs/toy";

/// Trains the toy and returns its run; `None` where the server was asked to end before.
pub(crate) fn train(desk: &Desk) -> anyhow::Result<Option<PathBuf>> {
    tell(desk, "there is no model yet; looking for the trainer");
    let trainer = trainer(desk)?;
    tell(desk, "training a toy model, which takes some minutes");
    let child = Command::new(&trainer)
        .args(["--config", "toy", "--out", RUN, "--resume", "auto"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let child = child.with_context(|| format!("starting {}", trainer.display()))?;
    follow(child, desk)
}

/// On the terminal and on the page.
fn tell(desk: &Desk, what: &str) {
    eprintln!("{what}");
    desk.doing(what);
}

/// Shows what the trainer says until it ends. Progress is passed on as it is written: it is for people.
fn follow(mut child: Child, desk: &Desk) -> anyhow::Result<Option<PathBuf>> {
    let output = child.stdout.take().context("its output was to be read")?;
    let trainer = Mutex::new(child);
    let ended = AtomicBool::new(false);
    let status = thread::scope(|scope| {
        scope.spawn(|| end_with(desk, &trainer, &ended));
        let shown = BufReader::new(output).lines().try_for_each(|line| line.map(|line| show(&line, desk)));
        ended.store(true, Ordering::Relaxed);
        shown.context("reading what the trainer says")?;
        locked(&trainer).wait().context("waiting for the trainer")
    })?;
    if desk.is_closing() {
        // Whatever it has saved is whole; the next start goes on from there.
        return Ok(None);
    }
    if !status.success() {
        bail!("the trainer ended with {status}; `train` by itself says more");
    }
    Ok(Some(RUN.into()))
}

fn show(line: &str, desk: &Desk) {
    eprintln!("{line}");
    if let Some(step) = line.strip_prefix("step ").and_then(|rest| rest.split_whitespace().next()) {
        desk.doing(&format!("training a toy model, step {step}"));
    }
}

/// Ends the trainer when the server is asked to end, however long its next line takes.
fn end_with(desk: &Desk, trainer: &Mutex<Child>, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        if desk.is_closing()
            && let Err(error) = locked(trainer).kill()
        {
            tracing::warn!("ending the trainer: {error}");
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn locked(trainer: &Mutex<Child>) -> MutexGuard<'_, Child> {
    trainer.lock().unwrap_or_else(PoisonError::into_inner)
}

fn trainer(desk: &Desk) -> anyhow::Result<PathBuf> {
    let own = env::current_exe().context("asking where this program lies")?;
    let beside = own.with_file_name(format!("train{EXE_SUFFIX}"));
    if let (false, Some(cargo), Some(manifest)) =
        (beside.exists(), env::var_os("CARGO"), env::var_os("CARGO_MANIFEST_DIR"))
    {
        tell(desk, "building the trainer");
        build(Path::new(&cargo), Path::new(&manifest), &own)?;
    }
    if beside.exists() {
        return Ok(beside);
    }
    bail!(
        "there is no run in `runs` and no `train` beside this program to make one; train one, or name one by --from"
    )
}

fn build(cargo: &Path, manifest: &Path, own: &Path) -> anyhow::Result<()> {
    let release = own.parent().and_then(Path::file_name).is_some_and(|profile| profile == "release");
    let mut command = Command::new(cargo);
    command.args(["build", "-p", "train"]).current_dir(manifest);
    if release {
        command.arg("--release");
    }
    let status = command.status().context("starting cargo")?;
    if !status.success() {
        bail!("cargo could not build the trainer");
    }
    Ok(())
}
