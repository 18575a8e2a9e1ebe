//! The plan by replay: the run's own pager moves a recorded step's blocks under the planned budgets.
//!
//! The recording is the CPU's; a device that fuses moves somewhat less. On the CPU, bytes are within a percent of a
//! run's (`a_replayed_plan_states_the_bytes_that_a_run_moves`). States on the disk are read and written once, after
//! blocks.

use pager::{Limit, Policy, Recording, Stop};
use pager_replay::{Machine as Speeds, Replay};
use serde::Serialize;

use super::{DiskTraffic, Machine, Plan};

/// Rounds until evictions no longer change.
const ROUNDS: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Replayed {
    /// Device bytes without a limit.
    pub(crate) peak: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) bytes_read: u64,
    /// Bytes of spilled tensors and optimizer state.
    pub(crate) disk_written: u64,
    pub(crate) disk_read: u64,
    /// `None` if the speed of link, arithmetic or a used disk is unknown.
    pub(crate) seconds: Option<f64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct OptimizerBytes {
    on_host: u64,
    on_disk: u64,
}

impl Replayed {
    fn replay(step: &Recording, machine: &Machine, optimizer: OptimizerBytes) -> Result<Self, Stop> {
        let free = Replay::new(step, Limit::NONE, Policy::Planned).run(2)?;
        let peak = free.pager().ledger().resident_peak();
        let budget = machine.device_budget.map_or(Limit::NONE, Limit::bytes);
        let under = || {
            let replay = Replay::new(step, budget, Policy::Planned);
            match machine.host_budget {
                Some(host) if machine.disk_budget > 0 => {
                    replay.above_a_disk(host.saturating_sub(optimizer.on_host))
                }
                _ => replay,
            }
        };

        let states = 2.0 * optimizer.on_disk as f64;
        let states_per_given = states / free.given_steps()[1].max(1) as f64;
        let speeds = speeds(machine).map(|speeds| Speeds { states: states_per_given, ..speeds });
        // If both memories are one, nothing is prefetched.
        let ahead = speeds.filter(|_| !machine.shares_host);
        let played = match ahead {
            Some(speeds) => under().on(speeds).run(ROUNDS)?,
            None => under().run(ROUNDS)?,
        };
        let [moved, disk] = [played.steps(), played.disk_steps()].map(|steps| steps[ROUNDS - 1]);
        let bytes_read = played.read_steps()[ROUNDS - 1];
        let untimed = Self {
            peak,
            bytes_in: moved.bytes_in,
            bytes_out: moved.bytes_out,
            bytes_read,
            disk_written: disk.bytes_out + optimizer.on_disk,
            disk_read: disk.bytes_in + optimizer.on_disk,
            seconds: None,
        };

        let disk_speed_is_unknown =
            untimed.disk_written + untimed.disk_read > 0 && machine.disk_bytes_per_second.is_none();
        let Some(speeds) = speeds.filter(|_| !disk_speed_is_unknown) else { return Ok(untimed) };
        let seconds = match ahead {
            Some(_) => played.elapsed()[ROUNDS - 1].step,
            None => {
                untimed.in_line(step, speeds).max(states / speeds.disk) + disk.total() as f64 / speeds.disk
            }
        };
        Ok(Self { seconds: Some(seconds), ..untimed })
    }

    fn in_line(&self, step: &Recording, speeds: Speeds) -> f64 {
        let moved = (self.bytes_in + self.bytes_out + self.bytes_read) as f64;
        arithmetic(step, Speeds { states: 0.0, ..speeds }) + moved / speeds.link
    }
}

/// `None` if link's or arithmetic's speed is unknown. Device memory costs no time.
fn speeds(machine: &Machine) -> Option<Speeds> {
    let disk = machine.disk_bytes_per_second.map_or(f64::INFINITY, |[write, read]| write.min(read));
    let (link, flops) = (machine.link_bytes_per_second?, machine.flops_per_second?);
    Some(Speeds { link, flops, disk, ..Speeds::INSTANT })
}

fn arithmetic(step: &Recording, speeds: Speeds) -> f64 {
    let free = Replay::new(step, Limit::NONE, Policy::Planned).on(speeds).run(2);
    free.map_or(0.0, |free| free.elapsed()[1].arithmetic)
}

