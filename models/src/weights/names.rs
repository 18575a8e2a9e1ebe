//! The tensor of a file that stores each parameter, and its arrangement there.
//!
//! Parameters are `[inputs, outputs]`. So are GPT-2's `Conv1D` layers, but one tensor holds its three attention
//! projections side by side. Llama's linear layers are `[outputs, inputs]`. Both use this crate's half-split order of
//! rotary heads.

use super::{Layout, WeightsError, hugging_face};
use crate::config::{GptConfig, Positions};

/// How a tensor stores a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrangement {
    /// As it is.
    Plain,
    /// Rows and columns exchanged.
    Transposed,
    /// In the `index`-th third of the last dimension.
    Third(usize),
}

impl Arrangement {
    /// The shape of the tensor that stores a parameter of this shape.
    pub(crate) fn shape(self, parameter: &[usize]) -> Vec<usize> {
        let mut shape = parameter.to_vec();
        match self {
            Self::Plain => {}
            Self::Transposed => shape.reverse(),
            Self::Third(_) => *shape.last_mut().expect("no parameter is a scalar") *= 3,
        }
        shape
    }
}

/// The file's tensor for the parameter `ours`.
pub(crate) fn file_tensor(
    ours: &str,
    config: &GptConfig,
    layout: Layout,
) -> Result<(String, Arrangement), WeightsError> {
    match layout {
        Layout::Native => Ok((ours.to_owned(), Arrangement::Plain)),
        Layout::HuggingFace => {
            hugging_face::expressible(config)?;
            Ok(match config.positions {
                Positions::Learned => gpt2(ours),
                Positions::Rope => llama(ours),
            })
        }
    }
}

/// Whether a published tensor is no parameter: an attention mask, a rotary table, or a tied head.
pub(crate) fn is_not_a_parameter(name: &str, tied: bool) -> bool {
    name.ends_with(".attn.bias")
        || name.ends_with(".attn.masked_bias")
        || name.ends_with("rotary_emb.inv_freq")
        || (tied && name == "lm_head.weight")
}

fn gpt2(ours: &str) -> (String, Arrangement) {
    if ours == "lm_head" {
        return ("lm_head.weight".into(), Arrangement::Plain);
    }
    let Some((layer, part)) = block(ours) else {
        let theirs = match ours {
            "wte" | "wpe" => format!("{ours}.weight"),
            _ => ours.replace("final_norm", "ln_f"),
        };
        return (format!("transformer.{theirs}"), Arrangement::Plain);
    };
    let (module, kind) = part.rsplit_once('.').expect("a block's parameter has a module and a kind");
    let (theirs, arrangement) = match module {
        "attention_norm" => ("ln_1", Arrangement::Plain),
        "attention.query" => ("attn.c_attn", Arrangement::Third(0)),
        "attention.key" => ("attn.c_attn", Arrangement::Third(1)),
        "attention.value" => ("attn.c_attn", Arrangement::Third(2)),
        "attention.output" => ("attn.c_proj", Arrangement::Plain),
        "mlp_norm" => ("ln_2", Arrangement::Plain),
        "mlp.up" => ("mlp.c_fc", Arrangement::Plain),
        "mlp.down" => ("mlp.c_proj", Arrangement::Plain),
        _ => unreachable!("`{ours}` is no parameter of a GPT-2"),
    };
    (format!("transformer.h.{layer}.{theirs}.{kind}"), arrangement)
}

fn llama(ours: &str) -> (String, Arrangement) {
    let Some((layer, part)) = block(ours) else {
        let theirs = match ours {
            "wte" => "model.embed_tokens.weight",
            "lm_head" => "lm_head.weight",
            "final_norm.weight" => "model.norm.weight",
            _ => unreachable!("`{ours}` is no parameter of a Llama"),
        };
        return (theirs.into(), Arrangement::Plain);
    };
    let (module, kind) = part.rsplit_once('.').expect("a block's parameter has a module and a kind");
    let theirs = match module {
        "attention_norm" => "input_layernorm",
        "attention.query" => "self_attn.q_proj",
        "attention.key" => "self_attn.k_proj",
        "attention.value" => "self_attn.v_proj",
        "attention.output" => "self_attn.o_proj",
        "mlp_norm" => "post_attention_layernorm",
        "mlp.gate" => "mlp.gate_proj",
        "mlp.up" => "mlp.up_proj",
        "mlp.down" => "mlp.down_proj",
        _ => unreachable!("`{ours}` is no parameter of a Llama"),
    };
    let is_matrix = kind == "weight" && !module.ends_with("norm");
    (
        format!("model.layers.{layer}.{theirs}.{kind}"),
        if is_matrix { Arrangement::Transposed } else { Arrangement::Plain },
    )
}

fn block(ours: &str) -> Option<(&str, &str)> {
    ours.strip_prefix("blocks.")?.split_once('.')
}
