//! The page with its charts and tables.

use std::fmt::{self, Write};

use super::chart::Chart;
use super::curves::charts;
use super::history::History;
use super::markup::Escaped;
use super::ranks::{self, Rank};
use super::{tables, timeline, verdict};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

pub(super) fn render(name: &str, history: &History, others: &[Rank]) -> String {
    let mut page = String::new();
    write(&mut page, name, history, others).expect("a string takes everything");
    page
}

fn write(page: &mut String, name: &str, history: &History, others: &[Rank]) -> fmt::Result {
    head(page, name)?;
    writeln!(page, "<p class=\"verdict\">{}</p>", Escaped(&verdict::of(history)))?;
    writeln!(page, "<dl>")?;
    for (fact, value) in tables::facts(history) {
        writeln!(page, "<div><dt>{fact}</dt><dd>{}</dd></div>", Escaped(&value))?;
    }

    writeln!(page, "</dl>")?;
    draw(page, &charts(history, others))?;
    timeline::write(page, history)?;
    ranks::table(page, history, others)?;
    tables::quiz(page, history)?;
    tables::samples(page, &history.samples)?;
    tables::evals(page, &history.evals)?;
    tables::mishaps(page, history)?;
    foot(page)
}

pub(super) fn head(page: &mut String, title: &str) -> fmt::Result {
    let title = Escaped(title);
    writeln!(page, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>")?;
    writeln!(page, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>")?;
    writeln!(
        page,
        "<title>{title}: training report</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>"
    )
}

pub(super) fn draw(page: &mut String, charts: &[Chart]) -> fmt::Result {
    if charts.is_empty() {
        writeln!(page, "<p>No step has been taken yet.</p>")?;
    }
    writeln!(page, "<div class=\"charts\">")?;
    charts.iter().try_for_each(|chart| write!(page, "{chart}"))?;
    writeln!(page, "</div>")
}

pub(super) fn foot(page: &mut String) -> fmt::Result {
    writeln!(page, "<script>\n{SCRIPT}</script>\n</body>\n</html>")
}
