//! A record's picture: speed and peak memory against the budget.

use crate::records::{
    bytes::Bytes,
    svg::{At, COLOURS, Canvas},
};

use super::{bounds, budget::Budget, cell::Cell, summary::Summary, table};

/// Relative to the unlimited run: all sizes share a picture.
struct Series<'a> {
    reference: &'a Summary,
    model: &'a str,
    points: Vec<Point<'a>>,
    misses: Vec<f64>,
}

struct Point<'a> {
    /// `None` is no limit.
    budget: Option<f64>,
    run: &'a Summary,
    /// Unlimited peak in bytes.
    whole: f64,
    speed: f64,
    peak: f64,
}

const PANEL: (f64, f64) = (340.0, 230.0);
const TOP: f64 = 50.0;
const LEGEND: f64 = TOP + PANEL.1 + 70.0;
const LEGEND_LINE: f64 = 20.0;
pub(super) fn svg(cells: &[Cell]) -> String {
    let series = series(cells);
    let height = LEGEND + LEGEND_LINE * series.len().max(1) as f64;
    let title = "Speed and peak device memory against the device budget";
    let mut canvas = Canvas::new(860.0, height, title);
    let budget = most(series.iter().flat_map(Series::budgets));
    let points = || series.iter().flat_map(|series| &series.points);
    let speed = Panel { left: 60.0, budget, top: most(points().map(|point| point.speed)) };
    let peak = Panel { left: 480.0, budget, top: most(points().map(|point| point.peak)) };
    speed.axes(&mut canvas, "Tokens/s, of unlimited", "device budget, of unlimited peak (× did not train)");
    peak.axes(&mut canvas, "Peak device bytes, of unlimited peak", "device budget (dashed: all of it used)");
    let end = peak.top.min(budget);
    canvas.line("limit", peak.at(Some(0.0), 0.0), peak.at(Some(end), end));
    for (number, series) in series.iter().enumerate() {
        let colour = format!("c{}", number % COLOURS);
        speed.draw(&mut canvas, series, &colour, |point| point.speed);
        peak.draw(&mut canvas, series, &colour, |point| point.peak);
        for &budget in &series.misses {
            canvas.cross(&format!("line {colour}"), speed.at(Some(budget), 0.0));
        }
        series.legend(&mut canvas, &colour, LEGEND + LEGEND_LINE * number as f64);
    }
    if series.is_empty() {
        canvas.text("", (speed.left, LEGEND), "No model has a run without a limit to compare with.");
    }
    canvas.finish()
}

/// Spilled bytes per step against the budget, the bound dashed. `None` without bounds.
pub(super) fn bytes(cells: &[Cell]) -> Option<String> {
    let mut series = series(cells);
    let moved = |point: &Point| {
        let sum = |(bytes_in, bytes_out): (u64, u64)| (bytes_in + bytes_out) as f64 / point.whole;
        bounds::moved_and_bound(point.run).map(|both| both.map(sum))
    };
    for series in &mut series {
        series.points.retain(|point| point.budget.is_some() && moved(point).is_some());
    }
    series.retain(|series| !series.points.is_empty());

    let budget = most(series.iter().flat_map(Series::budgets));
    let points = || series.iter().flat_map(|series| &series.points);
    let top = most(points().filter_map(moved).map(|[moved, least]| moved.max(least)));
    points().next()?;

    let height = LEGEND + LEGEND_LINE * series.len() as f64;
    let title = "Bytes moved in a step against the device budget, and the least that could move";
    let mut canvas = Canvas::new(460.0, height, title);
    let panel = Panel { left: 60.0, budget, top };
    panel.axes(
        &mut canvas,
        "Bytes of a step, of unlimited peak",
        "device budget, of unlimited peak (dashed: the bound)",
    );

    for (number, series) in series.iter().enumerate() {
        let colour = format!("c{}", number % COLOURS);
        let line = |which: usize| -> Vec<At> {
            let value = |point: &Point| moved(point).map_or(0.0, |both| both[which]);
            series.points.iter().map(|point| panel.at(point.budget, value(point))).collect()
        };
        canvas.path(&format!("line dashed {colour}"), &line(1));
        canvas.path(&format!("line {colour}"), &line(0));
        for (point, at) in series.points.iter().zip(line(0)) {
            let [moved, least] = bounds::moved_and_bound(point.run).unwrap_or_default();
            let budget = point.budget.map_or_else(String::new, percent);
            let [moved, least] = [moved, least].map(|(bytes_in, bytes_out)| Bytes(bytes_in + bytes_out));
            canvas.dot(&colour, at, &format!("{} at {budget}: {moved} of at least {least}", series.model));
        }
        series.legend(&mut canvas, &colour, LEGEND + LEGEND_LINE * number as f64);
    }
    Some(canvas.finish())
}

