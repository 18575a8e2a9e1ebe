//! The learning rate as a share of its peak. It depends on the step only.

use runs::config::{ScheduleKind, ScheduleSection};

/// The share at `step`, counted from 1, of `steps`.
pub(crate) fn rate_share(schedule: &ScheduleSection, step: u64, steps: u64) -> f64 {
    let warmup = schedule.warmup.in_run(steps);
    if step <= warmup {
        return step as f64 / warmup as f64;
    }
    let between = |done: f64| schedule.floor + (1.0 - schedule.floor) * done;
    let past = |begin: f64, end: f64| ((step as f64 - begin) / (end - begin).max(1.0)).clamp(0.0, 1.0);
    match schedule.kind {
        ScheduleKind::Constant => 1.0,
        ScheduleKind::Cosine => {
            let past = past(warmup as f64, steps as f64);
            between(0.5 + 0.5 * (std::f64::consts::PI * past).cos())
        }
        ScheduleKind::Linear => {
            let begin = (steps as f64 * (1.0 - schedule.decay)).max(warmup as f64);
            between(1.0 - past(begin, steps as f64))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(kind: ScheduleKind, at: &[u64]) -> Vec<f64> {
        let schedule = ScheduleSection { kind, warmup: 10.into(), decay: 0.5, floor: 0.1 };
        at.iter().map(|step| (rate_share(&schedule, *step, 110) * 1e6).round() / 1e6).collect()
    }

    #[test]
    fn the_rate_rises_in_a_line_to_its_peak_and_ends_at_the_floor() {
        assert_eq!(shares(ScheduleKind::Cosine, &[1, 5, 10, 60, 110]), [0.1, 0.5, 1.0, 0.55, 0.1]);
        assert_eq!(shares(ScheduleKind::Constant, &[1, 10, 110]), [0.1, 1.0, 1.0]);
    }

    #[test]
    fn linear_decay_takes_its_share_of_the_steps() {
        assert_eq!(shares(ScheduleKind::Linear, &[10, 55, 66, 110]), [1.0, 1.0, 0.82, 0.1]);
    }

    #[test]
    fn without_warmup_the_first_step_is_at_the_peak() {
        let schedule =
            ScheduleSection { warmup: 0.into(), kind: ScheduleKind::Linear, ..ScheduleSection::default() };
        assert!((rate_share(&schedule, 1, 100) - 1.0).abs() < 1e-12);
    }
}
