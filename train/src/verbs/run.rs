//! `train run`: the whole of a training run, top to bottom.

use std::io::{IsTerminal, stdin, stdout};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, ensure};
use backend_offload::{Offload, Offloadable, stats};
use burn::tensor::backend::Backend;
use burn_train::Interrupter;
use models::Footprint;
use runs::BadInput;
use runs::Pretrained;
use runs::config::Config;
use runs::device::{self, DeviceChoice, Place, Setup, Work};
use runs::directory::{Beginning, Resume, RunDirectory, Start};
use serde_json::json;

use super::ConfigArgs;
use super::plan::epoch;
use crate::data::{self, Data, TrainingWindows, ValidationWindows};
use crate::exit::Ending;
use crate::journal::Journal;
use crate::machine;
use crate::optimizer::check_eight_bits;
use crate::plan::{self, Plan};
use crate::ranks::{self, RankArgs, Ranks};
use crate::summary::{self, Summary};
use crate::training::{
    self, Display, Learner, Outcome, Progress, Run, Session, computes_nothing, first_state,
};
use crate::{interrupt, report};

#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// The run's directory; by default `runs/` and the configuration's name.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Resume a run: `auto` for the latest checkpoint in the run's directory, or a path to a run or a checkpoint.
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
    #[command(flatten)]
    ranks: RankArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Ending> {
    if args.tui && !(stdin().is_terminal() && stdout().is_terminal()) {
        return Err(BadInput("--tui needs a terminal; leave it out for plain lines".to_owned()).into());
    }
    let ConfigArgs { config, mut set } = args.config.clone();
    if args.overfit_one_batch {
        set.push("train.overfit_one_batch=true".to_owned());
    }
    let beginning = Beginning { resume: args.resume.as_ref(), pretrained: args.from.as_deref() };
    let find = |out: Option<&Path>| RunDirectory::find(config.as_deref(), &set, out, beginning);
    if !args.dry_run
        && let Some(ended) = ranks::launch(&args.ranks, || find(args.out.as_deref()))?
    {
        return Ok(ended);
    }
    let stop = interrupt::flag("stopping after this step")?;
    let mut ranks = Ranks::open()?;
    interrupt::hear_launcher(&stop)?;
    if args.tui && !ranks.is_alone() {
        return Err(BadInput("--tui is for one process; leave it out for plain lines".to_owned()).into());
    }
    let directory = ranks.same_directory(args.out.as_deref(), find)?;
    let shared = sharing(args, &ranks)?;
    let mut setup = Setup::from(&directory.config).among(ranks.local().1, shared[1]);
    if args.dry_run {
        setup = setup.without_disk();
    }
    device::with(args.device, &setup, Training { args, directory, ranks, shared, stop })
}

struct Training<'a> {
    args: &'a Args,
    directory: RunDirectory,
    ranks: Ranks,
    /// Ranks that are planned for, and those of them on this host.
    shared: [usize; 2],
    stop: Arc<AtomicBool>,
}

