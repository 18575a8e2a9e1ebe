//! A progress bar over bytes; without a terminal it prints nothing.

use std::time::{Duration, Instant};

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use tokenizer::Progress;

pub(crate) struct InputBar {
    bar: ProgressBar,
    begun: Instant,
    drawn: Option<Instant>,
}

/// A line costs more than reading a small document.
const BETWEEN_DRAWS: Duration = Duration::from_millis(200);

impl InputBar {
    pub(crate) fn new() -> Self {
        let style =
            ProgressStyle::with_template("{elapsed_precise} {wide_bar} {percent:>3} % | {msg} | ETA {eta}")
                .expect("the template names fields that exist");
        let bar = ProgressBar::new(0).with_style(style);
        Self { bar, begun: Instant::now(), drawn: None }
    }

    pub(crate) fn set(&mut self, progress: Progress) {
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < BETWEEN_DRAWS) {
            return;
        }
        self.drawn = Some(Instant::now());
        let seconds = self.seconds();
        let mut rates = format!(
            "{:.0} docs/s | {:.1} MB/s",
            progress.documents as f64 / seconds,
            progress.bytes as f64 / 1e6 / seconds
        );
        if progress.tokens > 0 {
            rates = format!("{rates} | {} tokens", HumanCount(progress.tokens));
        }
        self.bar.set_length(progress.input_bytes);
        self.bar.set_position(progress.position);
        self.bar.set_message(rates);
    }

    pub(crate) fn set_written(&self, done: u64, all: u64) {
        let rate = format!("{:.1} MB/s", done as f64 / 1e6 / self.seconds());
        self.bar.set_length(all);
        self.bar.set_position(done);
        self.bar.set_message(rate);
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64().max(1e-9)
    }

    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
