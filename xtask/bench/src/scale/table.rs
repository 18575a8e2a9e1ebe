//! The page's tables.

use crate::records::bytes::Bytes;

use super::{
    LINKS,
    cell::{Cell, Overhead},
    sample::{Kind, Link},
    simulation::{self, Model, Network, Step, Way},
};

const SUMS: [Kind; 7] = [
    Kind::Exact,
    Kind::OneBit,
    Kind::ReduceScatter,
    Kind::ToOneOwner,
    Kind::AllGather,
    Kind::FromOneOwner,
    Kind::Pipeline,
];
const CALLS: [Kind; 2] = [Kind::Barrier, Kind::Commit];

pub(super) fn measured(cells: &[Cell]) -> String {
    let row = |cell: &Cell| {
        vec![
            link_and_ranks(cell),
            cell.kind.to_string(),
            Bytes(cell.bytes).to_string(),
            duration(cell.seconds),
            format!("{} to {}", duration(cell.quartiles.0), duration(cell.quartiles.1)),
            megabytes(cell.rate()),
            megabytes(cell.sent as f64 / cell.seconds),
        ]
    };
    let rows: Vec<_> = of_kinds(cells, &SUMS).map(row).collect();
    let columns =
        ["Link, ranks", "Kind", "Gradients", "Median", "Middle half", "MB/s", "MB/s sent by a rank"];
    markdown(&columns, &rows)
}

pub(super) fn calls(cells: &[Cell]) -> String {
    let row = |cell: &Cell| {
        vec![
            link_and_ranks(cell),
            cell.kind.to_string(),
            duration(cell.seconds),
            format!("{} to {}", duration(cell.quartiles.0), duration(cell.quartiles.1)),
        ]
    };
    let rows: Vec<_> = of_kinds(cells, &CALLS).map(row).collect();
    markdown(&["Link, ranks", "Call", "Median", "Middle half"], &rows)
}

pub(super) fn by_turns(overheads: &[Overhead], first: &str, second: &str) -> String {
    let row = |overhead: &Overhead| {
        let (low, high) = overhead.quartiles;
        vec![
            Bytes(overhead.bytes).to_string(),
            overhead.turns.to_string(),
            duration(overhead.first),
            duration(overhead.second),
            signed_percent(overhead.share),
            format!("{} to {}", signed_percent(low), signed_percent(high)),
            signed_percent(overhead.noise),
        ]
    };
    let rows: Vec<_> = overheads.iter().map(row).collect();
    let itself = format!("{first} against itself");
    markdown(&["Gradients", "Turns", first, second, "Overhead", "Middle half", &itself], &rows)
}

pub(super) fn lines(cells: &[Cell]) -> String {
    let mut rows = Vec::new();
    for link in LINKS {
        let mut worlds: Vec<_> =
            cells.iter().filter(|cell| cell.link == link).map(|cell| cell.ranks).collect();
        worlds.dedup();
        for (ranks, kind) in worlds.into_iter().flat_map(|ranks| SUMS.map(|kind| (ranks, kind))) {
            if let Some(line) = simulation::line(cells, link, ranks, kind) {
                rows.push(vec![
                    format!("{link}, {ranks}"),
                    kind.to_string(),
                    duration(line.latency),
                    megabytes(1.0 / line.per_byte),
                    format!("{:.0} %", 100.0 * line.worst),
                ]);
            }
        }
    }
    markdown(&["Link, ranks", "Kind", "Latency", "MB/s", "Largest error"], &rows)
}

