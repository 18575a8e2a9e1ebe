//! `train run`: the whole of a training run, top to bottom.

use std::io::{IsTerminal, stdin, stdout};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use backend_offload::{Offload, Offloadable, stats};
use burn::tensor::backend::Backend;
use burn_train::Interrupter;
use models::{Footprint, Gpt};
use runs::BadInput;
use runs::Pretrained;
use runs::device::{self, DeviceChoice, Place, Setup, Work};
use runs::directory::{Beginning, Resume, RunDirectory};
use serde_json::json;

use super::ConfigArgs;
use super::plan::epoch;
use crate::data::{self, TrainingWindows, ValidationWindows};
use crate::exit::Ending;
use crate::journal::Journal;
use crate::machine;
use crate::optimizer::Optimizer;
use crate::plan::{self, Plan};
use crate::summary::{self, Summary};
use crate::training::{self, Display, Learner, Progress, Run, Session, Tape};
use crate::{interrupt, report};

#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// The run's directory; by default `runs/` and the configuration's name.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Go on where a run stopped: `auto` for the latest checkpoint in the run's directory, or a path to either.
    #[arg(long, value_name = "auto|PATH")]
    resume: Option<Resume>,
    /// Begin a new run with the weights and the vocabulary of another: a run's directory, whose latest checkpoint is
    /// taken, or a checkpoint. Data, schedule, batch and optimizer are the new run's.
    #[arg(long, value_name = "PATH", conflicts_with = "resume")]
    from: Option<PathBuf>,
    /// auto, cuda, cuda:N, vulkan or cpu.
    #[arg(long, default_value_t)]
    device: DeviceChoice,
    /// Print the summary (or the plan, with --dry-run) as JSON on standard output, and nothing else there.
    #[arg(long)]
    json: bool,
    /// Burn's terminal interface instead of a line per step.
    #[arg(long, conflicts_with = "json")]
    tui: bool,
    /// Print the plan and stop.
    #[arg(long)]
    dry_run: bool,
    /// Let every step see the first batch, to check that the model can learn at all.
    #[arg(long)]
    overfit_one_batch: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Ending> {
    if args.tui && !(stdin().is_terminal() && stdout().is_terminal()) {
        return Err(BadInput("--tui needs a terminal; leave it out for plain lines".to_owned()).into());
    }
    let stop = interrupt::flag("stopping after this step")?;
    let ConfigArgs { config, mut set } = args.config.clone();
    if args.overfit_one_batch {
        set.push("train.overfit_one_batch=true".to_owned());
    }
    let beginning = Beginning { resume: args.resume.as_ref(), pretrained: args.from.as_deref() };
    let directory = RunDirectory::find(config.as_deref(), &set, args.out.as_deref(), beginning)?;
    let setup = Setup::from(&directory.config);
    device::with(args.device, &setup, Training { args, directory, stop })
}

struct Training<'a> {
    args: &'a Args,
    directory: RunDirectory,
    stop: Arc<AtomicBool>,
}

impl Work for Training<'_> {
    type Output = Ending;

    fn on<I: Offloadable>(self, device: &I::Device, place: &Place) -> anyhow::Result<Ending> {
        let Self { args, mut directory, stop } = self;
        let run = directory.path.clone();
        let footprint = Footprint::of(&directory.config.model)?;
        let machine = machine::survey::<I>(device, place, directory.config.model.compute, &run);
        let config = plan::placed(&directory.config, &footprint, &machine);
        directory.config = config.clone();
        let mut plan = Plan::new(&config, &footprint, &machine);
        // With another run's weights comes its vocabulary, which is not there yet.
        plan.data = if directory.pretrained.is_none() { epoch(&config)? } else { None };
        eprintln!("{plan}");
        if args.dry_run {
            if args.json {
                println!("{}", serde_json::to_string_pretty(&plan)?);
            }
            return refuse(&plan).map(|()| Ending::Done);
        }
        refuse(&plan)?;
        let checkpoint = directory.from.as_ref();
        if let Some(done) = checkpoint.filter(|checkpoint| checkpoint.step >= config.train.steps) {
            // A run that was stopped behind its last checkpoint has yet to say what it came to.
            if let Some(told) = summary::of_finished(&run, done.step) {
                let (run, steps) = (run.display(), done.step);
                eprintln!("{run} is done with its {steps} steps; raise train.steps by --set to go on");
                if args.json {
                    print!("{told}");
                }
                return Ok(Ending::Done);
            }
        }

        let start = directory.start()?;
        if let Some(pretrained) = &directory.pretrained {
            pretrained.save_vocabulary(&run)?;
        }
        let data = data::prepare(&config, &run, checkpoint.map(|from| from.path.as_path()), &stop)?;
        let training = Arc::new(TrainingWindows::open(&config, &data)?);
        let validation = Arc::new(ValidationWindows::open(&config, &data, config.eval.sequences)?);
        let targets = training.targets();
        eprintln!(
            "data: {} training sequences per epoch with {:.1} % of {} counted targets, {} to validate with; \
             vocabulary of {}",
            training.sequences(),
            100.0 * targets.share(),
            targets.counted,
            validation.sequences,
            data.tokenizer.vocab_size()
        );

        let (gpt, optimizer, mut progress) = first_state::<I>(&directory, device)?;
        same_data(&mut progress, &training)?;
        let flops_per_token = footprint.flops_per_token(config.sequence(), false);
        let session = Session {
            flops_per_step: flops_per_token * config.tokens_per_step() as f64,
            flops_per_second: machine.flops_per_second,
            parameters: footprint.parameters,
            run: run.clone(),
            config,
            data,
            training,
            validation,
            progress,
            stop,
        };
        let learner = Learner::new(gpt, &session.config);
        training::trial::<I>(&learner, &session)?;
        // From here on there is a run, and what it leaves can be resumed.
        let _lock = start.commit()?;
        let journal = journal(&session, place, &directory)?;
        let display = if args.tui { Display::Terminal } else { Display::Plain };
        let running = Run::new(session, optimizer, journal, device.clone(), display);
        running.settle_best();
        let mut outcome = training::launch::<I>(learner, running, Interrupter::new())?;

        let mut summary = Summary::of(&outcome, place, &stats::<I>(device))?;
        summary.write(&run)?;
        if outcome.ending == Ending::Done {
            match quiz(&outcome.learner, &outcome.session, &mut outcome.journal) {
                Ok(score) => summary.quiz = score,
                Err(error) => eprintln!("the questions could not be asked: {error:#}"),
            }
            summary.write(&run)?;
        }
        report::write(&run)?;
        if let Some(measured) = summary.measured() {
            eprintln!("{}", plan.compare(&measured));
        }
        eprintln!("{summary}");
        eprintln!("{}: checkpoints, metrics.jsonl and report.html", run.display());
        if outcome.ending == Ending::Interrupted {
            eprintln!("resume with: {}", resuming(&run, args.device));
        }
        if args.json {
            println!("{}", summary.to_json()?);
        }
        Ok(outcome.ending)
    }
}