impl Plan {
    /// Replaces estimates by a replay of `step`. Refuses the run if the budgets are too small.
    pub(crate) fn by_replay(mut self, step: &Recording) -> Self {
        let optimizer =
            OptimizerBytes { on_host: self.optimizer_host_bytes, on_disk: self.optimizer_disk_bytes };
        let replayed = match Replayed::replay(step, &self.machine, optimizer) {
            Ok(replayed) => replayed,
            Err(stop) => {
                self.refusals.push(format!(
                    "replayed under these budgets the step ends at an operation that does not fit: {stop:?}; raise \
                     `memory.device_budget` or `memory.host_budget`"
                ));
                return self;
            }
        };

        self.bytes_in_per_step = replayed.bytes_in;
        self.bytes_out_per_step = replayed.bytes_out + replayed.bytes_read;
        let disk = DiskTraffic::from_bytes(&self.machine, [replayed.disk_written, replayed.disk_read]);
        (self.disk_written_per_step, self.disk_read_per_step) = (disk.written, disk.read);
        self.disk_seconds = disk.seconds;
        let slowdown = replayed.seconds.zip(self.compute_seconds).map(|(step, compute)| step / compute);
        (self.slowdown_hidden, self.slowdown_waiting) = (slowdown, slowdown);
        self.replayed = Some(replayed);
        self
    }
}

#[cfg(test)]
mod tests {
    use models::Footprint;
    use runs::config::Config;

    use super::*;

    fn toy() -> Recording {
        let bytes = include_bytes!("../../../backend-offload/pager/replay/traces/toy.trace");
        Recording::from_bytes(bytes).expect("a recording")
    }

