//! A record's picture: rates by size, simulated efficiencies by ranks.

use crate::records::{
    bytes::Bytes,
    svg::{At, Canvas},
};

use super::{
    cell::Cell,
    sample::{Kind, Link},
    simulation::{Forecast, Model, Network, RANKS, Step, Way},
    table,
};

const PANEL: (f64, f64) = (330.0, 230.0);
const TOP: f64 = 50.0;
const LEGEND: f64 = TOP + PANEL.1 + 70.0;
const LEGEND_LINE: f64 = 20.0;
const LEFTS: [f64; 3] = [60.0, 460.0, 860.0];

const WAYS: [(Way, &str, &str); 3] =
    [(Way::Exact, "c0", "exact"), (Way::OneBit, "c1", "one bit"), (Way::Rarely, "c2", "rarely")];
const KINDS: [(Kind, &str); 4] =
    [(Kind::Exact, "c0"), (Kind::OneBit, "c1"), (Kind::ReduceScatter, "c4"), (Kind::AllGather, "c3")];

pub(super) fn svg(cells: &[Cell], model: Option<&Model>, step: &Step, assumed: Network) -> String {
    let height = LEGEND + KINDS.len() as f64 * LEGEND_LINE;
    let mut canvas = Canvas::new(1220.0, height, "Exchange rates, measured, and scaling, simulated");
    rates(&mut canvas, cells);

    let panels = [
        (LEFTS[1], "Simulated: strong scaling", (|forecast| forecast.strong) as fn(&Forecast) -> f64),
        (LEFTS[2], "Simulated: weak scaling", |forecast| forecast.weak),
    ];
    for (left, title, value) in panels {
        axes(&mut canvas, left, title, "ranks");
        for (at, ranks) in RANKS.iter().enumerate().step_by(2) {
            let (x, y) = in_panel(left, at as f64 / intervals(RANKS.len()), 0.0);
            canvas.text("x", (x, y + 18.0), &ranks.to_string());
        }
        for share in [0.0, 0.5, 1.0] {
            let (x, y) = in_panel(left, 0.0, share);
            canvas.text("y", (x - 8.0, y + 4.0), &table::percent(share));
        }
        let networks = [(Network::AsMeasured, "line"), (assumed, "line dashed")];
        for (model, (network, class)) in
            model.iter().flat_map(|model| networks.map(|network| (model, network)))
        {
            for (way, colour, name) in WAYS {
                efficiencies(
                    &mut canvas,
                    left,
                    &model.forecasts(way, step, network),
                    value,
                    (class, colour, name),
                );
            }
        }
    }

    legend(&mut canvas, model, assumed);
    canvas.finish()
}

fn efficiencies(
    canvas: &mut Canvas,
    left: f64,
    forecasts: &[Forecast],
    value: fn(&Forecast) -> f64,
    (class, colour, name): (&str, &str, &str),
) {
    let at = |(at, forecast): (usize, &Forecast)| {
        in_panel(left, at as f64 / intervals(RANKS.len()), value(forecast))
    };
    let points: Vec<At> = forecasts.iter().enumerate().map(at).collect();
    canvas.path(&format!("{class} {colour}"), &points);
    for (point, forecast) in points.iter().zip(forecasts) {
        let said = format!(
            "{name}, {} ranks: {}, waiting {} a step (simulated)",
            forecast.ranks,
            table::percent(value(forecast)),
            table::duration(forecast.exchange)
        );
        canvas.dot(colour, *point, &said);
    }
}

fn intervals(count: usize) -> f64 {
    count.saturating_sub(1).max(1) as f64
}

