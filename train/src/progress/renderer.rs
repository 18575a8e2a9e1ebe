//! Lines on standard error, as a Burn renderer.

use burn_train::{
    logger::MetricLogger,
    metric::{
        MetricDefinition, MetricId, NumericEntry,
        store::{EpochSummary, MetricsUpdate, Split},
    },
    renderer::{
        EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
        MetricsRendererTraining, ProgressType, TrainingProgress,
    },
};

use super::{Lines, StepLines};

/// Prints no summary at the end.
#[derive(Debug)]
pub(crate) struct PlainRenderer {
    metric: Option<MetricId>,
    lines: Option<StepLines>,
}

impl PlainRenderer {
    /// Silent without `lines`, as on ranks other than 0.
    pub(crate) fn new(lines: Option<StepLines>) -> Self {
        Self { metric: None, lines }
    }
}

impl MetricsRendererTraining for PlainRenderer {
    fn update_train(&mut self, state: MetricState) {
        if let MetricState::Generic(entry) = state
            && Some(&entry.metric_id) == self.metric.as_ref()
            && let Some(lines) = &mut self.lines
            && let Some((steps, short)) = Lines::parse(&entry.serialized_entry.serialized)
        {
            lines.show(steps, &entry.serialized_entry.formatted, short);
        }
    }

    fn update_valid(&mut self, _state: MetricState) {}

    fn render_train(&mut self, _item: TrainingProgress, _indicators: Vec<ProgressType>) {}

    fn render_valid(&mut self, _item: TrainingProgress, _indicators: Vec<ProgressType>) {}
}

impl MetricsRendererEvaluation for PlainRenderer {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}

    fn render_test(&mut self, _item: EvaluationProgress, _indicators: Vec<ProgressType>) {}
}

impl MetricsRenderer for PlainRenderer {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, definition: MetricDefinition) {
        if *definition.name == *Lines::NAME {
            self.metric = Some(definition.metric_id);
        }
    }
}

/// The training thread writes `metrics.jsonl` instead.
#[derive(Debug)]
pub(crate) struct NoLogger;

impl MetricLogger for NoLogger {
    fn log(&mut self, _update: MetricsUpdate, _epoch: usize, _split: &Split) {}

    fn read_numeric(
        &mut self,
        name: &str,
        _epoch: usize,
        _split: &Split,
    ) -> Result<Vec<NumericEntry>, String> {
        Err(format!("{name} is not kept; see metrics.jsonl"))
    }

    fn log_metric_definition(&mut self, _definition: MetricDefinition) {}

    fn log_epoch_summary(&mut self, _summary: EpochSummary) {}
}
