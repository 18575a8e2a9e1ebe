//! Bounds how much components lengthen text.
//!
//! A kilobyte of chained replacements can turn a letter into gigabytes. A chain's bound is the product of its steps'.

use serde_json::Value;

/// Most bytes that a byte becomes in `steps`.
pub(crate) fn factor(steps: &[&Value]) -> f64 {
    let mut composed = false;
    steps.iter().map(|step| step_factor(step, &mut composed)).product()
}

/// `composed`: in a Unicode normal form, which no other form lengthens.
fn step_factor(step: &Value, composed: &mut bool) -> f64 {
    let bytes = |field: &str| step.get(field).and_then(Value::as_str).map_or(0, str::len) as f64;
    let flag = |name, default| step.get(name).and_then(Value::as_bool).unwrap_or(default);
    let kind = step.get("type").and_then(Value::as_str).unwrap_or_default();
    let was_composed = std::mem::replace(composed, matches!(kind, "NFC" | "NFD" | "NFKC" | "NFKD"));
    match kind {
        "NFC" | "NFD" | "NFKC" | "NFKD" if was_composed => 1.0,
        // The Unicode Standard's worst cases in UTF-8, U+0390 and U+FDFA.
        "NFC" | "NFD" => 3.0,
        "NFKC" | "NFKD" => 11.0,
        // U+0130, two bytes, becomes three.
        "Lowercase" => 1.5,
        // The text may have one byte.
        "Prepend" => 1.0 + bytes("prepend"),
        "Replace" => {
            let pattern =
                step.get("pattern").and_then(|pattern| pattern.get("String")).and_then(Value::as_str);
            (bytes("content") / pattern.map_or(1, |pattern| pattern.len().max(1)) as f64).max(1.0)
        }
        // A spelled byte takes up to two, and a space may precede a piece.
        "ByteLevel" if flag("add_prefix_space", true) => 4.0,
        "ByteLevel" => 2.0,
        // A space becomes up to four bytes; another may precede a piece.
        "Metaspace" => 8.0,
        _ => 1.0,
    }
}
