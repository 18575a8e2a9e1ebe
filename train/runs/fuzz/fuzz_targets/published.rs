//! Any text as a published model's `config.json`: refused, or a network that can be built and described again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use models::{
    Footprint,
    weights::{config_from_hugging_face, config_to_hugging_face},
};

fuzz_target!(|text: &str| {
    let Ok(config) = config_from_hugging_face(text) else { return };
    config.validate().expect("a network that can be built");
    let _counted_or_too_large = Footprint::of(&config);
    if let Ok(described) = config_to_hugging_face(&config) {
        config_from_hugging_face(&described.to_string()).expect("its own description");
    }
});