fn rates(canvas: &mut Canvas, cells: &[Cell]) {
    let left = LEFTS[0];
    axes(canvas, left, "Measured: MB/s of gradients, most ranks", "gradients");
    let most = cells.iter().map(|cell| cell.ranks).max().unwrap_or(0);
    let shown = |cell: &&Cell| cell.ranks == most && KINDS.iter().any(|(kind, _)| *kind == cell.kind);
    let mut sizes: Vec<u64> = cells.iter().filter(shown).map(|cell| cell.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();

    let top = cells.iter().filter(shown).map(Cell::rate).fold(1.0, f64::max);
    let at = |bytes: u64, rate: f64| {
        let place = sizes.iter().position(|size| *size == bytes).unwrap_or(0);
        in_panel(left, place as f64 / intervals(sizes.len()), rate / top)
    };

    for &bytes in &sizes {
        let (x, y) = at(bytes, 0.0);
        canvas.text("x", (x, y + 18.0), &Bytes(bytes).to_string());
    }
    for share in [0.0, 0.5, 1.0] {
        let (x, y) = in_panel(left, 0.0, share);
        canvas.text("y", (x - 8.0, y + 4.0), &table::megabytes(share * top));
    }

    for (link, class) in [(Link::Tcp, "line"), (Link::SharedMemory, "line dashed")] {
        for (kind, colour) in KINDS {
            let own =
                || cells.iter().filter(shown).filter(move |cell| (cell.link, cell.kind) == (link, kind));
            let points: Vec<At> = own().map(|cell| at(cell.bytes, cell.rate())).collect();
            canvas.path(&format!("{class} {colour}"), &points);
            for (point, cell) in points.iter().zip(own()) {
                let rate = table::megabytes(cell.rate());
                let said = format!("{kind} over {link}, {most} ranks, {}: {rate} MB/s", Bytes(cell.bytes));
                canvas.dot(colour, *point, &said);
            }
        }
    }
}

fn axes(canvas: &mut Canvas, left: f64, title: &str, across: &str) {
    canvas.text("title", (left, TOP - 20.0), title);
    canvas.text("x", (left + PANEL.0 / 2.0, TOP + PANEL.1 + 38.0), across);
    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        canvas.line("grid", in_panel(left, 0.0, share), in_panel(left, 1.0, share));
    }
}

fn in_panel(left: f64, across: f64, up: f64) -> At {
    (left + PANEL.0 * across, TOP + PANEL.1 * (1.0 - up))
}

fn legend(canvas: &mut Canvas, model: Option<&Model>, assumed: Network) {
    let mut line = |x: f64, row: f64, class: &str, said: &str| {
        let y = LEGEND + row * LEGEND_LINE;
        canvas.line(class, (x, y - 4.0), (x + 24.0, y - 4.0));
        canvas.text("", (x + 32.0, y), said);
    };
    for (row, (kind, colour)) in KINDS.iter().enumerate() {
        line(LEFTS[0], row as f64, &format!("line {colour}"), &kind.to_string());
    }
    line(LEFTS[0] + 150.0, 0.0, "line c5", &format!("{} over loopback", Link::Tcp));
    line(LEFTS[0] + 150.0, 1.0, "line dashed c5", &Link::SharedMemory.to_string());
    for (row, (_, colour, name)) in WAYS.iter().enumerate() {
        line(LEFTS[1], row as f64, &format!("line {colour}"), name);
    }
    if let Some(model) = model {
        line(LEFTS[2], 0.0, "line c5", &format!("a network as fast as {} is here", model.link));
        line(LEFTS[2], 1.0, "line dashed c5", &format!("with {assumed} after it"));
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{cell::cells, sample::tests::samples},
        *,
    };

    const ASSUMED: Network = Network::Assumed { bytes_per_second: 125e6, latency: 1e-4 };
    const STEP: Step = Step { compute: 10.0, gradient: 500_000_000, every: 8 };

    #[test]
    fn measured_and_simulated_points_are_labelled_as_such() {
        let cells = cells(&samples());
        let drawn = svg(&cells, Model::fit(&cells, Link::Tcp).as_ref(), &STEP, ASSUMED);
        let count = |element: &str| drawn.matches(element).count();
        assert_eq!(count("<polyline"), 2 * KINDS.len() + 2 * 2 * 3);
        assert_eq!(count("<circle"), 2 * KINDS.len() * 3 + 2 * 2 * 3 * RANKS.len());
        assert_eq!(count("(simulated)"), 2 * 2 * 3 * RANKS.len());
        for said in [
            "Measured: MB/s",
            "Simulated: strong",
            "exact over TCP, 4 ranks, 16.0 MiB:",
            "reduce-scatter over TCP, 4 ranks, 16.0 MiB:",
            "125 MB/s and 100 µs",
        ] {
            assert!(drawn.contains(said), "{said} is missing from {drawn}");
        }
    }

    #[test]
    fn more_efficient_lies_higher_and_more_ranks_further_right() {
        let ((left, low), (right, high)) = (in_panel(60.0, 0.2, 0.1), in_panel(60.0, 0.3, 0.9));
        assert!(left < right && low > high);
    }

    #[test]
    fn a_picture_without_a_model_or_cells_is_still_a_picture() {
        let drawn = svg(&[], None, &STEP, ASSUMED);
        assert!(drawn.ends_with("</svg>\n") && !drawn.contains("<circle") && !drawn.contains("NaN"));
    }
}