/// The state a step begins with: weights, moments, and where the run stands.
type State<I> = (Gpt<Tape<I>>, Optimizer<Offload<I>>, Progress);

/// The state of the run's next step: a checkpoint's, or that of a new run with another run's weights or its own.
fn first_state<I: Offloadable>(directory: &RunDirectory, device: &I::Device) -> anyhow::Result<State<I>> {
    let config = &directory.config;
    if let Some(checkpoint) = &directory.from {
        eprintln!("resuming after step {} of {}", checkpoint.step, checkpoint.path.display());
        for change in &directory.changes {
            eprintln!("changed {change}");
        }
        let (progress, mut optimizer) = training::restore(&checkpoint.path, config, device)?;
        let gpt = runs::weights::load(&checkpoint.path, &config.model, device)?;
        return Ok((optimizer.adopt(gpt)?, optimizer, progress));
    }
    let gpt = match &directory.pretrained {
        Some(pretrained) => pretrained.weights(&config.model, device)?,
        None => Gpt::new(&config.model, config.train.seed, device)?,
    };
    let mut optimizer = Optimizer::placed(config, device);
    Ok((optimizer.adopt(gpt)?, optimizer, Progress::start(config.train.seed)))
}

/// What cannot work is not begun.
pub(super) fn refuse(plan: &Plan) -> anyhow::Result<()> {
    let refusals = plan.refusals();
    if refusals.is_empty() {
        return Ok(());
    }
    Err(BadInput(format!("this run cannot work here:\n  {}", refusals.join("\n  "))).into())
}

/// The run's journal, with the line of this start.
fn journal(session: &Session, place: &Place, directory: &RunDirectory) -> anyhow::Result<Journal> {
    let step = session.progress.step;
    let mut journal = Journal::open(&session.run, step)?;
    journal.write(
        "start",
        &json!({
            "step": step,
            "device": place.name,
            "parameters": session.parameters,
            "tokens_per_step": session.config.tokens_per_step(),
            "device_budget": place.budget,
            "resumed": directory.from.is_some(),
            "began_with": directory.pretrained.as_ref().map(Pretrained::path),
        }),
    )?;
    Ok(journal)
}

/// The command that resumes an interrupted run.
fn resuming(run: &Path, device: DeviceChoice) -> String {
    let run = run.display().to_string();
    let plain = run.chars().all(|letter| letter.is_alphanumeric() || "._-/".contains(letter));
    let run = if plain { run } else { format!("'{}'", run.replace('\'', r"'\''")) };
    if device == DeviceChoice::default() {
        format!("train --resume {run}")
    } else {
        format!("train --resume {run} --device {device}")
    }
}

/// A run that goes on learns from what it learned from.
fn same_data(progress: &mut Progress, training: &TrainingWindows) -> anyhow::Result<()> {
    let found = training.fingerprint()?;
    let expected = *progress.data.get_or_insert(found);
    if expected != found || progress.cursor != training.cursor(progress.step) {
        return Err(BadInput(format!(
            "the training data are not those of the first {} steps: their digest was {expected} and is {found}; bring \
             the old ones back, or begin another run",
            progress.step
        ))
        .into());
    }
    Ok(())
}

fn quiz<B: Backend>(
    learner: &Learner<B>,
    session: &Session,
    journal: &mut Journal,
) -> anyhow::Result<Option<training::QuizScore>> {
    let Session { config, data, .. } = session;
    if config.quiz() == 0 {
        if config.eval.quiz > 0 {
            eprintln!(
                "`eval.quiz` asks about the embedded corpus, which this run did not learn from: nothing was asked"
            );
        }
        return Ok(None);
    }
    let score = training::quiz(&learner.gpt, &data.tokenizer, config.quiz(), config.eval.max_new_tokens)?;
    let mut record = json!(score);
    record["step"] = json!(session.progress.step);
    journal.write("quiz", &record)?;
    Ok(Some(score))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_resumes_a_run_can_be_pasted_into_a_shell() {
        assert_eq!(resuming(Path::new("runs/toy-2"), DeviceChoice::Auto), "train --resume runs/toy-2");
        let quoted = "train --resume 'my run'\\''s place' --device cpu";
        assert_eq!(resuming(Path::new("my run's place"), DeviceChoice::Cpu), quoted);
    }
}
