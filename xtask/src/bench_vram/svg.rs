//! Lines, dots and words as SVG.

use std::fmt::{Arguments, Write as _};

/// A point in the picture, from its top left.
pub(super) type At = (f64, f64);

pub(super) struct Canvas(String);

impl Canvas {
    pub(super) fn new(width: f64, height: f64, title: &str, style: &str) -> Self {
        let mut canvas = Self(String::new());
        canvas.put(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
             <title>{}</title>\n<style>{style}</style>\n\
             <rect class=\"page\" width=\"100%\" height=\"100%\"/>",
            escaped(title)
        ));
        canvas
    }

    pub(super) fn line(&mut self, class: &str, (x1, y1): At, (x2, y2): At) {
        self.put(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    pub(super) fn path(&mut self, class: &str, points: &[At]) {
        let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.put(format_args!("<polyline class=\"{class}\" points=\"{}\"/>", points.join(" ")));
    }

    /// With words that show while the pointer rests on it.
    pub(super) fn dot(&mut self, class: &str, (x, y): At, said: &str) {
        self.put(format_args!(
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"><title>{}</title></circle>",
            escaped(said)
        ));
    }

    pub(super) fn cross(&mut self, class: &str, (x, y): At) {
        self.line(class, (x - 4.0, y - 4.0), (x + 4.0, y + 4.0));
        self.line(class, (x - 4.0, y + 4.0), (x + 4.0, y - 4.0));
    }

    pub(super) fn words(&mut self, class: &str, (x, y): At, said: &str) {
        let said = escaped(said);
        self.put(format_args!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{said}</text>"));
    }

    pub(super) fn finish(self) -> String {
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
    fn words_cannot_break_the_picture() {
        let mut canvas = Canvas::new(10.0, 10.0, "<t>", "");
        canvas.words("", (1.0, 2.0), "a&b");
        canvas.dot("", (1.0, 2.0), "x>y");
        let drawn = canvas.finish();
        for said in ["&lt;t&gt;", ">a&amp;b<", "x&gt;y"] {
            assert!(drawn.contains(said), "{said} is missing from {drawn}");
        }
    }
}
