//! Grammars of answers: JSON by a schema, and calls of functions.
//!
//! They need the feature `structured`: `llguidance` turns on `serde_json/preserve_order`, which recompiles Burn and
//! reorders all crates' JSON.

use serde_json::Value;

#[cfg(not(feature = "structured"))]
pub use crate::absent_grammar::Grammar;
#[cfg(not(feature = "structured"))]
pub(crate) use crate::absent_grammar::Grammars;
#[cfg(feature = "structured")]
pub use crate::guided_grammar::Grammar;
#[cfg(feature = "structured")]
pub(crate) use crate::guided_grammar::Grammars;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Form {
    Json(Value),
    /// A call of one of these functions: name, and schema of the arguments.
    Call(Vec<(String, Value)>),
    /// Such a call, or a text that does not begin with a brace.
    CallOrText(Vec<(String, Value)>),
}
