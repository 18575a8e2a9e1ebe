//! Hostile configurations are refused, or equal their own JSON after reading; none panics.

use proptest::{prelude::*, sample::Index};
use serde_json::Value;

use super::*;

const VALUES: [&str; 26] = [
    "-1",
    "0",
    "1",
    "-0.0",
    "0.5",
    "1e-320",
    "1e308",
    "1e400",
    "4294967296",
    "9007199254740993",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775809",
    "NaN",
    "null",
    "true",
    "\"\"",
    "\"bpe\"",
    "[]",
    "{}",
    "[0.9]",
    "[1,2,3]",
    "{\"a\":1}",
    "\"\\u0000\"",
    "é",
];

fn keys_of(prefix: &str, value: &Value, keys: &mut Vec<String>) {
    let Value::Object(fields) = value else { return };
    for (name, value) in fields {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        keys_of(&key, value, keys);
        keys.push(key);
    }
}

fn read_or_refused(text: &str, set: &[String]) {
    if let Ok(config) = Config::from_text(text, "a hostile description", set) {
        let again = Config::from_text(&config.to_json(), "its own JSON", &[]);
        assert_eq!(again.unwrap_or_else(|error| panic!("{error}")), config, "{set:?}");
    }
}

#[test]
fn no_value_of_any_key_panics() {
    let toy = Config::load("toy", &[]).expect("a preset").to_json();
    let mut keys = Vec::new();
    keys_of("", &serde_json::from_str(&toy).expect("it was written by us"), &mut keys);
    assert!(keys.len() > 60, "{keys:?}");
    for key in &keys {
        for value in VALUES {
            read_or_refused(&toy, &[format!("{key}={value}")]);
        }
    }
}

#[cfg(unix)]
#[test]
fn a_configuration_that_is_a_device_or_too_large_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let large = folder.path().join("large.json");
    std::fs::File::create(&large).and_then(|file| file.set_len(200 << 30)).expect("a sparse file");
    for (path, expected) in
        [(Path::new("/dev/zero"), "no regular file"), (large.as_path(), "has 214748364800 bytes")]
    {
        let refused = Config::load(&path.to_string_lossy(), &[]).expect_err("no description");
        let ConfigError::Unreadable { source, .. } = &refused else { panic!("{refused}") };
        assert!(source.to_string().contains(expected), "{source}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(suite::cases(256)))]

    #[test]
    fn no_damaged_configuration_panics(
        at in any::<Index>(),
        removed in 0..40_usize,
        put in "[-0-9eE.,:{}\\[\\]\"a-z\\\\]{0,8}",
    ) {
        let toy = Config::load("toy", &[]).expect("a preset").to_json();
        let from = at.index(toy.len());
        let to = (from + removed).min(toy.len());
        read_or_refused(&[&toy[..from], &put, &toy[to..]].concat(), &[]);
    }
}
