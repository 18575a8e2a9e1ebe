//! Chat formats that can be chosen by name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::encode::special::SpecialTokens;

/// A published family's format of conversations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ChatFormat {
    /// Qwen, `SmolLM2` and others.
    #[serde(rename = "chatml")]
    ChatMl,
    /// Llama 2.
    Llama2,
    /// Llama 3 to 3.3, without dates.
    Llama3,
    /// Gemma 1 to 3.
    Gemma,
    /// Mistral since Nemo.
    Mistral,
    /// Mistral 7B 0.1 and 0.2.
    MistralV1,
    /// Mistral 7B 0.3, Codestral, Mixtral 8x22B.
    MistralV3,
}

const CHATML: &str = "\
{% for message in messages %}\
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}\
{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

const LLAMA3: &str = "\
{{ bos_token }}{% for message in messages %}\
{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}\
{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";

const GEMMA: &str = "\
{{ bos_token }}{% for message in turns %}\
{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else 'user') + '\n' + (system + '\n\n' if system and \
loop.first else '') + message['content'] | trim + '<end_of_turn>\n' }}\
{% endfor %}\
{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}";

const LLAMA2: &str = "\
{% for message in turns %}{% if message['role'] == 'user' %}\
{{ bos_token + '[INST] ' + ('<<SYS>>\n' + system | trim + '\n<</SYS>>\n\n' if system and loop.first else '') \
+ message['content'] | trim + ' [/INST]' }}\
{% else %}{{ ' ' + message['content'] | trim + ' ' + eos_token }}{% endif %}{% endfor %}";

const MISTRAL: &str = "\
{{ bos_token }}{% for message in turns %}{% if message['role'] == 'user' %}\
{{ '[INST]' + (system + '\n\n' if system and message == last else '') + message['content'] + '[/INST]' }}\
{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}";

const MISTRAL_V1: &str = "\
{{ bos_token }}{% for message in turns %}{% if message['role'] == 'user' %}\
{{ ' [INST] ' + (system + '\n\n' if system and loop.first else '') + message['content'] + ' [/INST]' }}\
{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}";

const MISTRAL_V3: &str = "\
{{ bos_token }}{% for message in turns %}{% if message['role'] == 'user' %}\
{{ '[INST] ' + (system + '\n\n' if system and message == last else '') + message['content'] + '[/INST]' }}\
{% else %}{{ ' ' + message['content'] | trim + eos_token }}{% endif %}{% endfor %}";

const TURNS: &str = "\
{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set turns = messages[1:] %}\
{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}\
{% set last = (turns | selectattr('role', 'equalto', 'user') | list)[-1] %}";

impl ChatFormat {
    /// All formats.
    pub const ALL: [Self; 7] = [
        Self::ChatMl,
        Self::Llama2,
        Self::Llama3,
        Self::Gemma,
        Self::Mistral,
        Self::MistralV1,
        Self::MistralV3,
    ];

    /// As in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::ChatMl => "chatml",
            Self::Llama2 => "llama2",
            Self::Llama3 => "llama3",
            Self::Gemma => "gemma",
            Self::Mistral => "mistral",
            Self::MistralV1 => "mistral-v1",
            Self::MistralV3 => "mistral-v3",
        }
    }

    pub(crate) fn template(self) -> String {
        match self {
            Self::ChatMl => CHATML.to_owned(),
            Self::Llama3 => LLAMA3.to_owned(),
            Self::Llama2 => TURNS.to_owned() + LLAMA2,
            Self::Gemma => TURNS.to_owned() + GEMMA,
            Self::Mistral => TURNS.to_owned() + MISTRAL,
            Self::MistralV1 => TURNS.to_owned() + MISTRAL_V1,
            Self::MistralV3 => TURNS.to_owned() + MISTRAL_V3,
        }
    }

    pub(crate) fn controls(self) -> &'static [&'static str] {
        match self {
            Self::ChatMl => &["<|im_start|>", "<|im_end|>"],
            Self::Llama3 => &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
            Self::Gemma => &["<start_of_turn>", "<end_of_turn>"],
            Self::Mistral | Self::MistralV3 => &["[INST]", "[/INST]"],
            // Ordinary text in these.
            Self::Llama2 | Self::MistralV1 => &[],
        }
    }

    pub(crate) fn known_to(specials: &SpecialTokens) -> Option<Self> {
        let knows = |format: &Self| format.controls().iter().all(|text| specials.id(text).is_some());
        [Self::ChatMl, Self::Llama3, Self::Gemma, Self::MistralV3].into_iter().find(knows)
    }
}

impl std::str::FromStr for ChatFormat {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == text)
            .ok_or_else(|| UnknownFormat(text.to_owned()))
    }
}

/// None of [`ChatFormat::ALL`].
#[derive(Debug, thiserror::Error)]
#[error(
    "`{0}` is no chat format; known are chatml, llama2, llama3, gemma, mistral, mistral-v1 and mistral-v3"
)]
pub struct UnknownFormat(String);
