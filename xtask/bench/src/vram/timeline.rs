//! One step's picture: bytes on the device; copies each way and waits over time.

use pager_replay::StepTimeline;

use crate::records::{
    bytes::Bytes,
    svg::{At, Canvas},
};

const LEFT: f64 = 90.0;
const WIDTH: f64 = 740.0;
const TOP: f64 = 50.0;
const HEIGHT: f64 = 200.0;
/// Height, and distance to the next.
const BAND: (f64, f64) = (24.0, 40.0);
const PARTS: usize = 370;

pub(super) fn svg(title: &str, step: &StepTimeline, seconds: f64, bytes: u64) -> String {
    let bands = [("in", &step.back, "c0"), ("out", &step.out, "c1"), ("waited", &step.waited, "c3")];
    let bottom = TOP + HEIGHT + 20.0 + BAND.1 * bands.len() as f64;
    let mut canvas = Canvas::new(860.0, bottom + 40.0, title);
    canvas.text("title", (LEFT, TOP - 20.0), title);
    let at = |part: usize| LEFT + WIDTH * part as f64 / PARTS as f64;
    let level = |resident: u64| TOP + HEIGHT * (1.0 - resident as f64 / bytes.max(1) as f64);

    for share in [0.0, 0.5, 1.0] {
        let resident = (bytes as f64 * share) as u64;
        canvas.line("grid", (LEFT, level(resident)), (LEFT + WIDTH, level(resident)));
        canvas.text("y", (LEFT - 8.0, level(resident) + 4.0), &Bytes(resident).to_string());
    }

    let levels: Vec<At> =
        highest(step, seconds).iter().enumerate().map(|(n, bytes)| (at(n), level(*bytes))).collect();
    canvas.path("line c2", &levels);

    for (n, (name, stretches, colour)) in bands.into_iter().enumerate() {
        let floor = TOP + HEIGHT + 20.0 + BAND.0 + BAND.1 * n as f64;
        canvas.text("y", (LEFT - 8.0, floor - 8.0), name);
        canvas.line("grid", (LEFT, floor), (LEFT + WIDTH, floor));
        let shares: Vec<At> = shares(stretches, seconds)
            .iter()
            .enumerate()
            .map(|(n, busy)| (at(n), floor - BAND.0 * busy))
            .collect();
        canvas.path(&format!("line {colour}"), &shares);
    }

    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let said = format!("{:.1} ms", seconds * share * 1e3);
        canvas.text("x", (LEFT + WIDTH * share, bottom + 20.0), &said);
    }
    canvas.finish()
}

fn highest(step: &StepTimeline, seconds: f64) -> Vec<u64> {
    let mut highest = vec![0; PARTS];
    let (mut part, mut before) = (0, 0);
    for (at, bytes) in &step.resident {
        let here = ((at / seconds * PARTS as f64) as usize).min(PARTS - 1);
        highest[(part + 1).min(here)..here].fill(before);
        highest[here] = highest[here].max(*bytes);
        (part, before) = (here, *bytes);
    }
    highest[(part + 1).min(PARTS)..].fill(before);
    highest
}

fn shares(stretches: &[(f64, f64)], seconds: f64) -> Vec<f64> {
    let mut shares = vec![0.0; PARTS];
    let long = seconds / PARTS as f64;
    for (from, until) in stretches {
        let (from, until) = (from.max(0.0) / long, until.min(seconds) / long);
        if until <= from {
            continue;
        }
        let (first, last) = (from as usize, (until.ceil() as usize).min(PARTS));
        for (part, share) in shares.iter_mut().enumerate().take(last).skip(first) {
            let (begin, end) = (part as f64, (part + 1) as f64);
            *share += until.min(end) - from.max(begin);
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_divided_among_parts_and_clipped_to_the_step() {
        let seconds = PARTS as f64;
        let shares = shares(&[(-5.0, 0.5), (10.25, 12.0), (seconds - 1.0, seconds + 9.0)], seconds);
        let close = |part: usize, share: f64| (shares[part] - share).abs() < 1e-9;
        assert!(
            close(0, 0.5) && close(10, 0.75) && close(11, 1.0) && close(12, 0.0) && close(PARTS - 1, 1.0)
        );
        assert!((shares.iter().sum::<f64>() - 3.25).abs() < 1e-9);
    }

    #[test]
    fn a_level_lasts_until_the_next_operation() {
        let step = StepTimeline { resident: vec![(0.0, 5), (0.1, 9), (3.0, 4)], ..StepTimeline::default() };
        let highest = highest(&step, PARTS as f64);
        assert_eq!(highest[..5], [9, 9, 9, 4, 4]);
        assert_eq!(highest[PARTS - 1], 4);
    }

    #[test]
    fn a_picture_names_its_step_its_budget_and_its_length() {
        let step = StepTimeline { resident: vec![(0.0, 1 << 20)], ..StepTimeline::default() };
        let drawn = svg("toy under 50%", &step, 0.25, 2 << 20);
        for said in ["toy under 50%", "2.00 MiB", "250.0 ms", "waited"] {
            assert!(drawn.contains(said), "{said} is missing from {drawn}");
        }
    }
}
