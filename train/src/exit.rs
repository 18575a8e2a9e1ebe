//! The program's exit codes. Only `main` ends the process with one.

use std::{io, process::ExitCode};

use backend_offload::OffloadError;
use runs::{BadInput, checkpoint::CheckpointError, config::ConfigError};
use tokenizer::IndexProblem;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Done,
    /// Stopped on request, with a checkpoint if there was a run to save.
    Interrupted,
    /// Too many steps in a row had no usable gradient; a checkpoint holds the last good weights.
    Diverged,
}

impl Ending {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Interrupted => "interrupted",
            Self::Diverged => "diverged",
        }
    }

    pub(crate) fn code(self) -> ExitCode {
        ExitCode::from(self.number())
    }

    fn number(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Interrupted => 3,
            Self::Diverged => 4,
        }
    }

    pub(crate) fn from_exit_code(code: i32) -> Option<Self> {
        [Self::Done, Self::Interrupted, Self::Diverged]
            .into_iter()
            .find(|ending| i32::from(ending.number()) == code)
    }
}

/// 2 for correctable input, the code of [`Ending::Interrupted`] after a request to stop, otherwise 1.
pub(crate) fn code_of(error: &anyhow::Error) -> ExitCode {
    let is_interrupted = |cause: &(dyn std::error::Error + 'static)| {
        matches!(cause.downcast_ref(), Some(tokenizer::Error::Interrupted))
    };
    if error.chain().any(is_interrupted) {
        return Ending::Interrupted.code();
    }
    ExitCode::from(if is_bad_input(error) { 2 } else { 1 })
}

pub(crate) fn is_bad_input(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<BadInput>()
            || cause.is::<ConfigError>()
            || cause.is::<models::ConfigError>()
            || matches!(cause.downcast_ref(), Some(CheckpointError::Absent { .. }))
            || cause.downcast_ref::<models::GenerateError>().is_some_and(is_bad_request)
            || cause.downcast_ref::<OffloadError>().is_some_and(names_a_wrong_budget)
            || matches!(
                cause.downcast_ref(),
                Some(tokenizer::Error::Option { .. } | tokenizer::Error::NoTokenizer { .. })
            )
            || matches!(cause.downcast_ref(), Some(tokenizer::Error::Read { cause, .. }) if is_absent(cause))
            || matches!(cause.downcast_ref(), Some(tokenizer::Error::Index { problem, .. }) if is_the_wrong_one(problem))
    })
}

fn is_bad_request(error: &models::GenerateError) -> bool {
    !matches!(error, models::GenerateError::Unread { .. })
}

fn names_a_wrong_budget(error: &OffloadError) -> bool {
    matches!(
        error,
        OffloadError::Budget(_)
            | OffloadError::BudgetTooSmall { .. }
            | OffloadError::BudgetAboveDevice { .. }
            | OffloadError::UnknownShare { .. }
            | OffloadError::Environment { .. }
    )
}

/// Whether the index is another text's or program's, not damaged.
fn is_the_wrong_one(problem: &IndexProblem) -> bool {
    matches!(
        problem,
        IndexProblem::NoIndex | IndexProblem::OtherShards { .. } | IndexProblem::OtherTokenizer { .. }
    )
}

/// Panics as `println!` does on any other error, such as a full disk.
pub(crate) fn allow_no_reader(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        panic!("printing to standard output: {error}");
    }
}

fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
