//! A step's numbers as Burn's metrics, for its renderers.

use std::sync::Arc;

use burn_train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};

use super::{Report, Validation};
use super::{line, short_line};

#[derive(Clone)]
pub(crate) struct Scalar<T> {
    name: MetricName,
    unit: Option<&'static str>,
    higher_is_better: bool,
    value: fn(&T) -> f64,
    last: f64,
}

impl<T> Scalar<T> {
    fn new(name: &str, unit: Option<&'static str>, higher_is_better: bool, value: fn(&T) -> f64) -> Self {
        Self { name: Arc::new(name.to_owned()), unit, higher_is_better, value, last: f64::NAN }
    }
}

pub(crate) fn train_scalars() -> Vec<Scalar<Report>> {
    const GIB: f64 = (1_u64 << 30) as f64;
    vec![
        Scalar::new("Loss", None, false, |report: &Report| f64::from(report.loss)),
        Scalar::new("Learning rate", None, true, |report| report.lr),
        Scalar::new("Gradient norm", None, false, |report| f64::from(report.gnorm)),
        Scalar::new("Tokens per second", None, true, |report| report.tokens_per_second),
        Scalar::new("Device memory", Some("GiB"), false, |report| report.device_bytes as f64 / GIB),
        Scalar::new("Host memory", Some("GiB"), false, |report| report.host_bytes as f64 / GIB),
        Scalar::new("Moved", Some("GiB"), false, |report| {
            report.over_the_link().into_iter().sum::<u64>() as f64 / GIB
        }),
    ]
}

pub(crate) fn valid_loss() -> Scalar<Validation> {
    Scalar::new("Loss", None, false, |validation: &Validation| validation.sum / validation.counted.max(1.0))
}

impl<T: Send + Sync + Clone> Metric for Scalar<T> {
    type Input = T;

    fn name(&self) -> MetricName {
        Arc::clone(&self.name)
    }

    fn attributes(&self) -> MetricAttributes {
        let unit = self.unit.map(str::to_owned);
        NumericAttributes { unit, higher_is_better: self.higher_is_better }.into()
    }

    fn update(&mut self, item: &T, _metadata: &MetricMetadata) -> SerializedEntry {
        self.last = (self.value)(item);
        SerializedEntry::new(format!("{:.4}", self.last), self.last.to_string())
    }

    fn clear(&mut self) {
        self.last = f64::NAN;
    }
}

impl<T> Numeric for Scalar<T> {
    fn value(&self) -> NumericEntry {
        NumericEntry::Value(self.last)
    }

    fn running_value(&self) -> NumericEntry {
        NumericEntry::Value(self.last)
    }
}

/// Serialised entries hold step, steps of the run, and short line.
#[derive(Debug, Clone)]
pub(crate) struct Lines;

impl Lines {
    pub(crate) const NAME: &str = "Step";

    pub(crate) fn parse(entry: &str) -> Option<([u64; 2], &str)> {
        let mut parts = entry.splitn(3, ' ');
        let mut number = || parts.next()?.parse().ok();
        let steps = [number()?, number()?];
        Some((steps, parts.next()?))
    }
}

impl Metric for Lines {
    type Input = Report;

    fn name(&self) -> MetricName {
        Arc::new(Self::NAME.to_owned())
    }

    fn update(&mut self, report: &Report, _metadata: &MetricMetadata) -> SerializedEntry {
        let short = format!("{} {} {}", report.step, report.steps, short_line(report));
        SerializedEntry::new(line(report), short)
    }

    fn clear(&mut self) {}
}
