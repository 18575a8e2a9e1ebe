//! `tokenizer_config.json`: opening and closing tokens, and the chat template.

use serde::{Deserialize, Serialize};

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
#[derive(Clone, Debug, Serialize, Deserialize)]
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
