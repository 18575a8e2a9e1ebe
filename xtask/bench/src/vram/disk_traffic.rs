//! Replayed steps' traffic with a disk, and its lower bound.

use pager_replay::disk_bound;

use crate::records::bytes::Bytes;

use super::{
    budget::Budget,
    simulation::{BudgetedStep, POLICIES, ROUNDS, ratio},
};

/// Of one policy, in a steady step.
pub(super) struct DiskTraffic {
    trace: String,
    budget: Budget,
    device: u64,
    host: u64,
    policy: &'static str,
    /// Bytes loaded and written; `None` if an operation does not fit.
    moved: Option<(u64, u64)>,
    least: (u64, u64),
}

impl DiskTraffic {
    pub(super) fn replays(under: BudgetedStep, host: u64) -> Vec<Self> {
        let BudgetedStep { name, step, budget, bytes, .. } = under;
        let least = disk_bound(step, bytes.saturating_add(host), ROUNDS)[ROUNDS - 1];
        let row = |(policy, rule)| {
            let played = under.replay(rule).run(ROUNDS).ok();
            let moved = played.map(|played| played.disk_steps()[ROUNDS - 1]);
            Self {
                trace: name.to_owned(),
                budget,
                device: bytes,
                host,
                policy,
                moved: moved.map(|moved| (moved.bytes_in, moved.bytes_out)),
                least: (least.bytes_in, least.bytes_out),
            }
        };
        POLICIES.into_iter().map(row).collect()
    }
}

pub(super) fn markdown(rows: &[DiskTraffic]) -> String {
    let mut text = String::from(
        "\n| Step above a disk | Device | Host | Policy | Loaded | Written | Least loaded | Least written | Of the bound |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let [loaded, written, of_bound] = match row.moved {
            None => ["does not fit".to_owned(), String::new(), String::new()],
            Some(moved) => [Bytes(moved.0).to_string(), Bytes(moved.1).to_string(), ratio(moved, row.least)],
        };
        let [least_loaded, least_written] = [row.least.0, row.least.1].map(|bytes| Bytes(bytes).to_string());
        let fields = [
            row.trace.clone(),
            format!("{} = {}", row.budget, Bytes(row.device)),
            Bytes(row.host).to_string(),
            row.policy.to_owned(),
            loaded,
            written,
            least_loaded,
            least_written,
            of_bound,
        ];
        text += &["| ", &fields.join(" | "), " |\n"].concat();
    }
    text
}

pub(super) const CELLS: &str = "disk.csv";

pub(super) fn cells(rows: &[DiskTraffic]) -> Vec<Vec<String>> {
    let header = [
        "trace",
        "budget",
        "device_bytes",
        "host_bytes",
        "policy",
        "loaded",
        "written",
        "least_loaded",
        "least_written",
    ];
    let mut cells = vec![header.map(str::to_owned).to_vec()];
    for row in rows {
        let moved = row.moved.map_or_else(
            || [String::new(), String::new()],
            |(loaded, written)| [loaded.to_string(), written.to_string()],
        );
        let mut cell = vec![
            row.trace.clone(),
            row.budget.to_string(),
            row.device.to_string(),
            row.host.to_string(),
            row.policy.to_owned(),
        ];
        cell.extend(moved);
        cell.extend([row.least.0.to_string(), row.least.1.to_string()]);
        cells.push(cell);
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_below_the_host_states_its_bytes_and_their_ratio_to_the_bound() {
        let row = |moved| DiskTraffic {
            trace: "toy".to_owned(),
            budget: Budget::Share(25.0),
            device: 1 << 20,
            host: 2 << 20,
            policy: "planned",
            moved,
            least: (100, 50),
        };
        let rows = [row(Some((100, 65))), row(None)];
        let text = markdown(&rows);
        let line = "| toy | 25% = 1.00 MiB | 2.00 MiB | planned | 100 B | 65 B | 100 B | 50 B | 1.100 |";
        assert!(text.contains(line) && text.contains("does not fit"), "{text}");
        let cells = cells(&rows);
        assert_eq!(cells[1].join(","), "toy,25%,1048576,2097152,planned,100,65,100,50");
        assert!(cells.iter().all(|line| line.len() == cells[0].len()));
    }
}
