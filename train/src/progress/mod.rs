//! The display of a run's progress.

mod input_bar;
mod line;
mod metrics;
mod renderer;
mod report;
mod step_bar;
mod step_lines;
pub(crate) mod terminal;

pub(crate) use input_bar::InputBar;
pub(crate) use line::{line, short_line};
pub(crate) use metrics::{Lines, train_scalars, valid_loss};
pub(crate) use renderer::{NoLogger, PlainRenderer};
pub(crate) use report::{Report, Validation};
pub(crate) use step_bar::StepBar;
pub(crate) use step_lines::{StepLines, clear};