/// The largest sum at each smaller number of ranks, unseen by the fit.
pub(super) fn check(cells: &[Cell], models: &[Model]) -> String {
    let mut rows = Vec::new();
    for model in models {
        for (kind, way) in [(Kind::Exact, Way::Exact), (Kind::OneBit, Way::OneBit)] {
            let own = |cell: &&Cell| {
                (cell.link, cell.kind) == (model.link, kind) && (cell.ranks as u64) < model.ranks
            };
            let largest = cells.iter().filter(own).map(|cell| cell.bytes).max();
            for cell in cells.iter().filter(own).filter(|cell| Some(cell.bytes) == largest) {
                let predicted = model.sum(way, cell.ranks as u64, cell.bytes as f64);
                rows.push(vec![
                    link_and_ranks(cell),
                    kind.to_string(),
                    Bytes(cell.bytes).to_string(),
                    duration(cell.undisturbed()),
                    duration(predicted),
                    format!("{:.2}", predicted / cell.undisturbed()),
                ]);
            }
        }
    }
    markdown(&["Link, ranks", "Kind", "Gradients", "Measured", "By the model", "Ratio"], &rows)
}

pub(super) fn simulated(model: &Model, step: &Step, network: Network) -> String {
    let ways = Way::ALL.map(|way| model.forecasts(way, step, network));
    let row = |at: usize| {
        let for_each_way =
            |shown: fn(&simulation::Forecast) -> String| ways.iter().map(move |way| shown(&way[at]));
        let ranks = std::iter::once(ways[0][at].ranks.to_string());
        let efficiencies = for_each_way(|forecast| percent(forecast.strong))
            .chain(for_each_way(|forecast| percent(forecast.weak)));
        ranks.chain(for_each_way(|forecast| duration(forecast.exchange))).chain(efficiencies).collect()
    };
    let rows: Vec<Vec<String>> = (0..ways[0].len()).map(row).collect();
    let rarely = format!("every {} steps", step.every);
    let group = |of: &str| ["exact", "one bit", &rarely].map(|way| format!("{of}, {way}"));
    let columns = [vec!["Ranks".to_owned()], ["Waiting", "Strong", "Weak"].map(group).concat()].concat();
    markdown(&columns, &rows)
}

/// Between ranks of this machine.
fn of_kinds<'c>(cells: &'c [Cell], kinds: &'c [Kind]) -> impl Iterator<Item = &'c Cell> {
    cells.iter().filter(|cell| kinds.contains(&cell.kind) && LINKS.contains(&cell.link))
}

fn link_and_ranks(cell: &Cell) -> String {
    format!("{}, {}", cell.link, cell.ranks)
}

/// `carried` gives the bytes that the busiest card carries one way.
pub(super) fn behind_cards(cells: &[Cell], rate: f64, carried: impl Fn(&Cell) -> Option<f64>) -> String {
    let row = |cell: &Cell| {
        let least = carried(cell)? / rate;
        Some(vec![
            cell.ranks.to_string(),
            cell.kind.to_string(),
            Bytes(cell.bytes).to_string(),
            duration(least),
            duration(cell.seconds),
            format!("{:.2}", cell.seconds / least),
            format!("{:.2} to {:.2}", cell.quartiles.0 / least, cell.quartiles.1 / least),
        ])
    };
    let rows: Vec<_> = cells.iter().filter(|cell| cell.link == Link::Cards).filter_map(row).collect();
    let columns = ["Hosts", "Kind", "Gradients", "At the card's rate", "Median", "Ratio", "Middle half"];
    markdown(&columns, &rows)
}

fn markdown(columns: &[impl AsRef<str>], rows: &[Vec<String>]) -> String {
    let line = |fields: Vec<&str>| format!("| {} |\n", fields.join(" | "));
    let head = line(columns.iter().map(AsRef::as_ref).collect());
    let rule = format!("|{}\n", "---|".repeat(columns.len()));
    let rows = rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
    [head, rule].into_iter().chain(rows).collect()
}

pub(super) fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent > 0.0 && percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

pub(super) fn signed_percent(share: f64) -> String {
    format!("{:+.2} %", 100.0 * share)
}

pub(super) fn megabytes(rate: f64) -> String {
    let rate = rate / 1e6;
    if rate >= 99.5 { format!("{rate:.0}") } else { format!("{rate:.1}") }
}

