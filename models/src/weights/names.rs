//! Which tensor of a file holds which parameter, and how it lies there.
//!
//! Parameters are `[inputs, outputs]` here. GPT-2's `Conv1D` layers are too, but its three attention projections are one
//! tensor, side by side. Llama's linear layers are `[outputs, inputs]`. Both write rotary heads, where there are any, in
//! the half-split order this crate uses.

use super::{Layout, WeightsError, hugging_face};
use crate::config::{GptConfig, Positions};

/// How a parameter lies in its tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lie {
    /// Stored as it is.
    Plain,
    /// Rows and columns exchanged.
    Transposed,
    /// The `index`-th of three equal parts of the last dimension.
    Third(usize),
}

impl Lie {
    /// The shape of the tensor that a parameter of this shape lies in.
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
pub(crate) fn place(ours: &str, config: &GptConfig, layout: Layout) -> Result<(String, Lie), WeightsError> {
    match layout {
        Layout::Native => Ok((ours.to_owned(), Lie::Plain)),
        Layout::HuggingFace => {
            hugging_face::expressible(config)?;
            Ok(match config.positions {
                Positions::Learned => gpt2(ours),
                Positions::Rope => llama(ours),
            })
        }
    }
}

/// Tensors that published files carry although they are no parameters: attention masks as buffers, rotary tables, and
/// the head that is the embedding.
pub(crate) fn is_no_parameter(name: &str, tied: bool) -> bool {
    name.ends_with(".attn.bias")
        || name.ends_with(".attn.masked_bias")
        || name.ends_with("rotary_emb.inv_freq")
        || (tied && name == "lm_head.weight")
}

fn gpt2(ours: &str) -> (String, Lie) {
    if ours == "lm_head" {
        return ("lm_head.weight".into(), Lie::Plain);
    }
    let Some((layer, part)) = block(ours) else {
        let theirs = match ours {
            "wte" | "wpe" => format!("{ours}.weight"),
            _ => ours.replace("final_norm", "ln_f"),
        };
        return (format!("transformer.{theirs}"), Lie::Plain);
    };
    let (module, kind) = part.rsplit_once('.').expect("a block's parameter has a module and a kind");
    let (theirs, lie) = match module {
        "attention_norm" => ("ln_1", Lie::Plain),
        "attention.query" => ("attn.c_attn", Lie::Third(0)),
        "attention.key" => ("attn.c_attn", Lie::Third(1)),
        "attention.value" => ("attn.c_attn", Lie::Third(2)),
        "attention.output" => ("attn.c_proj", Lie::Plain),
        "mlp_norm" => ("ln_2", Lie::Plain),
        "mlp.up" => ("mlp.c_fc", Lie::Plain),
        "mlp.down" => ("mlp.c_proj", Lie::Plain),
        _ => unreachable!("`{ours}` is no parameter of a GPT-2"),
    };
    (format!("transformer.h.{layer}.{theirs}.{kind}"), lie)
}

fn llama(ours: &str) -> (String, Lie) {
    let Some((layer, part)) = block(ours) else {
        let theirs = match ours {
            "wte" => "model.embed_tokens.weight",
            "lm_head" => "lm_head.weight",
            "final_norm.weight" => "model.norm.weight",
            _ => unreachable!("`{ours}` is no parameter of a Llama"),
        };
        return (theirs.into(), Lie::Plain);
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
    (format!("model.layers.{layer}.{theirs}.{kind}"), if is_matrix { Lie::Transposed } else { Lie::Plain })
}

fn block(ours: &str) -> Option<(&str, &str)> {
    ours.strip_prefix("blocks.")?.split_once('.')
}
