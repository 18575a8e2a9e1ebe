//! One attempt at a run: opened at its last state, trained to its end, and concluded.

use std::env;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use backend_offload::{Offload, Offloadable, Stats, stats, trim};
use burn_train::Interrupter;
use models::{Footprint, Reader};
use runs::config::{Amount, Config, ExchangeKind, PlacementKind};
use runs::device::Place;
use runs::directory::{Lock, RunDirectory};
use runs::{BadInput, Pretrained};
use serde_json::json;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use super::lost_ranks::LostRanks;
use super::{Args, resume_command};
use crate::data::{self, Data, TrainingWindows, ValidationWindows};
use crate::exit::Ending;
use crate::journal::Journal;
use crate::optimizer::{GatherSession, Optimizer};
use crate::parameters::learning;
use crate::plan::{self, Plan};
use crate::ranks::Ranks;
use crate::summary::{self, Summary, weights_digest};
use crate::training::{
    self, Display, Exchange, Failed, Learner, Outcome, Progress, Session, Speed, Tape, Trainer, Wear,
    first_state,
};
use crate::{machine, report};

/// This process's part in a run; restarts when ranks are lost.
pub(super) struct Part<'a> {
    pub(super) args: &'a Args,
    pub(super) directory: RunDirectory,
    /// The plan and the device's matmul FLOP/s, on rank 0 only.
    pub(super) planned: Option<(Plan, Option<f64>)>,
    pub(super) surveyed: Stats,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) lost_ranks: LostRanks,
}

struct Opened<I: Offloadable> {
    learner: Learner<Tape<I>>,
    optimizer: Optimizer<Offload<I>>,
    exchange: Exchange,
    session: Session,
    journal: Journal,
    lock: Option<Lock>,
}