impl Work for Training<'_> {
    type Output = Ending;

    fn on<I: Offloadable>(self, device: &I::Device, place: &Place) -> anyhow::Result<Ending> {
        let Self { args, mut directory, mut ranks, shared, stop } = self;
        let run = directory.path.clone();
        ranks.must_be_alike(&place.kind)?;
        let mut planned = None;
        let config = ranks.led(|| {
            let (plan, speed) = plan_of::<I>(args, &mut directory, device, place, shared)?;
            planned = Some((plan, speed));
            Ok(directory.config.to_json().into_bytes())
        })?;
        if args.dry_run {
            ranks.end();
            return Ok(Ending::Done);
        }
        if !ranks.leads() {
            let text = String::from_utf8(config).context("reading rank 0's configuration")?;
            directory.config = Config::from_text(&text, "rank 0's configuration", &[])?;
        }
        // Measuring the machine moves bytes, too: as many as there was time for.
        let surveyed = stats::<I>(device);
        let config = directory.config.clone();
        let footprint = Footprint::of(&config.model)?;
        ranks.note_idle(&config)?;
        ranks.exchange_by(&config.ranks);
        let checkpoint = directory.from.as_ref();
        if let Some(done) = checkpoint.filter(|checkpoint| checkpoint.step >= config.train.steps) {
            // A run that was stopped behind its last checkpoint has yet to say what it came to.
            if let Some(summary) = summary::of_finished(&run, done.step) {
                if ranks.leads() {
                    say_done(&run, done.step, args.json.then_some(&summary));
                }
                ranks.end();
                return Ok(Ending::Done);
            }
        }

        let mut start = None;
        let prepare = || data::prepare(&config, &run, checkpoint.map(|from| from.path.as_path()), &stop);
        let mut data = None;
        ranks.led(|| {
            start = Some(directory.start()?);
            if let Some(pretrained) = &directory.pretrained {
                pretrained.save_vocabulary(&run)?;
            }
            data = Some(prepare()?);
            Ok(Vec::new())
        })?;
        // Others find what rank 0 has prepared.
        let data = data.map_or_else(prepare, Ok)?;
        let training = Arc::new(TrainingWindows::open(&config, &data)?);
        let validation = validation_windows(&config, &data, &mut ranks, &stop)?;
        if ranks.leads() {
            describe(&training, &validation, &data);
            if let (Some(pretrained), Some(indexes)) = (&directory.pretrained, &data.indexes)
                && pretrained.looks_up()
                && let Err(other) = indexes.check(pretrained.path())
            {
                eprintln!("the weights come from a run with other indexed texts: {other:#}");
            }
        }

        let budgets = machine::budgets::<I>(device, place, ranks.world());
        let on_disk = Plan::new(&config, &footprint, &budgets).states_on_disk;
        let (gpt, optimizer, mut progress) = first_state::<I>(&directory, device, &mut ranks, on_disk)?;
        same_data(&mut progress, &training)?;
        let flops_per_token = footprint.flops_per_token(config.sequence(), false);
        let session = Session {
            flops_per_step: flops_per_token * config.tokens_per_step() as f64,
            flops_per_second: planned.as_ref().and_then(|(_, speed)| *speed),
            parameters: footprint.parameters,
            run: ranks.folder(&run),
            config,
            data,
            training,
            validation,
            progress,
            stop,
            common_every: ranks.common_every(),
        };
        let learner = Learner::new(gpt, &session.config);
        let mut lock = None;
        ranks.led(|| {
            training::trial::<I>(&learner, &session)?;
            // From here on there is a run, and what it leaves can be resumed.
            lock = start.take().map(Start::commit).transpose()?;
            Ok(Vec::new())
        })?;
        ranks.watch(Duration::from_secs(args.ranks.rank_timeout));
        let journal = journal(&session, place, &directory)?;
        let display = match (ranks.leads(), args.tui) {
            (false, _) => Display::Silent,
            (true, false) => Display::Plain,
            (true, true) => Display::Terminal,
        };
        let running = Run::new(session, optimizer, ranks, journal, device.clone(), display);
        running.settle_best();
        let mut outcome = training::launch::<I>(learner, running, Interrupter::new())?;

        let summary = Summary::of(&outcome, place, &stats::<I>(device).since(&surveyed))?;
        let theirs = outcome.ranks.led(|| Ok(summary.weights_sha256.clone().into_bytes()))?;
        let same = outcome.ranks.all(theirs == summary.weights_sha256.as_bytes())?;
        ensure!(same, "the ranks ended with different weights: their devices compute differently");
        if let Some((plan, _)) = planned {
            conclude(args, &run, &plan, &mut outcome, summary)?;
        }
        drop(lock);
        outcome.ranks.end();
        Ok(outcome.ending)
    }
}

/// Says that a run has nothing left to do, and prints its summary where that is asked for.
fn say_done(run: &Path, steps: u64, summary: Option<&String>) {
    eprintln!("{} is done with its {steps} steps; raise train.steps by --set to train on", run.display());
    if let Some(summary) = summary {
        print!("{summary}");
    }
}

