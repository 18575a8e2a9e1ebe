//! One step: bytes on the device, copies in each direction, and waits.

use std::fmt::{self, Write};

use backend_offload::Bytes;
use serde::Deserialize;

use super::curves::unit;
use super::history::History;
use super::scale::Scale;
use crate::figures::grouped;

const WIDTH: f64 = 720.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = WIDTH - 20.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 170.0;
/// Height, and distance between tops.
const BAND: (f64, f64) = (26.0, 36.0);
const BANDS: [(&str, &str); 3] = [("to the device", "first"), ("to the host", "second"), ("waiting", "wait")];
const END: f64 = BOTTOM + 10.0 + BAND.1 * BANDS.len() as f64;
const PARTS: usize = 304;

#[derive(Debug, Deserialize)]
pub(super) struct Timeline {
    pub(super) step: u64,
    device_budget: Option<u64>,
    operations: u64,
    /// Absent from journals of earlier versions.
    #[serde(default)]
    kept_inputs: u64,
    until_us: Vec<u64>,
    resident: Vec<u64>,
    bytes_out: Vec<u64>,
    bytes_in: Vec<u64>,
    waited_us: Vec<u64>,
}

pub(super) fn write(page: &mut String, history: &History) -> fmt::Result {
    if history.steps.is_empty() {
        return Ok(());
    }
    let is_limited = history.starts.last().is_some_and(|start| start.device_budget.is_some());
    let why = match &history.timeline {
        Some(timeline) if timeline.moved() > 0 => return timeline.draw(page),
        Some(Timeline { step, .. }) => {
            format!("in step {} nothing moved, as all it used had room", grouped(*step))
        }
        None if is_limited => {
            "none was watched, as a process watches its fourth step, or its last one if it takes fewer"
                .to_owned()
        }
        None => "without a device budget nothing is ever moved".to_owned(),
    };
    writeln!(page, "<p>No timeline of a step is drawn: {why}.</p>")
}

impl Timeline {
    fn moved(&self) -> u64 {
        total(&self.bytes_in).saturating_add(total(&self.bytes_out))
    }

    fn draw(&self, page: &mut String) -> fmt::Result {
        let (bytes_in, bytes_out) = (total(&self.bytes_in), total(&self.bytes_out));
        let step = grouped(self.step);

        writeln!(page, "<h2>Step {step}, from beginning to end</h2>")?;
        writeln!(page, "<figure class=\"timeline\" data-in=\"{bytes_in}\" data-out=\"{bytes_out}\">")?;
        writeln!(
            page,
            "<figcaption><span id=\"step-told\">{}</span>\n<span class=\"key first\">on the device</span>",
            self.description(bytes_in, bytes_out)
        )?;
        if self.device_budget.is_some() {
            writeln!(page, "<span class=\"key limit\">device budget</span>")?;
        }
        writeln!(page, "</figcaption>")?;

        write!(
            page,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\"",
            END + 26.0
        )?;
        writeln!(page, " aria-labelledby=\"step-drawn\" aria-describedby=\"step-told\">")?;
        writeln!(
            page,
            "<title id=\"step-drawn\">Bytes on the device, copies and waits of step {step}</title>"
        )?;

        self.levels(page)?;
        self.bands(page)?;
        for (place, label) in Scale::exact(0.0, self.micros() / 1e3).ticks() {
            let x = LEFT + place * (RIGHT - LEFT);
            writeln!(page, "<text class=\"step\" x=\"{x:.1}\" y=\"{:.1}\">{label} ms</text>", END + 17.0)?;
        }
        writeln!(page, "</svg>\n</figure>")
    }

    fn description(&self, bytes_in: u64, bytes_out: u64) -> String {
        let (whole, waited) = (self.micros(), total(&self.waited_us) as f64);
        let most = self.resident.iter().copied().max().unwrap_or_default();
        let inputs = match self.kept_inputs {
            0 => String::new(),
            bytes => format!(" Inputs of blocks, kept for the backward pass, took {}.", Bytes(bytes)),
        };
        let budget = self.device_budget.map(|budget| format!(" of {}", Bytes(budget))).unwrap_or_default();
        format!(
            "{} operations in {:.1} ms. {} were copied to the device and {} to the host; {:.1} ms ({:.1} %) were \
             spent waiting for copies. At most {}{budget} were on the device.{inputs}",
            grouped(self.operations),
            whole / 1e3,
            Bytes(bytes_in),
            Bytes(bytes_out),
            waited / 1e3,
            100.0 * waited / whole,
            Bytes(most),
        )
    }

    fn micros(&self) -> f64 {
        self.until_us.last().map_or(1.0, |until| *until as f64).max(1.0)
    }

