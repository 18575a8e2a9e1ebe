//! The update rules.

use crate::adamw::AdamW;
use crate::sgd::Sgd;

/// The rule of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// For states with two moments.
    AdamW(AdamW),
    /// For states with a velocity.
    Sgd(Sgd),
}

impl Rule {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::AdamW(_) => "AdamW",
            Self::Sgd(_) => "SGD",
        }
    }
}

impl From<AdamW> for Rule {
    fn from(rule: AdamW) -> Self {
        Self::AdamW(rule)
    }
}

impl From<Sgd> for Rule {
    fn from(rule: Sgd) -> Self {
        Self::Sgd(rule)
    }
}
