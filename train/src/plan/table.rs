//! The plan as a table for readers new to training.

use std::fmt;

use backend_offload::Bytes;
use runs::config::{ChangesKind, ExchangeKind};

use super::{Epoch, INDEX_BYTES_PER_TOKEN, Plan};
use crate::figures::{duration, grouped, si};

#[derive(Debug, Default)]
pub(super) struct Table(Vec<Vec<String>>);

impl Table {
    pub(super) fn row<const N: usize>(&mut self, cells: [&str; N]) {
        self.0.push(cells.map(str::to_owned).to_vec());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.0.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        for row in &self.0 {
            let cells = row.iter().enumerate().map(|(column, cell)| match (column, width(column)) {
                (0, width) => format!("{cell:width$}"),
                (_, width) => format!("  {cell:>width$}"),
            });
            writeln!(f, "{}", cells.collect::<String>().trim_end())?;
        }
        Ok(())
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let learning = if self.learning == self.parameters {
            String::new()
        } else if self.has_adapters {
            format!(" and {} in adapters, which alone learn,", grouped(self.learning))
        } else {
            format!(", of which {} learn,", grouped(self.learning))
        };
        writeln!(f, "{} parameters{learning} on {}", grouped(self.parameters), self.machine.device)?;
        writeln!(f, "{}", self.held_table())?;
        self.lines().iter().try_for_each(|(name, text)| writeln!(f, "{name:<NAME$}  {text}"))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = 100.0 * self.seen_targets as f64 / self.counted_targets.max(1) as f64;
        let (sequences, targets) = (grouped(self.sequences), grouped(self.counted_targets));
        write!(f, "{sequences} sequences per epoch, which see {share:.1} % of {targets} counted targets")
    }
}

const NAME: usize = 14;

impl Plan {
    fn held_table(&self) -> Table {
        let mut table = Table::default();
        table.row(["", "bytes", "stays", "moves"]);
        for held in &self.held {
            let [bytes, stays, spills] =
                [held.bytes, held.stays, held.spills].map(|count| Bytes(count).to_string());
            table.row([held.what, &bytes, &stays, &spills]);
        }
        let [all, stays, spills] =
            [self.working_set, self.stays, self.spills].map(|count| Bytes(count).to_string());
        table.row(["at the worst moment", &all, &stays, &spills]);
        table
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let machine = &self.machine;
        let known = |bytes: Option<u64>, name: &str| {
            bytes.map(|bytes| format!(", {} {name}", Bytes(bytes))).unwrap_or_default()
        };

        let together = match self.together {
            1 => String::new(),
            count => format!(", {count} micro-batches together"),
        };
        let sequences = if self.accumulate > 1 {
            format!("{} × {}", self.accumulate, self.micro_batch)
        } else {
            self.micro_batch.to_string()
        };
        let mut lines = vec![(
            "tokens",
            format!(
                "{} per step ({sequences} sequences of {}{together}), {} in {} steps",
                grouped(self.tokens_per_step),
                grouped(self.sequence as u64),
                grouped(self.tokens),
                grouped(self.steps)
            ),
        )];
        lines.extend(self.data.map(|epoch| ("data", epoch.to_string())));

        let speed = machine.flops_per_second.map(|speed| format!(", at {}", si(speed, "FLOP/s")));
        lines.push((
            "arithmetic",
            format!(
                "{} per step, {} in all{}",
                si(self.flops_per_step, "FLOP"),
                si(self.flops, "FLOP"),
                speed.unwrap_or_default()
            ),
        ));
        lines.extend(self.inputs());
        lines.push(self.optimizer());
        lines.extend(self.ranks());

        let budget = machine.device_budget.map_or("unlimited".to_owned(), |budget| Bytes(budget).to_string());
        let (free, total) = (known(machine.device_free, "free"), known(machine.device_total, "in all"));
        lines.push(("device budget", format!("{budget}{free}{total}")));
        let floor = Bytes(self.floor);
        lines.push((
            "its floor",
            format!("about {floor}, the largest operation; a smaller budget may not work"),
        ));

        let link = machine.link_bytes_per_second.map(|speed| format!(", at {}", si(speed, "B/s")));
        let moved = if self.bytes_in_per_step + self.bytes_out_per_step == 0 {
            "nothing has to move".to_owned()
        } else {
            let (bytes_in, bytes_out) = (Bytes(self.bytes_in_per_step), Bytes(self.bytes_out_per_step));
            format!("{bytes_in} in and {bytes_out} out per step{}{}", link.unwrap_or_default(), self.source())
        };
        lines.push(("link", moved));
        if let (Some(hidden), Some(waiting), Some((fast, slow)), Some((least, most))) =
            (self.slowdown_hidden, self.slowdown_waiting, self.step_seconds(), self.run_seconds())
        {
            let text = if self.replayed.is_some() {
                format!("{waiting:.2}× (replayed)")
            } else if waiting > 1.0 {
                format!("{hidden:.1}× (copies behind arithmetic) to {waiting:.1}× (copies waited for)")
            } else {
                "none".to_owned()
            };
            lines.push(("slowdown", text));
            lines.push((
                "time",
                format!(
                    "at best {} per step, {} in all{}",
                    span(fast, slow, duration),
                    span(least, most, duration),
                    self.source()
                ),
            ));
        }

        lines.extend(machine.measurement.map(|measurement| ("speeds", measurement.to_string())));
        lines.extend(self.disk_tier());
        lines.extend(self.replayed.map(|replayed| {
            let peak = Bytes(replayed.peak);
            ("without limit", format!("{peak} on the device (replayed); the parts above are estimated"))
        }));
        lines
            .push(("host memory", format!("{}{}", Bytes(self.host_bytes), known(machine.host_free, "free"))));
        lines.push((
            "disk",
            format!(
                "{} for {} checkpoints of {}{}{}{}",
                Bytes(self.disk_bytes),
                self.checkpoints,
                Bytes(self.checkpoint_bytes),
                self.own(),
                self.index(),
                known(machine.disk_free, "free")
            ),
        ));
        lines
    }

