//! One chart as SVG.

use std::fmt::{self, Write};

use super::markup::Escaped;
use super::scale::Scale;
use super::thinning::{Point, thin};

const POINTS: usize = 2000;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = WIDTH - 20.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = HEIGHT - 26.0;

#[derive(Debug, Clone)]
pub(super) struct Chart {
    pub(super) title: &'static str,
    pub(super) unit: &'static str,
    pub(super) reading: &'static str,
    pub(super) from_zero: bool,
    pub(super) curves: Vec<Curve>,
    pub(super) marks: Vec<Marks>,
}

#[derive(Debug, Clone)]
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) look: Look,
    pub(super) points: Vec<Point>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    First,
    /// Faint, behind the first curve.
    FirstRaw,
    Second,
    /// A dot at each point.
    SecondDotted,
    Limit,
    Run(usize),
}

pub(super) const RUNS: [&str; 6] = ["run-0", "run-1", "run-2", "run-3", "run-4", "run-5"];

#[derive(Debug, Clone)]
pub(super) struct Marks {
    pub(super) name: &'static str,
    pub(super) class: &'static str,
    pub(super) steps: Vec<u64>,
}

impl Look {
    fn class(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::FirstRaw => "first raw",
            Self::Second | Self::SecondDotted => "second",
            Self::Limit => "limit",
            Self::Run(number) => RUNS[number % RUNS.len()],
        }
    }
}

impl Chart {
    pub(super) fn is_empty(&self) -> bool {
        self.curves.iter().all(|curve| curve.points.is_empty())
    }

    fn scales(&self) -> (Scale, Scale) {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let first = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
        let last = points().map(|point| point.0).fold(first, f64::max);
        let values = points().map(|point| point.1).collect();
        (Scale::exact(first, last), Scale::around(values, self.from_zero))
    }
}

impl fmt::Display for Chart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (steps, values) = self.scales();
        let suffix = if values.logarithmic { ", powers of ten" } else { "" };
        writeln!(f, "<figure>\n<figcaption><b>{}</b> <span>{}{suffix}</span>", self.title, self.unit)?;
        for curve in &self.curves {
            writeln!(f, "<span class=\"key {}\">{}</span>", curve.look.class(), Escaped(&curve.name))?;
        }

        for marks in self.marks.iter().filter(|marks| !marks.steps.is_empty()) {
            writeln!(f, "<span class=\"key {}\">{}</span>", marks.class, marks.name)?;
        }

        writeln!(f, "</figcaption>")?;
        write!(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\"")?;
        write!(f, " aria-label=\"{}\" data-x=\"{} {} {LEFT} {RIGHT}\"", self.title, steps.low, steps.high)?;
        let logarithmic = u8::from(values.logarithmic);
        writeln!(f, " data-y=\"{} {} {BOTTOM} {TOP} {logarithmic}\">", values.low, values.high)?;
        axes(f, &steps, &values)?;
        for marks in &self.marks {
            draw_marks(f, marks, &steps)?;
        }

        for curve in &self.curves {
            draw(f, curve, &steps, &values)?;
        }
        writeln!(f, "<path class=\"cursor\" d=\"\"/>\n</svg>\n<output></output>")?;
        writeln!(f, "<p class=\"reading\">{}</p>\n</figure>", Escaped(self.reading))
    }
}

fn x(steps: &Scale, step: f64) -> f64 {
    LEFT + steps.place(step) * (RIGHT - LEFT)
}

fn y(place: f64) -> f64 {
    BOTTOM - place * (BOTTOM - TOP)
}

fn axes(f: &mut fmt::Formatter<'_>, steps: &Scale, values: &Scale) -> fmt::Result {
    for (place, label) in values.ticks() {
        let y = y(place);
        write!(f, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>")?;
        writeln!(f, "<text class=\"value\" x=\"{}\" y=\"{:.1}\">{label}</text>", LEFT - 6.0, y + 4.0)?;
    }
    for (place, label) in steps.ticks() {
        let x = LEFT + place * (RIGHT - LEFT);
        writeln!(f, "<text class=\"step\" x=\"{x:.1}\" y=\"{}\">{label}</text>", BOTTOM + 17.0)?;
    }
    writeln!(f, "<path class=\"axis\" d=\"M{LEFT} {BOTTOM}H{RIGHT}\"/>")
}

fn draw(f: &mut fmt::Formatter<'_>, curve: &Curve, steps: &Scale, values: &Scale) -> fmt::Result {
    let places =
        thin(&curve.points, POINTS).into_iter().map(|(step, value)| (x(steps, step), y(values.place(value))));
    let mut points = String::new();
    let mut dots = String::new();
    for (x, y) in places {
        let gap = if points.is_empty() { "" } else { " " };
        write!(points, "{gap}{x:.1},{y:.2}")?;
        if curve.look == Look::SecondDotted {
            write!(dots, "M{x:.1} {y:.2}h0")?;
        }
    }
    let (name, class) = (Escaped(&curve.name), curve.look.class());
    writeln!(f, "<polyline class=\"{class}\" data-name=\"{name}\" points=\"{points}\"/>")?;
    if dots.is_empty() { Ok(()) } else { writeln!(f, "<path class=\"dots {class}\" d=\"{dots}\"/>") }
}

/// Draws marks at the same x only once.
fn draw_marks(f: &mut fmt::Formatter<'_>, marks: &Marks, steps: &Scale) -> fmt::Result {
    let (first, last) = (steps.low, steps.high);
    let inside = marks.steps.iter().map(|step| *step as f64).filter(|step| (first..=last).contains(step));
    let mut places: Vec<String> = inside.map(|step| format!("{:.0}", x(steps, step))).collect();
    places.dedup();
    if places.is_empty() {
        return Ok(());
    }
    write!(f, "<path class=\"mark {}\" d=\"", marks.class)?;
    places.iter().try_for_each(|x| write!(f, "M{x} {TOP}V{BOTTOM}"))?;
    writeln!(f, "\"/>")
}
