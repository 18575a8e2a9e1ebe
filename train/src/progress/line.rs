//! One step as one line.

use super::Report;
use backend_offload::Bytes;

/// `step 00120/05000 (2.4%) | loss 4.8312 | …`.
pub(crate) fn line(report: &Report) -> String {
    let digits = report.steps.to_string().len().max(5);
    let done = 100.0 * report.step as f64 / report.steps.max(1) as f64;
    let mut parts = vec![
        format!("step {:0digits$}/{:0digits$} ({done:.1}%)", report.step, report.steps),
        format!("loss {:.4}", report.loss),
        format!("lr {:.1e}", report.lr),
        format!("gnorm {:.2}", report.gnorm),
        format!("{:.0} ms", report.ms),
        format!("{} tok/s", thousands(report.tokens_per_second)),
    ];

    parts.extend(report.mfu.map(|mfu| format!("mfu {:.1}%", 100.0 * mfu)));
    parts.push(match report.device_budget {
        Some(budget) => format!("device {}/{}", Bytes(report.device_bytes), Bytes(budget)),
        None => format!("device {}", Bytes(report.device_bytes)),
    });
    let moved: u64 = report.over_the_link().iter().sum();
    if report.host_bytes > 0 || moved > 0 {
        if report.kept_inputs > 0 {
            parts.push(format!("inputs {}", Bytes(report.kept_inputs)));
        }
        parts.push(format!("host {}", Bytes(report.host_bytes)));
        parts.push(format!("moved {}", Bytes(moved)));
        parts.push(format!("stall {:.0}%", 100.0 * report.stall_ms / report.ms.max(1e-9)));
    }
    if report.disk_written > 0 || report.disk_read > 0 {
        parts.push(format!("disk {} out, {} in", Bytes(report.disk_written), Bytes(report.disk_read)));
    }
    // After a skipped step no host update is waited for.
    if let (Some(step), Some(waited)) = (report.host_step_ms.filter(|ms| *ms > 0.0), report.host_step_wait_ms)
    {
        let waited = 100.0 * waited / report.ms.max(1e-9);
        parts.push(format!("host's update {step:.0} ms, waited {waited:.0}%"));
    }
    if let (Some(sent), Some(stood)) = (report.ranks_sent, report.ranks_stall_ms) {
        parts.push(format!("ranks {} stall {:.0}%", Bytes(sent), 100.0 * stood / report.ms.max(1e-9)));
    }

    let waiting = 100.0 * report.data_ms / report.ms.max(1e-9);
    if waiting >= 1.0 {
        parts.push(format!("data {waiting:.0}%"));
    }
    parts.push(format!("eta {}", clock(remaining(report))));
    parts.join(" | ")
}

/// At most eighty characters.
pub(crate) fn short_line(report: &Report) -> String {
    const WIDTH: u64 = 16;
    let full = (report.step.min(report.steps) * WIDTH / report.steps.max(1)) as usize;
    let bar = "█".repeat(full) + &"░".repeat(WIDTH as usize - full);
    let mut parts = vec![
        format!("{bar} {}/{}", report.step, report.steps),
        format!("loss {:.3}", report.loss),
        format!("{} tok/s", thousands(report.tokens_per_second)),
    ];
    if report.over_the_link().iter().sum::<u64>() > 0 {
        parts.push(format!("stall {:.0}%", 100.0 * report.stall_ms / report.ms.max(1e-9)));
    }
    parts.push(format!("eta {}", clock(remaining(report))));
    parts.join(" | ")
}

fn remaining(report: &Report) -> f64 {
    let timed = report.step.saturating_sub(report.untimed).max(1);
    report.seconds / timed as f64 * report.steps.saturating_sub(report.step) as f64
}