pub(super) fn duration(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s >= 1.0 || s <= 0.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s => (s * 1e6, "µs"),
    };
    let digits = if value >= 99.95 || value <= 0.0 { 0 } else { 2 - usize::from(value >= 9.995) };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            cell::{STEPS, cells, overheads},
            sample::tests::samples,
        },
        *,
    };

    fn assert_row(table: &str, row: &str) {
        assert!(table.lines().any(|line| line == row), "{row} is missing from:\n{table}");
        let columns = |line: &str| line.matches('|').count();
        assert!(table.lines().all(|line| columns(line) == columns(row)), "{table}");
    }

    #[test]
    fn sums_have_a_rate_and_calls_a_time() {
        let cells = cells(&samples());
        let row = "| TCP, 2 | exact | 16.0 MiB | 16.8 ms | 16.8 ms to 16.8 ms | 998 | 998 |";
        assert_row(&measured(&cells), row);
        // Half the bytes of a sum.
        let part = "| TCP, 2 | reduce-scatter | 16.0 MiB | 12.6 ms | 12.6 ms to 12.6 ms | 1330 | 665 |";
        assert_row(&measured(&cells), part);
        assert_row(&calls(&cells), "| shared memory, 4 | commit | 30.0 µs | 30.0 µs to 30.0 µs |");
    }

    #[test]
    fn an_overhead_is_shown_with_its_quartiles_and_the_noise() {
        let table = by_turns(&overheads(&samples(), STEPS), "Alone", "Under MPI");
        assert_row(&table, "| 4.00 MiB | 1 | 200 ms | 201 ms | +0.50 % | +0.50 % to +0.50 % | +0.20 % |");
        assert!(table.starts_with("| Gradients | Turns | Alone | Under MPI | Overhead |"), "{table}");
        assert!(table.contains("| Alone against itself |"), "{table}");
    }

    #[test]
    fn every_kind_has_its_line() {
        let lines = lines(&cells(&samples()));
        assert_row(&lines, "| TCP, 4 | one bit | 90.0 µs | 333 | 0 % |");
        // The samples have no single owner and no pipeline.
        assert_eq!(lines.lines().count(), 2 + 2 * 2 * (SUMS.len() - 3));
    }

    #[test]
    fn the_model_is_compared_with_ranks_it_was_not_fitted_at() {
        let cells = cells(&samples());
        let models: Vec<_> = LINKS.iter().filter_map(|link| Model::fit(&cells, *link)).collect();
        assert_row(&check(&cells, &models), "| TCP, 2 | exact | 16.0 MiB | 16.8 ms | 16.8 ms | 1.00 |");
    }

    #[test]
    fn a_simulation_has_a_row_for_each_number_of_ranks() {
        let model = Model::fit(&cells(&samples()), Link::Tcp).unwrap();
        let step = Step { compute: 10.0, gradient: 500_000_000, every: 8 };
        let table = simulated(&model, &step, Network::AsMeasured);
        assert_row(&table, "| 1 | 0 s | 0 s | 0 s | 100 % | 100 % | 100 % | 100 % | 100 % | 100 % |");
        assert_eq!(table.lines().count(), 2 + simulation::RANKS.len());
        assert!(table.contains("Strong, every 8 steps") && table.contains("| 1024 | 1.05 s |"), "{table}");
    }

    #[test]
    fn times_are_shown_with_three_digits() {
        let shown = [0.0, 1.234e-6, 99.97e-6, 0.012_34, 0.5, 12.34, 1234.5].map(duration);
        assert_eq!(shown, ["0 s", "1.23 µs", "100 µs", "12.3 ms", "500 ms", "12.3 s", "1234 s"]);
        assert_eq!([0.0312, 0.5, 0.9996].map(percent), ["3.1 %", "50 %", "100 %"]);
    }
}
