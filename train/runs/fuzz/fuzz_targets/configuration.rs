//! Any text as a run's configuration: refused, or equal to its own JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use runs::config::Config;

fuzz_target!(|text: &str| {
    let Ok(config) = Config::from_text(text, "any text", &[]) else { return };
    let again = Config::from_text(&config.to_json(), "its own JSON", &[]).expect("its own JSON");
    assert_eq!(again, config);
});