/// Validation sequences. Rank 0 alone measures, so the other ranks look no text up.
fn validation_windows(
    config: &Config,
    data: &Data,
    ranks: &mut Ranks,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<Arc<ValidationWindows>> {
    let windows =
        |indexes| ValidationWindows::open(config, data, indexes, config.eval.sequences, stop).map(Arc::new);
    let mut looked_up = None;
    ranks.led(|| {
        if data.indexes.is_some() {
            eprintln!("looking the validation text up");
        }
        looked_up = Some(windows(data.indexes.as_ref())?);
        Ok(Vec::new())
    })?;
    Ok(looked_up.map_or_else(|| windows(None), Ok)?)
}

/// Ranks of the run, and those of them on this host. A dry run is alone and plans for those that would be started.
fn sharing(args: &Args, ranks: &Ranks) -> anyhow::Result<[usize; 2]> {
    Ok(match args.ranks.ranks {
        Some(asked) if args.dry_run => [asked, args.ranks.most_on_a_host(asked)?],
        _ => [ranks.world(), ranks.local().0],
    })
}

/// The plan of a run that may begin, which settles where its optimizer is; and the device's speed in products.
fn plan_of<I: Offloadable>(
    args: &Args,
    directory: &mut RunDirectory,
    device: &I::Device,
    place: &Place,
    shared: [usize; 2],
) -> anyhow::Result<(Plan, Option<f64>)> {
    let footprint = Footprint::of(&directory.config.model)?;
    let machine = machine::survey::<I>(device, place, &directory.config, &directory.path, shared)?;
    directory.config = plan::placed(&directory.config, &footprint, &machine);
    // With another run's weights comes its vocabulary, which is not there yet.
    let data = if directory.pretrained.is_none() { epoch(&directory.config)? } else { None };
    let plan = Plan::new(&directory.config, &footprint, &machine).over(data);
    eprintln!("{plan}");
    if args.dry_run && args.json {
        println!("{}", serde_json::to_string_pretty(&plan)?);
    }
    match refuse(&plan) {
        Err(reasons) if computes_nothing() => eprintln!("{reasons:#}\nnothing is computed, so it goes on"),
        refusal => refusal?,
    }
    check_eight_bits::<Offload<I>>(&directory.config, device)?;
    Ok((plan, machine.flops_per_second))
}

/// Ends a run: asks the quiz, writes the summary and the report, and prints both.
fn conclude<I: Offloadable>(
    args: &Args,
    run: &Path,
    plan: &Plan,
    outcome: &mut Outcome<I>,
    mut summary: Summary,
) -> anyhow::Result<()> {
    summary.link_bytes_per_second = plan.machine.link_bytes_per_second;
    summary.write(run)?;
    if outcome.ending == Ending::Done {
        match quiz(&outcome.learner, &outcome.session, &mut outcome.journal) {
            Ok(score) => summary.quiz = score,
            Err(error) => eprintln!("the quiz could not be run: {error:#}"),
        }
        summary.write(run)?;
    }
    report::write(run)?;
    if let Some(measured) = summary.measured() {
        eprintln!("{}", plan.compare(&measured));
    }
    eprintln!("{summary}");
    eprintln!("{}: checkpoints, metrics.jsonl and report.html", run.display());
    if outcome.ending == Ending::Interrupted {
        eprintln!("resume with: {}", resuming(run, args.device, &args.ranks));
    }
    if args.json {
        println!("{}", summary.to_json()?);
    }
    Ok(())
}

/// Prints the size of the training and validation data.
fn describe(training: &TrainingWindows, validation: &ValidationWindows, data: &Data) {
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
    if let (Some(training), Some(measured)) = (training.hits(), validation.hits()) {
        let copies = if validation.know_copies() {
            ""
        } else {
            "; nothing marks where documents begin, so validation text was not checked for copies of it"
        };
        eprintln!(
            "the looked-up token is the next one for {:.1} % of the first training and {:.1} % of the first validation \
             sequences' tokens{copies}",
            100.0 * training,
            100.0 * measured
        );
    }
}

/// Refuses a run that cannot work, before it starts.
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
fn resuming(run: &Path, device: DeviceChoice, ranks: &RankArgs) -> String {
    let device = (device != DeviceChoice::default()).then(|| ("--device", device.to_string()));
    let run = ("--resume", run.display().to_string());
    [run].into_iter().chain(device).chain(ranks.given()).fold(
        "train".to_owned(),
        |command, (option, value)| {
            let plain = value.chars().all(|letter| letter.is_alphanumeric() || "._-/:,".contains(letter));
            let value = if plain { value } else { format!("'{}'", value.replace('\'', r"'\''")) };
            format!("{command} {option} {value}")
        },
    )
}

/// A resumed run must have the training data it began with.
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
    let score = training::quiz(&learner.gpt, data, config.quiz(), config.eval.max_new_tokens)?;
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
        assert_eq!(
            resuming(Path::new("runs/toy-2"), DeviceChoice::Auto, &RankArgs::default()),
            "train --resume runs/toy-2"
        );
        let ranks = RankArgs {
            ranks: Some(4),
            hosts: Some("a:2,b:2".to_owned()),
            restarts: 3,
            ..RankArgs::default()
        };
        let quoted =
            "train --resume 'my run'\\''s place' --device cuda:1 --ranks 4 --hosts a:2,b:2 --restarts 3";
        assert_eq!(resuming(Path::new("my run's place"), DeviceChoice::Cuda(Some(1)), &ranks), quoted);
    }
}
