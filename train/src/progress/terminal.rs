//! Burn's terminal interface, with a working Ctrl-C.
//!
//! Burn ignores Ctrl-C in raw mode: this module turns the key into a signal.

#[cfg(unix)]
use std::{io::Write, sync::OnceLock};

use burn_train::{
    Interrupter, LearnerSummary,
    metric::MetricDefinition,
    renderer::{
        EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
        MetricsRendererTraining, ProgressType, TrainingProgress, tui::TuiMetricsRendererWrapper,
    },
};

#[cfg(unix)]
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

pub(crate) struct TerminalRenderer(TuiMetricsRendererWrapper);

/// A request to stop raises `interrupter`.
pub(crate) fn take_over(interrupter: Interrupter) -> TerminalRenderer {
    remember();
    TerminalRenderer(TuiMetricsRendererWrapper::new(interrupter, None))
}

#[cfg(unix)]
static BEFORE: OnceLock<Termios> = OnceLock::new();

#[cfg(unix)]
fn remember() {
    if let Ok(modes) = tcgetattr(std::io::stdin()) {
        BEFORE.get_or_init(|| modes);
    }
}

#[cfg(not(unix))]
fn remember() {}

/// For a process that ends at once.
#[cfg(unix)]
pub(crate) fn give_back() {
    if let Some(modes) = BEFORE.get() {
        print!("\x1b[?1049l\x1b[?25h");
        let _ = std::io::stdout().flush();
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, modes);
    }
}

#[cfg(not(unix))]
pub(crate) fn give_back() {}

#[cfg(unix)]
fn signals_on() {
    let input = std::io::stdin();
    let Ok(mut modes) = tcgetattr(&input) else { return };
    if !modes.local_modes.contains(LocalModes::ISIG) {
        modes.local_modes.insert(LocalModes::ISIG);
        // If refused, Ctrl-C stays a key; `q` stops the run.
        let _refused = tcsetattr(&input, OptionalActions::Now, &modes);
    }
}

#[cfg(not(unix))]
fn signals_on() {}

impl MetricsRendererTraining for TerminalRenderer {
    fn update_train(&mut self, state: MetricState) {
        self.0.update_train(state);
    }

    fn update_valid(&mut self, state: MetricState) {
        self.0.update_valid(state);
    }

    fn render_train(&mut self, item: TrainingProgress, indicators: Vec<ProgressType>) {
        // Another thread enters raw mode at an unknown time.
        signals_on();
        self.0.render_train(item, indicators);
    }

    fn render_valid(&mut self, item: TrainingProgress, indicators: Vec<ProgressType>) {
        self.0.render_valid(item, indicators);
    }

    fn on_train_end(&mut self, summary: Option<LearnerSummary>) -> Result<(), Box<dyn std::error::Error>> {
        self.0.on_train_end(summary)
    }
}

impl MetricsRendererEvaluation for TerminalRenderer {
    fn update_test(&mut self, name: EvaluationName, state: MetricState) {
        self.0.update_test(name, state);
    }

    fn render_test(&mut self, item: EvaluationProgress, indicators: Vec<ProgressType>) {
        self.0.render_test(item, indicators);
    }
}

impl MetricsRenderer for TerminalRenderer {
    fn manual_close(&mut self) {
        self.0.manual_close();
    }

    fn register_metric(&mut self, definition: MetricDefinition) {
        self.0.register_metric(definition);
    }
}
