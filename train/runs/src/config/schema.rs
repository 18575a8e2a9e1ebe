//! The JSON schema of configurations, for editors.

use std::borrow::Cow;

use models::{ALIASES, REQUIRED_KEYS, presets};
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::{Amount, Config, Round, ShardKind, Together, WarmUp};

impl Config {
    /// JSON schema, draft 7.
    pub fn schema() -> Value {
        let mut settings = SchemaSettings::draft07();
        settings.inline_subschemas = true;
        let plain = RecursiveTransform(|schema: &mut Schema| _ = schema.remove("format"));
        let schema = settings.with_transform(plain).into_generator().into_root_schema_for::<Self>();
        let mut schema = schema.to_value();
        schema["title"] = json!("Spillway run");
        schema["required"] = json!(["model"]);
        schema["properties"]["$schema"] =
            json!({ "type": "string", "description": "Where this schema is; only editors read it." });
        describe_model(&mut schema["properties"]["model"]);
        schema
    }
}

fn describe_model(model: &mut Value) {
    let defaults = presets::preset("gpt2").expect("a preset of this name").to_value();
    let section = model.as_object_mut().expect("a schema");
    section.remove("required");

    let keys = section["properties"].as_object_mut().expect("keys of the section");
    for (key, schema) in keys.iter_mut().filter(|(key, _)| !REQUIRED_KEYS.contains(&key.as_str())) {
        schema["default"] = defaults[key].clone();
    }
    for (alias, key) in ALIASES {
        let mut schema = keys[*key].clone();
        schema["description"] = json!(format!("Another name of `{key}`."));
        keys.insert((*alias).to_owned(), schema);
    }
    let description = "A published shape; other keys change it.";
    keys.insert("preset".to_owned(), json!({ "enum": presets::PRESETS, "description": description }));
}

impl<T> JsonSchema for Amount<T> {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

impl JsonSchema for WarmUp {
    fn schema_name() -> Cow<'static, str> {
        "WarmUp".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "minimum": 0 })
    }
}

impl JsonSchema for ShardKind {
    fn schema_name() -> Cow<'static, str> {
        "ShardKind".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "boolean" }, { "const": "states" }, { "const": "weights" }] })
    }
}

impl JsonSchema for Round {
    fn schema_name() -> Cow<'static, str> {
        "Round".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [
            { "type": "integer", "minimum": 1 },
            { "type": "string", "pattern": "^([0-9]+ steps?|[0-9.]+ s|as in .+)$" }
        ] })
    }
}

impl JsonSchema for Together {
    fn schema_name() -> Cow<'static, str> {
        "Together".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "integer", "minimum": 1 }, { "const": "auto" }] })
    }
}
