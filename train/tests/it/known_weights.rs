//! Published folders with weights by a formula: random in looks, equal on each machine.

use std::{f64::consts::TAU, fs, path::Path};

use safetensors::{Dtype, serialize_to_file, tensor::TensorView};
use serde_json::Value;

/// `value` makes a weight of a tensor's name and a number in [-1, 1].
pub(crate) fn publish(
    folder: &Path,
    config: &Value,
    shapes: &[(String, Vec<usize>)],
    value: impl Fn(&str, f64) -> f64,
) {
    let mut at = 0.0_f64;
    let mut number = |name: &str| {
        at += 1.0;
        // Squares times the golden ratio.
        let drawn = ((at * at * 0.618_033_988_749_895).fract() * TAU).sin();
        (value(name, drawn) as f32).to_le_bytes()
    };

    let bytes: Vec<Vec<u8>> = shapes
        .iter()
        .map(|(name, shape)| (0..shape.iter().product()).flat_map(|_| number(name)).collect())
        .collect();
    let tensors = shapes.iter().zip(&bytes).map(|((name, shape), bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("its bytes"))
    });

    fs::create_dir(folder).expect("making");
    let format = [("format".to_owned(), "pt".to_owned())].into();
    serialize_to_file(tensors, Some(format), &folder.join("model.safetensors")).expect("written");
    fs::write(folder.join("config.json"), config.to_string()).expect("written");
}