    fn stretches(&self) -> impl Iterator<Item = (f64, f64)> {
        let part = |micros: u64| micros as f64 / self.micros() * PARTS as f64;
        let begins = std::iter::once(0).chain(self.until_us.iter().copied());
        begins.zip(&self.until_us).map(move |(from, until)| (part(from), part(*until)))
    }

    fn levels(&self, page: &mut String) -> fmt::Result {
        let most = self.resident.iter().copied().chain(self.device_budget).max().unwrap_or_default() as f64;
        let (name, size) = unit(most);
        let scale = Scale::exact(0.0, most / size * 1.05);
        let y = |bytes: f64| BOTTOM - scale.place(bytes / size) * (BOTTOM - TOP);

        for (place, label) in scale.ticks() {
            let y = BOTTOM - place * (BOTTOM - TOP);
            write!(page, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>")?;
            writeln!(
                page,
                "<text class=\"value\" x=\"{}\" y=\"{:.1}\">{label} {name}</text>",
                LEFT - 6.0,
                y + 4.0
            )?;
        }

        if let Some(budget) = self.device_budget {
            writeln!(page, "<path class=\"limit\" d=\"M{LEFT} {:.1}H{RIGHT}\"/>", y(budget as f64))?;
        }

        write!(page, "<path class=\"level first\" d=\"")?;
        for (n, ((from, until), resident)) in self.stretches().zip(&self.resident).enumerate() {
            let joined = if n == 0 { 'M' } else { 'L' };
            write!(page, "{joined}{:.1} {:.1}H{:.1}", x(from), y(*resident as f64), x(until))?;
        }
        writeln!(page, "\"/>")
    }

    fn bands(&self, page: &mut String) -> fmt::Result {
        let [copied_in, copied_out, waited] =
            [&self.bytes_in, &self.bytes_out, &self.waited_us].map(|amounts| self.spread(amounts));
        // Directions share a scale; waits are a share of their part's time.
        let most = copied_in.iter().chain(&copied_out).copied().fold(f64::MIN_POSITIVE, f64::max);
        let long = self.micros() / PARTS as f64;
        for (n, ((name, class), (parts, full))) in
            BANDS.into_iter().zip([(copied_in, most), (copied_out, most), (waited, long)]).enumerate()
        {
            let floor = BOTTOM + 10.0 + BAND.1 * (n + 1) as f64;
            let y = |amount: f64| floor - BAND.0 * (amount / full).min(1.0);
            writeln!(
                page,
                "<text class=\"value\" x=\"{}\" y=\"{:.1}\">{name}</text>",
                LEFT - 6.0,
                floor - 8.0
            )?;
            write!(page, "<path class=\"band {class}\" d=\"M{LEFT} {floor:.1}")?;
            for (part, amount) in parts.into_iter().enumerate() {
                write!(page, "V{:.1}H{:.1}", y(amount), x(part as f64 + 1.0))?;
            }
            writeln!(page, "V{floor:.1}Z\"/><path class=\"axis\" d=\"M{LEFT} {floor:.1}H{RIGHT}\"/>")?;
        }
        Ok(())
    }

    fn spread(&self, amounts: &[u64]) -> Vec<f64> {
        let mut parts = vec![0.0; PARTS];
        for ((from, until), amount) in self.stretches().zip(amounts) {
            let first = (from as usize).min(PARTS - 1);
            let last = (until.ceil() as usize).clamp(first + 1, PARTS);
            for (part, sum) in parts.iter_mut().enumerate().take(last).skip(first) {
                let shared = (until.min(part as f64 + 1.0) - from.max(part as f64)) / (until - from);
                *sum += *amount as f64 * if shared.is_finite() { shared } else { 1.0 };
            }
        }
        parts
    }
}

/// Saturates: a damaged journal may hold any numbers.
fn total(amounts: &[u64]) -> u64 {
    amounts.iter().copied().fold(0, u64::saturating_add)
}

fn x(part: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * part / PARTS as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretchs_bytes_are_spread_over_the_parts_of_its_time() {
        let micros = PARTS as u64 * 10;
        let timeline = Timeline {
            step: 4,
            device_budget: None,
            operations: 3,
            kept_inputs: 0,
            until_us: vec![15, 15, micros],
            resident: vec![0; 3],
            bytes_out: vec![300, 7, 0],
            bytes_in: vec![0; 3],
            waited_us: vec![0; 3],
        };
        let parts = timeline.spread(&timeline.bytes_out);
        let close = |part: usize, bytes: f64| (parts[part] - bytes).abs() < 1e-9;
        assert!(close(0, 200.0) && close(1, 107.0) && close(2, 0.0), "{:?}", &parts[..3]);
        let whole = timeline.spread(&[0, 0, 1000]);
        assert!((whole.iter().sum::<f64>() - 1000.0).abs() < 1e-9);
    }
}