impl Part<'_> {
    pub(super) fn attempt<I: Offloadable>(
        &mut self,
        mut ranks: Ranks,
        device: &I::Device,
        place: &Place,
    ) -> Result<Ending, Box<Failed>> {
        let opened = match self.open::<I>(&mut ranks, device, place) {
            Ok(Some(opened)) => opened,
            Ok(None) => {
                ranks.end();
                return Ok(Ending::Done);
            }
            Err(error) => return Err(Box::new(Failed { error, ranks, saved: false })),
        };

        let Opened { learner, optimizer, exchange, session, journal, lock } = opened;
        let display = match (ranks.leads(), self.args.tui) {
            (false, _) => Display::Silent,
            (true, false) => Display::Plain { every: self.args.log_every },
            (true, true) => Display::Terminal,
        };

        let mut trainer =
            Trainer::new(session, optimizer, (ranks, exchange), journal, device.clone(), display);
        trainer.settle_best();
        let mut outcome = training::launch::<I>(learner, trainer, Interrupter::new())?;
        if let Err(error) = self.conclude::<I>(&mut outcome, device, place) {
            return Err(outcome.failed(error));
        }
        drop(lock);
        outcome.ranks.end();
        Ok(outcome.ending)
    }

    /// `None` if the run has taken all steps.
    fn open<I: Offloadable>(
        &mut self,
        ranks: &mut Ranks,
        device: &I::Device,
        place: &Place,
    ) -> anyhow::Result<Option<Opened<I>>> {
        self.lost_ranks.restart_from_checkpoint(&mut self.directory, &mut self.planned, ranks)?;
        let (args, directory, planned, stop) = (self.args, &self.directory, &self.planned, &self.stop);
        let (run, mut config) = (directory.path.clone(), directory.config.clone());
        let footprint = Footprint::of(&config.model)?;
        ranks.divide(config.ranks.pipeline)?;
        let mut exchange = Exchange::choose(&config.ranks, config.memory.shard.has_owners(), ranks);
        exchange.check_shares(config.train.accumulate, ranks)?;
        let checkpoint = directory.from.as_ref();
        // Steps of epochs follow from the data.
        let is_done = |step: u64| step >= config.train.steps && config.train.epochs.is_none();
        if let Some(done) = checkpoint.filter(|checkpoint| is_done(checkpoint.step)) {
            // A run stopped after its last checkpoint lacks its summary.
            if let Some(summary) = summary::finished_summary(&run, done.step) {
                if ranks.leads() {
                    print_done(&run, done.step, args.json.then_some(&summary));
                }
                return Ok(None);
            }
        }

        let mut start = None;
        let prepare = || data::prepare(&config, &run, checkpoint, stop);
        let mut data = None;
        ranks.led(|| {
            start = Some(directory.start()?);
            if let Some(pretrained) = &directory.pretrained {
                pretrained.save_vocabulary(&run)?;
            }
            data = Some(prepare()?);
            Ok(Vec::new())
        })?;
        // Rank 0 has prepared it.
        let data = data.map_or_else(prepare, Ok)?;
        ask_nothing_without_template(&mut config, &data, ranks.leads());
        let mut training = TrainingWindows::open(&config, &data)?;
        config.set_sequences(training.sequences());
        training.set_steps(config.train.steps);
        let training = Arc::new(training);
        let validation = validation_windows(&config, &data, ranks, stop)?;
        if ranks.leads() {
            describe(&config, &training, &validation, &data);
            warn_of_other_texts(directory, &data);
        }

        let budgets = machine::budgets::<I>(device, place, ranks.world());
        let plan = Plan::new(&config, &footprint, &budgets);
        let wear = open_wear::<I>(&config, &run, device, plan.optimizer_disk_bytes, ranks)?;
        let (gpt, optimizer, mut progress) =
            first_state::<I>(directory, device, (&mut *ranks, &mut exchange), plan.states_on_disk)?;
        // Frees memory of building the model.
        trim::<I>(device);
        runs::pages::give_back();
        same_data(&mut progress, &training)?;
        forget_other_best(&mut progress, &validation, ranks.leads())?;
        let flops_per_token = plan::flops_per_token(&config, &footprint, false);
        let mut session = Session {
            speed: Speed {
                flops_per_step: flops_per_token * config.tokens_per_step() as f64,
                flops_per_second: planned.as_ref().and_then(|(_, speed)| *speed),
            },
            parameters: footprint.parameters,
            run: ranks.folder(&run),
            config,
            data,
            training,
            validation,
            progress,
            wear,
            stop: Arc::clone(stop),
        };
        let chosen = planned.as_ref().map_or(&plan, |(planned, _)| planned);
        let together = match &optimizer.window {
            Some(_) => number_of_rank_0(chosen.together, ranks)?,
            None => chosen.together,
        };
        let learner = Learner::new(gpt, &session.config).together(together);
        let mut lock = None;
        let window = optimizer.window.as_ref();
        if window.is_some() {
            let gathering = GatherSession::begin(window, ranks)?;
            gathering.end(training::trial::<I>(&learner, &session, true), ranks)?;
        }
        let is_whole = !ranks.form_pipelines();
        if !is_whole {
            training::trial_of_stages::<I>(&learner, &session, ranks)?;
        }
        ranks.led(|| {
            if window.is_none() {
                training::trial::<I>(&learner, &session, is_whole)?;
            }
            // The run can now be resumed.
            lock = start.take().map(|start| start.commit(&session.config)).transpose()?;
            Ok(Vec::new())
        })?;
        ranks.watch(Duration::from_secs(args.ranks.rank_timeout));
        let counter = stats::<I>(device).bytes_to_disk;
        session.wear.begin(counter);
        let planned = (chosen, together, ranks.world());
        let written = session.wear.written(counter);
        let mut journal = journal(&session, place, (args, directory), planned, written)?;
        self.lost_ranks.write_down(session.progress.step, ranks, &mut journal)?;
        Ok(Some(Opened { learner, optimizer, exchange, session, journal, lock }))
    }

    /// Checks first that all ranks have equal weights.
    fn conclude<I: Offloadable>(
        &self,
        outcome: &mut Outcome<I>,
        device: &I::Device,
        place: &Place,
    ) -> anyhow::Result<()> {
        let stats = stats::<I>(device);
        let gathering = GatherSession::begin(outcome.window.as_ref(), &mut outcome.ranks)?;
        if outcome.ranks.form_pipelines() {
            outcome.peaks = outcome.peaks.of_all(&mut outcome.ranks)?;
        }
        let digest = weights_digest(&outcome.learner, &outcome.session.config, &mut outcome.ranks);
        let summary = digest.map(|digest| Summary::new(outcome, place, digest, &stats.since(&self.surveyed)));
        let mut summary = gathering.end(summary, &mut outcome.ranks)?;
        let (step, wear) = (outcome.session.progress.step, outcome.session.wear);
        let written = wear.written(stats.bytes_to_disk);
        if written > 0
            && let Err(error) = outcome.journal.write("disk", &json!({ "step": step, "drive_wear": written }))
        {
            eprintln!("{error:#}: a run that goes on will not know of the last bytes written to the disk");
        }

        outcome.ranks.must_have_same_weights(&summary.weights_sha256)?;
        let (Some((plan, _)), args, run) = (&self.planned, self.args, &self.directory.path) else {
            let all_ranks_generate = training::all_ranks_generate(outcome.window.as_ref(), &outcome.ranks);
            if all_ranks_generate && outcome.ending == Ending::Done {
                // As on rank 0, it fails no run.
                let _score = quiz::<I>(outcome);
            }
            return Ok(());
        };
        summary.link_bytes_per_second = plan.machine.link_bytes_per_second;
        // Other ranks may wait in the quiz.
        let written = summary.write(run);
        if outcome.ending == Ending::Done {
            match quiz::<I>(outcome) {
                Ok(score) => summary.quiz = score,
                Err(error) => eprintln!("the quiz could not be run: {error:#}"),
            }
            summary.write(run)?;
        }
        written?;
        report::write(run)?;

        if let Some(measured) = summary.measured() {
            eprintln!("{}", plan.compare(&measured));
        }
        eprintln!("{summary}");
        eprintln!("{}: checkpoints, metrics.jsonl and report.html", run.display());
        if outcome.ending == Ending::Interrupted {
            eprintln!("resume with: {}", resume_command(run, args.device, &args.ranks));
        }
        if args.json {
            println!("{}", summary.to_json()?);
        }
        Ok(())
    }
}

