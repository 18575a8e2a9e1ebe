//! The plan by replay: bytes and times of a recorded step under the planned budgets, by the very pager that will run.
//!
//! The step was recorded on the CPU, whose program fuses nothing. On a device that fuses, fewer tensors exist and somewhat less moves.

use pager::{Limit, Machine as Speeds, Moved, Policy, Recording, Replay, Stop};
use serde::Serialize;

use super::{Machine, Plan};

/// Enough to be learned and to settle: what was evicted before the step was known is gone from its place for some steps more.
const ROUNDS: usize = 6;

/// A step as it was replayed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Replayed {
    /// The most on the device where nothing limits it.
    pub(crate) peak: u64,
    /// Bytes of spilled tensors in a step.
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    /// Bytes that the program reads off the device, for an optimizer on the host above all.
    pub(crate) bytes_read: u64,
    /// Bytes to and from the disk.
    pub(crate) disk_written: u64,
    pub(crate) disk_read: u64,
    /// Known where the speeds of link and arithmetic are, and the disk's if blocks sink there.
    pub(crate) seconds: Option<f64>,
}

impl Replayed {
    /// Replays `step` under the budgets of `machine`, of whose host the optimizer holds `taken` bytes.
    fn of(step: &Recording, machine: &Machine, taken: u64) -> Result<Self, Stop> {
        let free = Replay::new(step, Limit::NONE, Policy::Planned).run(2)?;
        let peak = free.pager().ledger().resident_peak();
        let budget = machine.device_budget.map_or(Limit::NONE, Limit::bytes);
        let under = || {
            let replay = Replay::new(step, budget, Policy::Planned);
            match machine.host_budget {
                Some(host) if machine.disk_budget > 0 => replay.above_a_disk(host.saturating_sub(taken)),
                _ => replay,
            }
        };
        let speeds = speeds(machine);
        // Where the device is the host's memory, copies are made in line and nothing is moved ahead.
        let ahead = speeds.filter(|_| !machine.shares_host);
        let played = match ahead {
            Some(speeds) => under().on(speeds).run(ROUNDS)?,
            None => under().run(ROUNDS)?,
        };
        let [moved, disk] = [played.steps(), played.disk_steps()].map(|steps| steps[ROUNDS - 1]);
        let bytes_read = played.read_steps()[ROUNDS - 1];
        let told = Self {
            peak,
            bytes_in: moved.bytes_in,
            bytes_out: moved.bytes_out,
            bytes_read,
            disk_written: disk.bytes_out,
            disk_read: disk.bytes_in,
            seconds: None,
        };
        let sinks_at_unknown_speed = disk.total() > 0 && machine.disk_bytes_per_second.is_none();
        let Some(speeds) = speeds.filter(|_| !sinks_at_unknown_speed) else { return Ok(told) };
        let seconds = match ahead {
            Some(_) => played.elapsed()[ROUNDS - 1].step,
            None => arithmetic(step, speeds) + told.in_line(speeds, disk),
        };
        Ok(Self { seconds: Some(seconds), ..told })
    }

    /// Seconds of all copies, each of which is waited for.
    fn in_line(&self, speeds: Speeds, disk: Moved) -> f64 {
        let moved = (self.bytes_in + self.bytes_out + self.bytes_read) as f64;
        moved / speeds.link + disk.total() as f64 / speeds.disk
    }
}

/// Nothing where the link's or the arithmetic's speed is not known. Memory is never waited for: its speed is not known either.
fn speeds(machine: &Machine) -> Option<Speeds> {
    let disk = machine.disk_bytes_per_second.map_or(f64::INFINITY, |[write, read]| write.min(read));
    let (link, flops) = (machine.link_bytes_per_second?, machine.flops_per_second?);
    Some(Speeds { link, flops, disk, ..Speeds::INSTANT })
}

/// Seconds of the operations alone.
fn arithmetic(step: &Recording, speeds: Speeds) -> f64 {
    let free = Replay::new(step, Limit::NONE, Policy::Planned).on(speeds).run(2);
    free.map_or(0.0, |free| free.elapsed()[1].arithmetic)
}

impl Plan {
    /// The plan with bytes and times of `step`, a recording of its run, in the place of those that a formula gives. A step that
    /// cannot be replayed under the budgets is a reason to refuse the run.
    pub(crate) fn by_replay(mut self, step: &Recording) -> Self {
        let replayed = match Replayed::of(step, &self.machine, self.optimizer_host_bytes) {
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
        (self.disk_written_per_step, self.disk_read_per_step) = (replayed.disk_written, replayed.disk_read);
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

    /// A step of the toy's, as it was recorded.
    fn toy() -> Recording {
        let bytes = include_bytes!("../../../backend-offload/pager/traces/toy.trace");
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
        let told = plan.to_string();
        assert!(
            told.contains(" out per step (replayed)") && told.contains("53.00 MiB on the device"),
            "{told}"
        );
        assert!(!told.contains("(estimated)"), "{told}");
    }

    #[test]
    fn a_step_that_fits_moves_nothing_and_takes_as_long_as_its_operations() {
        let (link, flops) = (Some(25e9), Some(80e12));
        let machine = Machine { link_bytes_per_second: link, flops_per_second: flops, ..Machine::default() };
        let plan = planned(&machine);
        assert_eq!((plan.bytes_in_per_step, plan.bytes_out_per_step), (0, 0));
        assert!(plan.replayed.is_some_and(|replayed| replayed.seconds.is_some()), "{plan}");
        // The toy's recording knows no floating-point operations.
        let bytes = include_bytes!("../../../backend-offload/pager/traces/gpt-124m-16k.trace");
        let step = Recording::from_bytes(bytes).expect("a recording");
        let replayed = Replayed::of(&step, &machine, 0).expect("it fits");
        assert_eq!((replayed.bytes_in, replayed.bytes_out), (0, 0));
        let operations = arithmetic(&step, speeds(&machine).expect("both are known"));
        let read = replayed.bytes_read as f64 / 25e9;
        let seconds = replayed.seconds.expect("both speeds are known");
        assert!(operations > 0.01 && (seconds - operations - read).abs() < 1e-6 * seconds, "{replayed:?}");
        let unmeasured = planned(&Machine::default());
        assert!(unmeasured.replayed.is_some_and(|replayed| replayed.seconds.is_none()), "{unmeasured}");
    }

    #[test]
    fn what_does_not_fit_on_the_host_is_replayed_to_the_disk_and_has_no_time_without_its_speed() {
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