fn series(cells: &[Cell]) -> Vec<Series<'_>> {
    let references = cells.iter().filter(|cell| cell.budget == Budget::Unlimited);
    references.filter_map(|cell| Series::new(cell, cells)).collect()
}

impl<'a> Series<'a> {
    fn new(cell: &'a Cell, cells: &'a [Cell]) -> Option<Self> {
        let (model, reference) = (cell.model.as_str(), cell.reference(cells)?);
        let share = |bytes: u64| bytes as f64 / reference.peak_device_bytes.max(1) as f64;
        let point = |run: &'a Summary, budget| Point {
            budget,
            run,
            whole: reference.peak_device_bytes.max(1) as f64,
            speed: table::ratio(run, reference),
            peak: share(run.peak_device_bytes),
        };
        let own = || cells.iter().filter(|cell| cell.model == model);
        let mut points: Vec<_> =
            own().filter_map(|cell| Some(point(cell.summary()?, cell.limit.map(share)))).collect();
        points.sort_by(|a, b| a.budget.unwrap_or(f64::MAX).total_cmp(&b.budget.unwrap_or(f64::MAX)));
        let misses = own().filter(|cell| cell.summary().is_none()).filter_map(|cell| cell.limit.map(share));
        Some(Self { reference, model, points, misses: misses.collect() })
    }

    fn budgets(&self) -> impl Iterator<Item = f64> {
        self.points.iter().filter_map(|point| point.budget).chain(self.misses.iter().copied())
    }

    fn legend(&self, canvas: &mut Canvas, colour: &str, y: f64) {
        canvas.line(&format!("line {colour}"), (60.0, y - 4.0), (84.0, y - 4.0));
        let Summary { parameters, peak_device_bytes, tokens_per_second, .. } = self.reference;
        let said = format!(
            "{} ({}): unlimited {tokens_per_second:.0} tokens/s, peak {}",
            self.model,
            table::parameters(*parameters),
            Bytes(*peak_device_bytes)
        );
        canvas.text("", (92.0, y), &said);
    }
}

/// At least 1: axes reach 100 %.
fn most(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(1.0, f64::max)
}

struct Panel {
    left: f64,
    budget: f64,
    top: f64,
}

impl Panel {
    fn at(&self, budget: Option<f64>, value: f64) -> At {
        let across = budget.map_or(1.0, |budget| budget / self.budget * 0.81);
        (self.left + PANEL.0 * across, TOP + PANEL.1 * (1.0 - value / self.top))
    }