fn thousands(number: f64) -> String {
    match number {
        n if n >= 1e6 => format!("{:.2}M", n / 1e6),
        n if n >= 1e4 => format!("{:.1}k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

fn clock(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s:02}s"),
        (h, m, _) => format!("{h}h{m:02}m"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn report() -> Report {
        Report {
            step: 120,
            steps: 5000,
            loss: 4.8312,
            lr: 1.9e-2,
            gnorm: 0.71,
            ms: 812.0,
            tokens_per_second: 40_300.0,
            mfu: Some(0.381),
            device_bytes: 6_227_702_579,
            device_budget: Some(6 << 30),
            seconds: 97.4,
            ..Report::default()
        }
    }

    #[test]
    fn the_time_left_follows_from_the_steps_whose_time_is_known() {
        let branch = Report { untimed: 100, ..report() };
        assert!(line(&branch).ends_with(" | eta 6h36m"), "{}", line(&branch));
    }

    #[test]
    fn a_rank_shows_its_bytes_sent_and_its_waits() {
        let ranks = [Some(700.0), Some(81.2)];
        let report =
            Report { ranks_sent: Some(3 << 20), ranks_ms: ranks[0], ranks_stall_ms: ranks[1], ..report() };
        assert!(
            line(&report).contains(" | device 5.80 GiB/6.00 GiB | ranks 3.00 MiB stall 10% | eta "),
            "{}",
            line(&report)
        );
    }

    #[test]
    fn a_host_optimizer_shows_its_time_and_the_waits_for_it() {
        let mut report = report();
        report.host_step(Some([Duration::from_millis(310), Duration::from_micros(16_240)]));
        let shown = " | device 5.80 GiB/6.00 GiB | host's update 310 ms, waited 2% | eta ";
        assert!(line(&report).contains(shown), "{}", line(&report));
        report.host_step(Some([Duration::ZERO; 2]));
        assert!(line(&report).contains(" | device 5.80 GiB/6.00 GiB | eta "), "{}", line(&report));
    }

    #[test]
    fn a_spilling_step_shows_the_bytes_it_moved() {
        let report = Report {
            host_bytes: 22_978_025_062,
            bytes_in: 2 << 30,
            bytes_out: 1_181_116_006,
            kept_inputs: 3 << 29,
            stall_ms: 32.5,
            ..report()
        };
        insta::assert_snapshot!(line(&report), @"step 00120/05000 (2.4%) | loss 4.8312 | lr 1.9e-2 | gnorm 0.71 | 812 ms | 40.3k tok/s | mfu 38.1% | device 5.80 GiB/6.00 GiB | inputs 1.50 GiB | host 21.40 GiB | moved 3.10 GiB | stall 4% | eta 1h06m");
    }

    #[test]
    fn the_changing_line_fits_a_narrow_terminal() {
        let spilling = Report { bytes_in: 2 << 30, stall_ms: 32.5, ..report() };
        insta::assert_snapshot!(short_line(&spilling), @"░░░░░░░░░░░░░░░░ 120/5000 | loss 4.831 | 40.3k tok/s | stall 4% | eta 1h06m");
        let long = Report { step: 123_456, steps: 123_456, loss: 10.0, ms: 1.0, stall_ms: 1.0, ..spilling };
        assert!(short_line(&long).chars().count() <= 80, "{}", short_line(&long));
    }

    #[test]
    fn a_step_shows_its_wait_for_data() {
        let report = Report { mfu: None, device_budget: None, data_ms: 162.4, ..report() };
        insta::assert_snapshot!(line(&report), @"step 00120/05000 (2.4%) | loss 4.8312 | lr 1.9e-2 | gnorm 0.71 | 812 ms | 40.3k tok/s | device 5.80 GiB | data 20% | eta 1h06m");
    }

    #[test]
    fn a_step_that_fits_shows_no_host_memory() {
        let report = Report { mfu: None, device_budget: None, ..report() };
        insta::assert_snapshot!(line(&report), @"step 00120/05000 (2.4%) | loss 4.8312 | lr 1.9e-2 | gnorm 0.71 | 812 ms | 40.3k tok/s | device 5.80 GiB | eta 1h06m");
    }
}
