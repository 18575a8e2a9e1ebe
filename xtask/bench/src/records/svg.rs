//! An SVG canvas of lines, dots and text.

use std::fmt::{Arguments, Write as _};

/// From the top left.
pub(crate) type At = (f64, f64);

/// Classes `c0`, `c1` and so on.
pub(crate) const COLOURS: usize = 6;

const STYLE: &str = "\
text{font:12px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}.x{text-anchor:middle}.y{text-anchor:end}\
.page{fill:#fff}.grid{stroke:#d0d7de}.limit{stroke:#8c959f;stroke-dasharray:4 4}.line{fill:none;stroke-width:2}.dashed{stroke-dasharray:6 4}\
.c0{stroke:#0072b2}.c1{stroke:#d55e00}.c2{stroke:#009e73}.c3{stroke:#a0468c}.c4{stroke:#946200}.c5{stroke:#57606a}\
circle{fill:#fff;stroke-width:2}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}.grid{stroke:#30363d}.limit{stroke:#8b949e}\
circle{fill:#0d1117}.c0{stroke:#58a6ff}.c1{stroke:#ff9a5c}.c2{stroke:#3fd6a5}.c3{stroke:#e58fd1}.c4{stroke:#e3b341}\
.c5{stroke:#b1bac4}}";

pub(crate) struct Canvas(String);

impl Canvas {
    pub(crate) fn new(width: f64, height: f64, title: &str) -> Self {
        let mut canvas = Self(String::new());
        canvas.put(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
             <title>{}</title>\n<style>{STYLE}</style>\n\
             <rect class=\"page\" width=\"100%\" height=\"100%\"/>",
            escaped(title)
        ));
        canvas
    }

    pub(crate) fn line(&mut self, class: &str, (x1, y1): At, (x2, y2): At) {
        self.put(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    pub(crate) fn path(&mut self, class: &str, points: &[At]) {
        let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.put(format_args!("<polyline class=\"{class}\" points=\"{}\"/>", points.join(" ")));
    }

    pub(crate) fn dot(&mut self, class: &str, (x, y): At, said: &str) {
        self.put(format_args!(
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"><title>{}</title></circle>",
            escaped(said)
        ));
    }

    pub(crate) fn cross(&mut self, class: &str, (x, y): At) {
        self.line(class, (x - 4.0, y - 4.0), (x + 4.0, y + 4.0));
        self.line(class, (x - 4.0, y + 4.0), (x + 4.0, y - 4.0));
    }

    pub(crate) fn text(&mut self, class: &str, (x, y): At, said: &str) {
        let said = escaped(said);
        self.put(format_args!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{said}</text>"));
    }

    pub(crate) fn finish(self) -> String {
        self.0 + "</svg>\n"
    }

    fn put(&mut self, element: Arguments) {
        writeln!(self.0, "{element}").expect("a string takes every line");
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        let mut canvas = Canvas::new(10.0, 10.0, "<t>");
        canvas.text("", (1.0, 2.0), "a&b");
        canvas.dot("", (1.0, 2.0), "x>y");
        let drawn = canvas.finish();
        for said in ["&lt;t&gt;", ">a&amp;b<", "x&gt;y"] {
            assert!(drawn.contains(said), "{said} is missing from {drawn}");
        }
    }
}