    fn planned(machine: &Machine) -> Plan {
        let config = Config::load("toy", &[]).expect("a preset");
        let footprint = Footprint::of(&config.model).expect("it was checked");
        Plan::new(&config, &footprint, machine).by_replay(&toy())
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_replayed_plan_has_the_bytes_that_the_pager_moves_under_its_budgets() {
        let machine = Machine { device_budget: Some(16 * MIB), ..Machine::default() };
        let plan = planned(&machine);
        let step = toy();
        let played =
            Replay::new(&step, Limit::bytes(16 * MIB), Policy::Planned).run(ROUNDS).expect("it fits");
        let moved = played.steps()[ROUNDS - 1];
        assert!(moved.bytes_in > 30 * MIB);
        assert_eq!((plan.bytes_in_per_step, plan.bytes_out_per_step), (moved.bytes_in, moved.bytes_out));
        assert_eq!(plan.refusals(), [""; 0]);
        let text = plan.to_string();
        assert!(
            text.contains(" out per step (replayed)") && text.contains("48.50 MiB on the device"),
            "{text}"
        );
        assert!(!text.contains("(estimated)"), "{text}");
    }

    #[test]
    fn a_step_that_fits_moves_nothing_and_takes_as_long_as_its_operations() {
        let (link, flops) = (Some(25e9), Some(80e12));
        let machine = Machine { link_bytes_per_second: link, flops_per_second: flops, ..Machine::default() };
        let plan = planned(&machine);
        assert_eq!((plan.bytes_in_per_step, plan.bytes_out_per_step), (0, 0));
        assert!(plan.replayed.is_some_and(|replayed| replayed.seconds.is_some()), "{plan}");
        let bytes = include_bytes!("../../../backend-offload/pager/replay/traces/gpt-124m-16k.trace");
        let step = Recording::from_bytes(bytes).expect("a recording");
        let replayed = Replayed::replay(&step, &machine, OptimizerBytes::default()).expect("it fits");
        assert_eq!((replayed.bytes_in, replayed.bytes_out), (0, 0));
        let operations = arithmetic(&step, speeds(&machine).expect("both are known"));
        let read = replayed.bytes_read as f64 / 25e9;
        let seconds = replayed.seconds.expect("both speeds are known");
        assert!(operations > 0.01 && (seconds - operations - read).abs() < 1e-6 * seconds, "{replayed:?}");
        let unmeasured = planned(&Machine::default());
        assert!(unmeasured.replayed.is_some_and(|replayed| replayed.seconds.is_none()), "{unmeasured}");
    }

    #[test]
    fn a_replay_spills_to_the_disk_and_has_no_time_without_the_disks_speed() {
        let machine = Machine {
            device_budget: Some(13 * MIB),
            host_budget: Some(13 * MIB),
            disk_budget: 100 * MIB,
            link_bytes_per_second: Some(25e9),
            flops_per_second: Some(80e12),
            ..Machine::default()
        };
        let plan = planned(&machine);
        assert!(plan.disk_written_per_step > 20 * MIB && plan.disk_read_per_step > 20 * MIB, "{plan}");
        assert!(plan.replayed.is_some_and(|replayed| replayed.seconds.is_none()), "{plan}");
        let measured = planned(&Machine { disk_bytes_per_second: Some([1e9, 2e9]), ..machine });
        let seconds = measured.replayed.and_then(|replayed| replayed.seconds).expect("all speeds are known");
        let bytes = measured.disk_written_per_step + measured.disk_read_per_step;
        assert!(seconds > bytes as f64 / 1e9, "{measured}");
    }

    fn with_host_optimizer(machine: &Machine) -> (Plan, Recording) {
        let bytes = include_bytes!("../../../backend-offload/pager/replay/traces/streamed.trace");
        let step = Recording::from_bytes(bytes).expect("a recording");
        let settings = [
            "memory.optimizer=host",
            "model.compute=bf16",
            "train.optimizer=adamw",
            "train.recompute=1",
            "model.n_layer=6",
            "model.n_embd=512",
            "tokenizer.kind=bytes",
            "model.vocab_size=264",
            "train.micro_batch=1",
            "train.accumulate=1",
            "train.sequence=15",
        ];
        let config = Config::load("toy", &settings.map(str::to_owned)).expect("a preset");
        let footprint = Footprint::of(&config.model).expect("it was checked");
        (Plan::new(&config, &footprint, machine).by_replay(&step), step)
    }

    #[test]
    fn states_on_the_disk_are_among_the_replayed_bytes_and_times() {
        let least = Machine { host_budget: Some(1), disk_budget: 1 << 40, ..Machine::default() };
        let on_host = with_host_optimizer(&least).0.optimizer_host_bytes;
        let blocks = 8 * MIB;
        let machine =
            Machine { device_budget: Some(24 * MIB), host_budget: Some(on_host + blocks), ..least.clone() };
        let (plan, step) = with_host_optimizer(&machine);
        let states = plan.optimizer_disk_bytes;
        let room = on_host + blocks - plan.optimizer_host_bytes;
        let played = Replay::new(&step, Limit::bytes(24 * MIB), Policy::Planned).above_a_disk(room);
        let sunk = played.run(ROUNDS).expect("it fits").disk_steps()[ROUNDS - 1];
        assert!(states > 200 * MIB && sunk.bytes_out > MIB, "{states} and {sunk:?}");
        assert_eq!(
            (plan.disk_written_per_step, plan.disk_read_per_step),
            (sunk.bytes_out + states, sunk.bytes_in + states)
        );

        let fast = Machine {
            link_bytes_per_second: Some(25e9),
            flops_per_second: Some(80e12),
            disk_bytes_per_second: Some([1e9, 2e9]),
            host_budget: Some(on_host + 100 * MIB),
            ..least
        };
        for shares_host in [false, true] {
            let seconds = |machine: Machine| {
                let (plan, _) = with_host_optimizer(&Machine { shares_host, ..machine });
                let moved = plan.disk_written_per_step + plan.disk_read_per_step;
                (plan.replayed.expect("it fits").seconds, moved)
            };
            let (below, moved) = seconds(fast.clone());
            let (roomy, nothing) = seconds(Machine { host_budget: Some(1 << 40), ..fast.clone() });
            let (below, roomy) = (below.expect("known"), roomy.expect("known"));
            let disk = moved as f64 / 1e9;
            assert_eq!(nothing, 0);
            assert!(disk > 10.0 * roomy, "{disk} {roomy}");
            assert!(below > 0.999 * disk && below < 1.001 * (disk + roomy), "{below} {disk} {roomy}");
            let unmeasured = Machine { disk_bytes_per_second: None, ..fast.clone() };
            assert_eq!(seconds(unmeasured), (None, moved));
        }
    }

    #[test]
    fn copies_in_line_are_waited_for_where_the_device_is_host_memory() {
        let machine = Machine {
            device_budget: Some(16 * MIB),
            shares_host: true,
            link_bytes_per_second: Some(1e6),
            flops_per_second: Some(80e12),
            ..Machine::default()
        };
        let plan = planned(&machine);
        let seconds = plan.replayed.and_then(|replayed| replayed.seconds).expect("both speeds are known");
        let bytes = plan.bytes_in_per_step + plan.bytes_out_per_step;
        assert!((seconds / (bytes as f64 / 1e6) - 1.0).abs() < 1e-3, "{seconds}");
    }

    #[test]
    fn a_step_that_cannot_be_replayed_is_refused_and_its_figures_stay_estimates() {
        let plan = planned(&Machine { device_budget: Some(MIB), ..Machine::default() });
        assert!(plan.refusals().iter().any(|why| why.contains("does not fit")), "{:?}", plan.refusals());
        assert!(plan.replayed.is_none() && plan.to_string().contains("(estimated)"), "{plan}");
    }
}
