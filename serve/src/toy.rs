//! The toy model, for servers without a run: the trainer trains it beside the server.
//!
//! The trainer is a program of its own. It lies beside this one where both were installed or built; under `cargo run`
//! cargo builds it first. A toy that was broken off is gone on with: half trained, it talks nonsense.

use std::env::{self, consts::EXE_SUFFIX};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use runs::checkpoint::{CONFIG, Checkpoints, Which};
use runs::config::Config;
use web::Desk;

/// Directory of the toy's run, as `train` itself would name it.
pub(crate) const RUN: &str = "runs/toy";

/// The trainer's exit code after a signal, once it has saved.
const INTERRUPTED: i32 = 3;

/// Whether a run has steps left to take.
pub(crate) fn is_unfinished(run: &Path) -> bool {
    let planned = Config::load(&run.join(CONFIG).to_string_lossy(), &[]).map(|config| config.train.steps);
    let taken = Checkpoints::in_run(run).find(Which::Latest).map(|checkpoint| checkpoint.step);
    matches!((planned, taken), (Ok(planned), Ok(taken)) if taken < planned)
}

/// Trains the toy to its end and returns its run; `None` where the server was asked to end before.
pub(crate) fn train(desk: &Desk) -> anyhow::Result<Option<PathBuf>> {
    tell(desk, "looking for the trainer");
    let Some(trainer) = trainer(desk)? else { return Ok(None) };
    let run = Path::new(RUN);
    let begun = run.join(CONFIG).exists();
    tell(
        desk,
        if begun {
            "going on with a toy model that is half trained"
        } else {
            "training a toy model, which takes some minutes"
        },
    );
    // No `--config`: a run begins as the toy by default, and goes on as it was begun.
    let status = follow(Command::new(&trainer).args(["--out", RUN, "--resume", "auto"]), desk)?;
    let Some(status) = status else { return Ok(None) };
    // Ctrl-C reaches both programs, and this one may be the slower.
    if status.code() == Some(INTERRUPTED) {
        return Ok(None);
    }
    if !status.success() {
        bail!("the trainer ended with {status}; what {RUN} has saved, if anything, answers by --from {RUN}");
    }
    Ok(Some(run.to_owned()))
}

/// On the terminal and on the page.
fn tell(desk: &Desk, what: &str) {
    eprintln!("{what}");
    desk.doing(what);
}

/// Runs a program and shows what it says to people until it ends. `None` where the server was asked to end before:
/// the program is ended then, however long its next line would take.
fn follow(program: &mut Command, desk: &Desk) -> anyhow::Result<Option<ExitStatus>> {
    let name = program.get_program().to_string_lossy().into_owned();
    let child = program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("starting {name}"))?;
    let said = child.stderr.take().context("what it says was to be read")?;
    let child = Mutex::new(child);
    let ended = AtomicBool::new(false);
    let status = thread::scope(|scope| {
        scope.spawn(|| end_with(desk, &child, &ended));
        let shown = BufReader::new(said).lines().try_for_each(|line| line.map(|line| show(&line, desk)));
        ended.store(true, Ordering::Relaxed);
        shown.with_context(|| format!("reading what {name} says"))?;
        locked(&child).wait().with_context(|| format!("waiting for {name}"))
    })?;
    Ok((!desk.is_closing()).then_some(status))
}

fn show(line: &str, desk: &Desk) {
    eprintln!("{line}");
    // Lines about a step that say more than how far it has come have no `/`.
    let step = line.strip_prefix("step ").and_then(|rest| rest.split_whitespace().next());
    if let Some(step) = step.filter(|step| step.contains('/')) {
        desk.doing(&format!("training a toy model, step {step}"));
    }
}

/// Ends a program when the server is asked to end. Whatever the trainer has saved is whole.
fn end_with(desk: &Desk, child: &Mutex<Child>, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        if desk.is_closing()
            && let Err(error) = locked(child).kill()
        {
            tracing::warn!("ending the trainer: {error}");
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn locked(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

fn trainer(desk: &Desk) -> anyhow::Result<Option<PathBuf>> {
    let own = env::current_exe().context("asking where this program lies")?;
    let beside = own.with_file_name(format!("train{EXE_SUFFIX}"));
    if let (false, Some(cargo), Some(manifest)) =
        (beside.exists(), env::var_os("CARGO"), env::var_os("CARGO_MANIFEST_DIR"))
    {
        tell(desk, "building the trainer");
        let mut cargo = Command::new(cargo);
        cargo.args(["build", "-p", "train"]).current_dir(manifest);
        if own.parent().and_then(Path::file_name).is_some_and(|profile| profile == "release") {
            cargo.arg("--release");
        }
        match follow(&mut cargo, desk)? {
            None => return Ok(None),
            Some(status) if !status.success() => bail!("cargo could not build the trainer"),
            Some(_) => {}
        }
    }
    if beside.exists() {
        return Ok(Some(beside));
    }
    bail!(
        "there is no trained run in `runs` and no `train` beside this program to make one; train one, or name one by --from"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_unfinished_until_its_last_step_is_saved() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path();
        assert!(!is_unfinished(run), "there is no run");
        let config = Config::load("toy", &["train.steps=40".to_owned()]).unwrap();
        std::fs::write(run.join(CONFIG), config.to_json()).unwrap();
        for (step, unfinished) in [(20, true), (40, false)] {
            let write = |folder: &Path| Ok(std::fs::write(folder.join("weights"), "some")?);
            Checkpoints::in_run(run).save(step, 0, write).unwrap();
            assert_eq!(is_unfinished(run), unfinished, "after step {step} of 40");
        }
    }

    #[cfg(unix)]
    mod beside_a_server {
        use std::io::{Read, Write};
        use std::net::{SocketAddr, TcpStream};
        use std::sync::mpsc::channel;

        use web::{Limits, Settings, Web};

        use super::*;

        /// A server whose model is whatever `script` does.
        fn following(script: &'static str, then: impl FnOnce(Option<ExitStatus>) + Send + 'static) -> Web {
            let limits = Limits::default();
            let host = "127.0.0.1".parse().unwrap();
            let settings =
                Settings { host, port: 0, key: None, hosts: Vec::new(), origins: Vec::new(), limits };
            let work = move |desk| {
                then(follow(Command::new("sh").args(["-c", script]), &desk)?);
                Ok(())
            };
            Web::start(settings, work).unwrap()
        }

        fn health(server: SocketAddr) -> String {
            let mut stream = TcpStream::connect(server).unwrap();
            stream
                .write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                .unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        }

        #[test]
        fn progress_is_on_the_page_and_the_trainer_ends_with_the_server_though_it_says_nothing_more() {
            let server =
                following("echo 'step 00007/00500 (1.4%) | loss 3' >&2; exec sleep 1000", |status| {
                    assert_eq!(status, None, "the server was asked to end");
                });
            while !health(server.address()).contains("step 00007/00500") {}
            let (stopped, has_stopped) = channel();
            thread::spawn(move || stopped.send(server.stop().map_err(|error| error.to_string())));
            // Far longer than it takes; a server that waits for the trainer fails here.
            assert_eq!(has_stopped.recv_timeout(Duration::from_mins(1)), Ok(Ok(())));
        }

        #[test]
        fn how_the_trainer_ended_is_known() {
            let (ended, has_ended) = channel();
            let server = following("exit 3", move |status| ended.send(status).unwrap());
            let status = has_ended.recv().unwrap();
            assert_eq!(status.and_then(|status| status.code()), Some(INTERRUPTED));
            server.stop().unwrap();
        }
    }
}