    fn axes(&self, canvas: &mut Canvas, title: &str, across: &str) {
        canvas.text("title", (self.left, TOP - 20.0), title);
        canvas.text("x", (self.left + PANEL.0 / 2.0, TOP + PANEL.1 + 38.0), across);
        for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
            let (_, y) = self.at(None, share);
            canvas.line("grid", (self.left, y), (self.left + PANEL.0, y));
            canvas.text("y", (self.left - 8.0, y + 4.0), &percent(share));
            let budget = share * self.budget;
            self.budget_label(canvas, Some(budget), &percent(budget));
        }
        self.budget_label(canvas, None, "unlimited");
    }

    fn budget_label(&self, canvas: &mut Canvas, budget: Option<f64>, said: &str) {
        let (x, y) = self.at(budget, 0.0);
        canvas.text("x", (x, y + 18.0), said);
    }

    fn draw(&self, canvas: &mut Canvas, series: &Series, colour: &str, value: fn(&Point) -> f64) {
        let at = |point: &Point| self.at(point.budget, value(point));
        let path: Vec<At> = series.points.iter().map(at).collect();
        canvas.path(&format!("line {colour}"), &path);
        for point in &series.points {
            let budget = point.budget.map_or_else(|| "unlimited".to_owned(), percent);
            let peak = Bytes(point.run.peak_device_bytes);
            let said = format!("{} at {budget}: {:.2} of unlimited, peak {peak}", series.model, point.speed);
            canvas.dot(colour, at(point), &said);
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::{
        super::cell::{Outcome, tests::three},
        *,
    };

    #[test]
    fn a_model_is_a_line_of_fitting_budgets_and_a_cross_per_miss() {
        let drawn = svg(&three());
        let count = |element: &str| drawn.matches(element).count();
        assert_eq!((count("<polyline"), count("<circle"), count("<line class=\"line c0\"")), (2, 4, 3));
        assert!(drawn.contains("toy at 50 %: 0.72 of unlimited, peak 19.1 MiB"), "{drawn}");
        assert!(drawn.contains("toy (1.2M): unlimited 3000 tokens/s, peak 38.1 MiB"), "{drawn}");
    }

    #[test]
    fn bytes_of_a_step_are_a_line_above_the_dashed_one_of_the_bound() {
        assert_eq!(bytes(&three()), None, "no cell has a bound");
        let mut cells = three();
        let Outcome::Fits(run) = &mut cells[1].outcome else { unreachable!("the second one fits") };
        (run.spilled_in_median, run.spilled_out_median) = (Some(20 << 20), Some(10 << 20));
        (run.least_in, run.least_out) = (Some(18 << 20), Some(9 << 20));
        let drawn = bytes(&cells).expect("one cell has");
        assert!(drawn.contains("toy at 50 %: 30.0 MiB of at least 27.0 MiB"), "{drawn}");
        let height = |class: &str| -> f64 {
            let points =
                drawn.split(&format!("<polyline class=\"{class}\" points=\"")).nth(1).expect("a line");
            points.split(['"', ' ', ',']).nth(1).and_then(|y| y.parse().ok()).expect("a point")
        };
        assert!(height("line c0") < height("line dashed c0"), "higher is nearer to the top: {drawn}");
    }

    #[test]
    fn faster_lies_higher_and_larger_budgets_further_right() {
        let panel = Panel { left: 0.0, budget: 1.0, top: 1.0 };
        let ((slow_x, slow_y), (fast_x, fast_y)) = (panel.at(Some(0.5), 0.72), panel.at(None, 1.0));
        assert!(slow_y > fast_y && slow_x < fast_x);
        assert!(panel.at(Some(0.25), 0.0).0 < slow_x && panel.at(Some(1.0), 0.0).0 < fast_x);
    }

    #[test]
    fn a_picture_is_self_contained_and_has_dark_colours() {
        let drawn = svg(&three());
        assert!(drawn.contains("prefers-color-scheme:dark") && drawn.contains("class=\"page\""));
        for foreign in ["href", "url(", "<script", "@import"] {
            assert!(!drawn.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn a_model_without_a_reference_is_left_out_and_an_empty_picture_says_why() {
        let mut cells = three();
        cells[0].outcome = Outcome::Killed("signal: 9".to_owned());
        let drawn = svg(&cells);
        assert!(
            !drawn.contains("<polyline") && drawn.contains("No model has a run without a limit"),
            "{drawn}"
        );
    }
}
