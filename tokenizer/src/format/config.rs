//! `tokenizer_config.json`: opening and closing tokens, and the chat template.

use serde::{Deserialize, Serialize, Serializer};

use crate::encode::special::SpecialTokens;

/// For tokenizers with all [`crate::CHAT_SPECIALS`]. System text opens the first user turn, which saves a control
/// token.
pub(crate) const CHAT_TEMPLATE: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}
{{- '<|user_start|>' + message['content'] + '\\n\\n' -}}
{%- elif message['role'] == 'user' -%}
{%- if loop.first or messages[loop.index0 - 1]['role'] != 'system' -%}{{- '<|user_start|>' -}}{%- endif -%}
{{- message['content'] + '<|user_end|>' -}}
{%- else -%}
{{- '<|assistant_start|>' + message['content'] + '<|assistant_end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant_start|>' -}}{%- endif -%}
";

/// Keeps other programs' fields unread.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Config {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tokenizer_class: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bos_token: Option<Token>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) eos_token: Option<Token>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) clean_up_tokenization_spaces: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) chat_template: Option<Template>,
    #[serde(flatten)]
    rest: serde_json::Map<String, serde_json::Value>,
}

/// A text, or the object of older files.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Token {
    Text(String),
    Added { content: String },
}

/// One template, or several by name; `default` counts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Template {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NamedTemplate {
    name: String,
    template: String,
}

impl Token {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Added { content: text } => text,
        }
    }
}

/// As text: `transformers` refuses an object without the fields that are not read here.
impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text())
    }
}

impl Template {
    fn default_text(&self) -> Option<&str> {
        match self {
            Self::One(text) => Some(text),
            Self::Named(several) => {
                several.iter().find(|named| named.name == "default").map(|named| named.template.as_str())
            }
        }
    }
}

impl Config {
    pub(crate) fn template(&self) -> Option<&str> {
        self.chat_template.as_ref().and_then(Template::default_text)
    }

    /// Whether texts are opened, if the file says so.
    pub(crate) fn adds_bos(&self) -> Option<bool> {
        self.rest.get("add_bos_token")?.as_bool()
    }

    /// Ids of listed tokens.
    pub(crate) fn added_ids(&self) -> impl Iterator<Item = u32> {
        let listed = self.rest.get("added_tokens_decoder").and_then(serde_json::Value::as_object);
        listed.into_iter().flatten().filter_map(|(id, _)| id.parse().ok())
    }

    pub(crate) fn for_specials(specials: &SpecialTokens) -> Self {
        let chat = crate::CHAT_SPECIALS.iter().all(|text| specials.id(text).is_some());
        let token = |text: &str| specials.id(text).map(|_| Token::Text(text.to_owned()));
        Self {
            tokenizer_class: Some("PreTrainedTokenizerFast".to_owned()),
            bos_token: token("<|bos|>"),
            eos_token: token("<|assistant_end|>"),
            clean_up_tokenization_spaces: Some(false),
            chat_template: chat.then(|| Template::One(CHAT_TEMPLATE.to_owned())),
            rest: serde_json::Map::new(),
        }
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).expect("strings and flags always serialise");
        json.push(b'\n');
        json
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_object_of_a_special_token_is_saved_as_its_text() {
        let added = |text: &str| json!({ "__type": "AddedToken", "content": text, "lstrip": false });
        let older = json!({ "bos_token": added("<s>"), "eos_token": "</s>", "pad_token": added("<pad>") });
        let config: Config = serde_json::from_value(older).expect("valid");
        let saved: Value = serde_json::from_slice(&config.to_json()).expect("JSON");
        assert_eq!(
            saved,
            json!({ "bos_token": "<s>", "eos_token": "</s>", "pad_token": added("<pad>") }),
            "fields that are not read keep their objects"
        );
    }
}