    fn source(&self) -> &'static str {
        if self.replayed.is_some() { " (replayed)" } else { " (estimated)" }
    }

    fn own(&self) -> String {
        match self.own_bytes {
            0 => String::new(),
            own => format!(", with {} times {} of the ranks' own", self.own_files, Bytes(own)),
        }
    }

    fn index(&self) -> String {
        match self.index_bytes {
            Some(bytes) => format!(" and an index of at most {}", Bytes(bytes)),
            None if self.looks_up => {
                format!(
                    "; beside them an index of at most {INDEX_BYTES_PER_TOKEN} bytes per token of the training text"
                )
            }
            None => String::new(),
        }
    }

    fn inputs(&self) -> Option<(&'static str, String)> {
        let text = || format!("{} of the activations, until their blocks run again", Bytes(self.kept_inputs));
        (self.kept_inputs > 0).then(|| ("kept inputs", text()))
    }

    fn optimizer(&self) -> (&'static str, String) {
        let (held, touched) = (Bytes(self.optimizer_host_bytes), Bytes(self.optimizer_step_bytes));
        let but = match self.device_blocks {
            0 => String::new(),
            blocks => format!(" but for the first {blocks} blocks"),
        };
        let below = match self.optimizer_disk_bytes {
            0 => String::new(),
            bytes => format!(", and {} of its state on the disk", Bytes(bytes)),
        };
        let place = match self.optimizer_host_bytes {
            0 => "on the device".to_owned(),
            _ => format!(
                "on the host{but}, {held} with what waits for its step{below}; its step reads and writes {touched} there, beside the \
                 next forward pass"
            ),
        };
        ("optimizer", place)
    }

    fn ranks(&self) -> Option<(&'static str, String)> {
        let ranks = self.machine.ranks();
        // Of an exchange, which ends a step or a round.
        let steps = match self.ranks.exchange {
            ExchangeKind::Rarely => self.ranks.round.steps().unwrap_or(1),
            _ => 1,
        };
        let sent = Bytes(self.bytes_sent_per_step.saturating_mul(steps));
        let all = self.accumulate;
        let stages = self.bubble.map_or(1, |_| self.ranks.pipeline);
        let most = all.div_ceil(ranks / stages);
        let takes = |what: &str| match self.residual_bytes {
            0 => String::new(),
            bytes => format!("; {what} take {} of host memory", Bytes(bytes)),
        };
        let under_way = if stages > 1 { "messages under way" } else { "gradients under way" };
        let [after, beside] = match self.ranks.exchange {
            ExchangeKind::Exact | ExchangeKind::Bf16 => [" per step".to_owned(), takes(under_way)],
            // 4 bytes per number in the first steps, then one bit.
            ExchangeKind::OneBit => {
                [format!(" per step after {} exact steps", grouped(self.ranks.warm_up)), takes("residuals")]
            }
            ExchangeKind::Rarely => {
                let sent = format!(" after every round (\"{}\")", self.ranks.round);
                let what = match self.ranks.changes {
                    ChangesKind::F32 => "common and own weights, and momentum,",
                    ChangesKind::OneBit => "common and own weights, momentum and residuals",
                };
                [sent, takes(what)]
            }
        };

        let time = match (self.send_seconds, self.machine.network_bytes_per_second) {
            (Some(seconds), Some(speed)) => {
                let seconds = duration(seconds * steps as f64);
                format!("{seconds} at {} for the busiest card", si(speed, "B/s"))
            }
            _ => "whose time --link-between shows".to_owned(),
        };
        let pipelines = match self.bubble {
            Some(_) => format!(" in {} × {stages} stages", ranks / stages),
            None => String::new(),
        };
        let idle =
            self.bubble.map_or(String::new(), |bubble| format!(", idle {:.0} % of a step", 100.0 * bubble));
        let text = format!(
            "{ranks}{pipelines}, each with at most {most} of {all} micro-batches{idle}; {sent} sent by each{after}, {time}{beside}"
        );
        (ranks > 1).then_some(("ranks", text))
    }

    fn disk_tier(&self) -> Option<(&'static str, String)> {
        let budget = Bytes(self.machine.disk_budget);
        let holds = match self.optimizer_disk_bytes {
            0 => format!("{}", Bytes(self.sinks)),
            states => {
                format!("{} of the optimizer's state and {} that spill", Bytes(states), Bytes(self.sinks))
            }
        };

        let (written, read) = (self.disk_written_per_step, self.disk_read_per_step);
        let speeds = self.machine.disk_bytes_per_second.filter(|_| written + read > 0);
        let speeds = speeds.map(|[write, read]| format!(", at {} and {}", si(write, "B/s"), si(read, "B/s")));
        let per_day = self.step_seconds().filter(|_| written > 0).map(|(fast, _)| {
            let per_day = written as f64 * 86_400.0 / fast.max(1e-9);
            let worn = self.disk_endurance.map(|endurance| {
                let days = endurance as f64 / per_day;
                let life = if days < 365.0 {
                    duration(days * 86_400.0)
                } else {
                    format!("{:.1} years", days / 365.25)
                };
                format!(", which the drive's {} of endurance last for {life}", Bytes(endurance))
            });
            format!(", at most {} written per day{}", Bytes(per_day as u64), worn.unwrap_or_default())
        });

        let text = format!(
            "{holds} of {budget}; about {} written and {} read per step{}{}{}",
            Bytes(written),
            Bytes(read),
            self.source(),
            speeds.unwrap_or_default(),
            per_day.unwrap_or_default()
        );
        (self.machine.disk_budget > 0).then_some(("disk tier", text))
    }
}

pub(super) fn span(low: f64, high: f64, text: impl Fn(f64) -> String) -> String {
    let (low, high) = (text(low), text(high));
    if low == high { low } else { format!("{low} to {high}") }
}
