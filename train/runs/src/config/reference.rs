//! `docs/reference/configuration.md` and its schema, which these tests compare or write.

use std::fmt::Write;

use serde_json::Value;

use super::Config;

const HEAD: &str = "\
# Configuration

<!-- `cargo xtask reference` writes this page. -->

All keys of a run's JSON file, by section. `--set section.key=value` changes one. [Configuration](../guide/configuration.md)
explains those that decide whether a model fits. Only `model` is required.

Editors complete and explain the keys by [a schema](config.schema.json). Name it in the file; the program ignores the line:

```json
{ \"$schema\": \"docs/reference/config.schema.json\", \"model\": { \"preset\": \"gpt2\" } }
```

`train schema` prints the same schema.
";

fn page(schema: &Value) -> String {
    let mut page = HEAD.to_owned();
    let sections = ["model", "tokenizer", "data", "train", "eval", "checkpoint", "memory", "ranks", "report"]
        .map(|name| (name, &schema["properties"][name]));
    for (name, section) in sections {
        let head = "| key | type | default | meaning |\n|---|---|---|---|";
        writeln!(page, "\n## `{name}`\n\n{}\n\n{head}", text(section)).expect("a string");
        rows(&mut page, "", section);
    }
    page
}

fn rows(page: &mut String, prefix: &str, schema: &Value) {
    for (key, schema) in keys(schema) {
        let path = format!("{prefix}{key}");
        let is_optional = is_nullable(schema);
        if keys(schema).next().is_none() || is_optional {
            let default = schema.get("default").filter(|_| !is_alias(schema)).map_or("–".to_owned(), code);
            writeln!(page, "| `{path}` | {} | {default} | {} |", kind(schema), meaning(schema))
                .expect("a string");
        }
        rows(page, &format!("{path}."), schema);
    }
}

/// Of an object, an optional object, or a list's objects.
fn keys(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let alternatives = schema["anyOf"].as_array().into_iter().flatten();
    let all = [schema, &schema["items"]].into_iter().chain(alternatives);
    all.filter_map(|schema| schema["properties"].as_object()).flatten()
}

fn is_nullable(schema: &Value) -> bool {
    schema["default"].is_null() || schema["type"] == "array"
}

fn is_alias(schema: &Value) -> bool {
    text(schema).starts_with("Another name of ")
}

fn kind(schema: &Value) -> String {
    let name = |kind: &Value| match kind.as_str() {
        Some("null") | None => None,
        Some("integer") => Some("whole number".to_owned()),
        Some("boolean") => Some("`true`, `false`".to_owned()),
        Some("string") => Some("text".to_owned()),
        Some("array") => Some("list".to_owned()),
        Some("object") => Some("section".to_owned()),
        Some(other) => Some(other.to_owned()),
    };
    let values = values(schema);
    let mut kinds: Vec<String> = match &schema["type"] {
        _ if !values.is_empty() => values.iter().map(|(value, _)| format!("`{value}`")).collect(),
        Value::Array(kinds) => kinds.iter().filter_map(name).collect(),
        kind => name(kind).into_iter().collect(),
    };
    for part in schema["anyOf"].as_array().into_iter().flatten() {
        kinds.extend(part["const"].as_str().map(|value| format!("`{value}`")));
        kinds.extend(name(&part["type"]).filter(|_| self::values(part).is_empty()));
    }
    if kinds.is_empty() { "section".to_owned() } else { kinds.join(", ") }
}

fn values(schema: &Value) -> Vec<(&str, &str)> {
    let named = choices(schema).into_iter().filter_map(|choice| {
        Some((choice["const"].as_str()?, choice["description"].as_str().unwrap_or_default()))
    });
    let plain =
        schema["enum"].as_array().into_iter().flatten().filter_map(|value| Some((value.as_str()?, "")));
    named.chain(plain).collect()
}

fn choices(schema: &Value) -> Vec<&Value> {
    let alternatives = schema["anyOf"].as_array().into_iter().flatten();
    let lists = [schema].into_iter().chain(alternatives).filter_map(|schema| schema["oneOf"].as_array());
    lists.flatten().collect()
}

fn meaning(schema: &Value) -> String {
    let mut meaning = text(schema);
    if is_alias(schema) {
        return meaning;
    }
    for (value, description) in values(schema).into_iter().filter(|(_, description)| !description.is_empty())
    {
        write!(meaning, "<br>`{value}`: {}", flat(description)).expect("a string");
    }
    for choice in choices(schema).into_iter().filter(|choice| choice["properties"].is_object()) {
        let keys: Vec<_> = keys(choice)
            .map(|(key, schema)| {
                schema["const"].as_str().map_or(format!("`{key}`"), |name| format!("`{key}: {name}`"))
            })
            .collect();
        write!(meaning, "<br>{}: {}", keys.join(", "), text(choice)).expect("a string");
    }
    meaning
}

fn text(schema: &Value) -> String {
    flat(schema["description"].as_str().unwrap_or_default())
        .replace("; `None` for", "; by default")
        .replace("`None`", "`null`")
}

fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn code(value: &Value) -> String {
    format!("`{value}`")
}

#[test]
fn the_reference_has_every_key_with_its_type_default_and_meaning() {
    let schema = Config::schema();
    let text = serde_json::to_string_pretty(&schema).expect("JSON") + "\n";
    suite::assert_reference("config.schema.json", &text);
    let page = page(&schema);
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        assert!(cells.len() == 4 && cells.iter().all(|cell| !cell.is_empty()), "{row}");
    }
    suite::assert_reference("configuration.md", &page);
}

#[test]
fn the_schema_describes_every_key_of_a_whole_configuration() {
    fn check(value: &Value, schema: &Value, path: &str) {
        let known: Vec<_> = keys(schema).collect();
        for (key, below) in value.as_object().into_iter().flatten() {
            let found = known.iter().find(|(known, _)| *known == key);
            let (_, schema) = found.unwrap_or_else(|| panic!("{path}.{key} is not in the schema"));
            assert!(schema["description"].is_string(), "{path}.{key} has no description");
            check(below, schema, &format!("{path}.{key}"));
        }
    }
    let schema = Config::schema();
    let set = ["train.lora={}", "train.optimizer=adamw"].map(str::to_owned);
    let whole = Config::load("toy", &set).expect("a preset").to_json();
    check(&serde_json::from_str(&whole).expect("JSON"), &schema, "");
}

#[test]
fn a_configuration_may_name_its_schema() {
    let text = r#"{ "$schema": "somewhere.json", "model": { "preset": "gpt2" } }"#;
    assert!(Config::from_text(text, "a text", &[]).is_ok());
}
