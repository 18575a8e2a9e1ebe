//! The toy model for servers without a run, trained or resumed by the program `train`, from this program's folder or
//! built by cargo.

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
use web::InferenceWorker;

/// The name that `train` would choose.
pub(crate) const RUN: &str = "runs/toy";

/// The trainer's exit code after a signal.
const INTERRUPTED: i32 = 3;

pub(crate) fn is_unfinished(run: &Path) -> bool {
    let planned = Config::load(&run.join(CONFIG).to_string_lossy(), &[]).map(|config| config.train.steps);
    let taken = Checkpoints::in_run(run).find(Which::Latest).map(|checkpoint| checkpoint.step);
    matches!((planned, taken), (Ok(planned), Ok(taken)) if taken < planned)
}

/// `None` if the server stopped first.
pub(crate) fn train(worker: &InferenceWorker) -> anyhow::Result<Option<PathBuf>> {
    report(worker, "looking for the trainer");
    let Some(trainer) = find_trainer(worker)? else { return Ok(None) };
    let run = Path::new(RUN);
    let begun = run.join(CONFIG).exists();

    report(
        worker,
        if begun {
            "going on with a toy model that is half trained"
        } else {
            "training a toy model, which takes some minutes"
        },
    );
    // Without `--config`, the toy starts, or resumes as configured.
    let status = run_and_show(&mut training_by(&trainer), worker)?;
    let Some(status) = status else { return Ok(None) };

    // Ctrl-C reaches both programs; the trainer may end first.
    if status.code() == Some(INTERRUPTED) {
        return Ok(None);
    }

    if !status.success() {
        bail!("the trainer ended with {status}; what {RUN} has saved, if anything, answers by --from {RUN}");
    }
    Ok(Some(run.to_owned()))
}

fn training_by(trainer: &Path) -> Command {
    let mut command = Command::new(trainer);
    command.args(["--out", RUN, "--resume", "auto", "--log-every", "1"]).env_remove(web::KEY_VARIABLE);
    command
}

fn report(worker: &InferenceWorker, what: &str) {
    eprintln!("{what}");
    worker.report_progress(what);
}

/// Shows standard error. `None` if the server stops first, which kills the program.
fn run_and_show(program: &mut Command, worker: &InferenceWorker) -> anyhow::Result<Option<ExitStatus>> {
    let name = program.get_program().to_string_lossy().into_owned();
    let child = program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("starting {name}"))?;
    let stderr = child.stderr.take().context("what it says was to be read")?;
    let child = Mutex::new(child);
    let ended = AtomicBool::new(false);
    let status = thread::scope(|scope| {
        scope.spawn(|| kill_when_closing(worker, &child, &ended));
        let shown =
            BufReader::new(stderr).lines().try_for_each(|line| line.map(|line| show_line(&line, worker)));
        ended.store(true, Ordering::Relaxed);
        shown.with_context(|| format!("reading what {name} says"))?;
        locked(&child).wait().with_context(|| format!("waiting for {name}"))
    })?;
    Ok((!worker.is_closing()).then_some(status))
}

fn show_line(line: &str, worker: &InferenceWorker) {
    eprintln!("{line}");
    // Only progress lines have `step N/M`.
    let step = line.strip_prefix("step ").and_then(|rest| rest.split_whitespace().next());
    if let Some(step) = step.filter(|step| step.contains('/')) {
        worker.report_progress(&format!("training a toy model, step {step}"));
    }
}

/// Checkpoints of a killed trainer are whole.
fn kill_when_closing(worker: &InferenceWorker, child: &Mutex<Child>, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        if worker.is_closing()
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

fn find_trainer(worker: &InferenceWorker) -> anyhow::Result<Option<PathBuf>> {
    let own = env::current_exe().context("asking where this program lies")?;
    let sibling = own.with_file_name(format!("train{EXE_SUFFIX}"));

    if let (false, Some(cargo), Some(manifest)) =
        (sibling.exists(), env::var_os("CARGO"), env::var_os("CARGO_MANIFEST_DIR"))
    {
        report(worker, "building the trainer");
        let mut cargo = Command::new(cargo);
        cargo.args(["build", "-p", "train"]).current_dir(manifest);
        if own.parent().and_then(Path::file_name).is_some_and(|profile| profile == "release") {
            cargo.arg("--release");
        }
        match run_and_show(&mut cargo, worker)? {
            None => return Ok(None),
            Some(status) if !status.success() => bail!("cargo could not build the trainer"),
            Some(_) => {}
        }
    }

    if sibling.exists() {
        return Ok(Some(sibling));
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

    #[test]
    fn the_trainer_does_not_inherit_the_servers_key() {
        let command = training_by(Path::new("train"));
        assert!(command.get_envs().any(|variable| variable == (web::KEY_VARIABLE.as_ref(), None)));
    }

    #[cfg(unix)]
    mod with_a_server {
        use std::io::{Read, Write};
        use std::net::{SocketAddr, TcpStream};
        use std::sync::mpsc::channel;

        use web::{Limits, Settings, Web};

        use super::*;

        fn server_running(
            script: &'static str,
            then: impl FnOnce(Option<ExitStatus>) + Send + 'static,
        ) -> Web {
            let limits = Limits::default();
            let host = "127.0.0.1".parse().unwrap();
            let settings =
                Settings { host, port: 0, key: None, hosts: Vec::new(), origins: Vec::new(), limits };
            let work = move |worker| {
                then(run_and_show(Command::new("sh").args(["-c", script]), &worker)?);
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
        fn progress_is_shown_and_a_silent_trainer_ends_with_the_server() {
            let server =
                server_running("echo 'step 00007/00500 (1.4%) | loss 3' >&2; exec sleep 1000", |status| {
                    assert_eq!(status, None, "the server was asked to end");
                });
            while !health(server.address()).contains("step 00007/00500") {}
            let (stopped, has_stopped) = channel();
            thread::spawn(move || stopped.send(server.stop().map_err(|error| error.to_string())));
            // A server that waits for the trainer takes longer.
            assert_eq!(has_stopped.recv_timeout(Duration::from_mins(1)), Ok(Ok(())));
        }

        #[test]
        fn the_trainers_exit_code_is_returned() {
            let (ended, has_ended) = channel();
            let server = server_running("exit 3", move |status| ended.send(status).unwrap());
            let status = has_ended.recv().unwrap();
            assert_eq!(status.and_then(|status| status.code()), Some(INTERRUPTED));
            server.stop().unwrap();
        }
    }
}