/// Ranks that gather weights need equal groups.
fn number_of_rank_0(own: usize, ranks: &mut Ranks) -> anyhow::Result<usize> {
    Ok(ranks.number(own as u64)? as usize)
}

fn print_done(run: &Path, steps: u64, summary: Option<&String>) {
    eprintln!("{} is done with its {steps} steps; raise train.steps by --set to train on", run.display());
    if let Some(summary) = summary {
        print!("{summary}");
    }
}

/// Presets ask questions; a vocabulary for plain text has no template for them.
fn ask_nothing_without_template(config: &mut Config, data: &Data, leads: bool) {
    if config.eval.questions.is_empty() || data.tokenizer.has_chat() {
        return;
    }
    config.eval.questions.clear();
    if leads {
        eprintln!("`eval.questions` are left out: the vocabulary has no chat template");
    }
}

/// Each rank looks its own copy up.
fn validation_windows(
    config: &Config,
    data: &Data,
    ranks: &mut Ranks,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<Arc<ValidationWindows>> {
    if data.indexes.is_some() && ranks.leads() {
        eprintln!("looking the validation text up");
    }
    let windows = ValidationWindows::open(config, data, data.indexes.as_ref(), config.eval.sequences, stop);
    let all_have = ranks.all_succeeded(windows.is_ok())?;
    let windows = windows?;
    anyhow::ensure!(all_have, "another rank cannot read the validation data; its own messages say why");
    Ok(Arc::new(windows))
}

fn warn_of_other_texts(directory: &RunDirectory, data: &Data) {
    if let (Some(pretrained), Some(indexes)) = (&directory.pretrained, &data.indexes)
        && pretrained.looks_up()
        && let Err(other) = indexes.check(pretrained.path())
    {
        eprintln!("the weights come from a run with other indexed texts: {other:#}");
    }
}

fn describe(config: &Config, training: &TrainingWindows, validation: &ValidationWindows, data: &Data) {
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
    let (steps, per_step) = (config.train.steps, config.train.micro_batch * config.train.accumulate);
    let passes = (steps * per_step as u64) as f64 / training.sequences().max(1) as f64;
    eprintln!("{steps} steps of {per_step} sequences: {passes:.1} passes over the training text");
    let warm_up = config.ranks.warm_up;
    if config.ranks.exchange == ExchangeKind::OneBit && warm_up >= steps {
        eprintln!("no step exchanges one bit: the first `ranks.warm_up` = {warm_up} are exact");
    }
    let sources = training.sources();
    for source in sources.iter().filter(|_| sources.len() > 1) {
        let taken = source.share * (steps * per_step as u64) as f64;
        eprintln!(
            "  {:.1} % from {}: {} sequences, {:.1} passes over its {} tokens",
            100.0 * source.share,
            source.name,
            taken.round(),
            taken / source.sequences.max(1) as f64,
            source.tokens
        );
    }

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

/// Call before the optimizer's states are on the disk. Fails on all ranks if one may take no step.
fn open_wear<I: Offloadable>(
    config: &Config,
    run: &Path,
    device: &I::Device,
    states: u64,
    ranks: &mut Ranks,
) -> anyhow::Result<Wear> {
    let limit = config.memory.max_disk_writes.as_ref().map(Amount::value);
    let wear = Wear::open(&ranks.folder(run), limit, stats::<I>(device).bytes_to_disk, states)?;
    let refusal = wear.refusal();
    if limit.is_some() && !ranks.all_succeeded(refusal.is_none())? {
        let other =
            "another rank may not write as much to its disk as this run would; its own messages say more";
        return Err(BadInput(refusal.unwrap_or_else(|| other.to_owned())).into());
    }
    Ok(wear)
}

fn journal(
    session: &Session,
    place: &Place,
    (args, directory): (&Args, &RunDirectory),
    (plan, together, ranks): (&Plan, usize, usize),
    drive_wear: u64,
) -> anyhow::Result<Journal> {
    let (step, memory) = (session.progress.step, &session.config.memory);
    let on_host = memory.optimizer == PlacementKind::Host;
    let mut journal = Journal::open(&session.run, step)?;
    if session.config.report.tensorboard {
        journal = journal.with_tensorboard(&session.run, step)?;
    }
    journal.write(
        "start",
        &json!({
            "step": step,
            "date": now(),
            "version": env!("CARGO_PKG_VERSION"),
            "command": env::args().collect::<Vec<_>>().join(" "),
            "config": args.config.config,
            "device": place.name,
            "parameters": session.parameters,
            "learning": learning(&session.config),
            "tokens_per_step": session.config.tokens_per_step(),
            "together": together,
            "ranks": ranks,
            "device_budget": place.budget,
            "working_set": plan.working_set,
            "sent_per_step": plan.bytes_sent_per_step,
            "optimizer_on": memory.optimizer,
            "optimizer_state": on_host.then_some(memory.optimizer_state),
            "device_blocks": on_host.then_some(memory.device_blocks),
            "resumed": directory.from.is_some(),
            "began_with": directory.pretrained.as_ref().map(Pretrained::path),
            "drive_wear": drive_wear,
        }),
    )?;
    Ok(journal)
}

fn now() -> String {
    let mut text = String::new();
    _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

/// A resumed run must have the training data it began with.
fn same_data(progress: &mut Progress, training: &TrainingWindows) -> anyhow::Result<()> {
    let found = training.fingerprint()?;
    if progress.step == 0 {
        // Weights that have learned nothing here: data and seed are new.
        (progress.data, progress.cursor) = (Some(found), training.cursor(0));
    }
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

/// Losses over other sequences say nothing about the best one so far.
fn forget_other_best(
    progress: &mut Progress,
    validation: &ValidationWindows,
    leads: bool,
) -> anyhow::Result<()> {
    let found = validation.fingerprint()?;
    let differs = progress.validation.replace(found).is_some_and(|measured| measured != found);
    let forgotten = if differs { progress.best.take() } else { None };
    if let Some(best) = forgotten.filter(|_| leads) {
        eprintln!(
            "the validation sequences are not those over which step {} had the lowest loss: the next evaluation counts as \
             the best so far",
            best.step
        );
    }
    Ok(())
}

fn quiz<I: Offloadable>(outcome: &mut Outcome<I>) -> anyhow::Result<Option<training::QuizScore>> {
    let Outcome { learner, session, journal, ranks, window, .. } = outcome;
    let Session { config, data, .. } = session;
    if config.quiz() == 0 {
        if config.eval.quiz > 0 && ranks.leads() {
            eprintln!(
                "`eval.quiz` asks about the embedded corpus, which this run did not learn from: nothing was asked"
            );
        }
        return Ok(None);
    }

    let (count, length) = (config.quiz(), config.eval.max_new_tokens);
    let ask = |reader: &mut dyn Reader| training::quiz(&learner.gpt, reader, data, count, length);
    let passes = 2 * training::most_passes(count, length);
    let score = training::generate_on_ranks(learner, (window.as_ref(), passes), ranks, ask)?;
    if let Some(score) = score {
        let mut record = json!(score);
        record["step"] = json!(session.progress.step);
        journal.write("quiz", &record)?;
    }
    Ok(score)
}
