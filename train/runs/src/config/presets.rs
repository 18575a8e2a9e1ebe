//! Configurations embedded in the binary.

/// Presets' file names and texts.
pub fn presets() -> impl Iterator<Item = (&'static str, &'static str)> {
    [
        ("toy.json", include_str!("../../configs/toy.json")),
        ("shakespeare-char.json", include_str!("../../configs/shakespeare-char.json")),
        ("gpt-124m.json", include_str!("../../configs/gpt-124m.json")),
        ("gpt-350m.json", include_str!("../../configs/gpt-350m.json")),
        ("gpt-1.5b.json", include_str!("../../configs/gpt-1.5b.json")),
        ("gpt-7b.json", include_str!("../../configs/gpt-7b.json")),
        ("llama-14b.json", include_str!("../../configs/llama-14b.json")),
        ("llama-18b.json", include_str!("../../configs/llama-18b.json")),
        ("llama-32b.json", include_str!("../../configs/llama-32b.json")),
    ]
    .into_iter()
}
