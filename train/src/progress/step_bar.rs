//! A progress bar for work in named steps, each with a known number of tokens.

use indicatif::{ProgressBar, ProgressStyle};

pub(crate) struct StepBar(ProgressBar);

impl StepBar {
    pub(crate) fn new() -> Self {
        let style =
            ProgressStyle::with_template("{elapsed_precise} {msg:10} {wide_bar} {percent:>3} % | ETA {eta}")
                .expect("the template names fields that exist");
        Self(ProgressBar::new(0).with_style(style))
    }

    /// Shows progress; a changed name starts a new step.
    pub(crate) fn set(&mut self, step: &'static str, done: u64, all: u64) {
        if self.0.message() != step {
            self.0.reset_eta();
            self.0.set_message(step);
        }
        self.0.set_length(all);
        self.0.set_position(done);
    }

    pub(crate) fn clear(&self) {
        self.0.finish_and_clear();
    }
}
