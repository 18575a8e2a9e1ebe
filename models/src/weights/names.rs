//! Each parameter's tensor in a file.
//!
//! Parameters are `[inputs, outputs]`; most published projections are transposed. GPT-2's are not, but one tensor holds
//! its three attention projections side by side; GPT-NeoX's holds them by head. Gemma stores a norm's scale less one.
//! All use this crate's half-split rotary order.

use super::{Layout, WeightsError, hugging_face};
use crate::config::{GptConfig, NormPlacement, Positions};
use crate::norm::NormKind;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrangement {
    /// As it is.
    Plain,
    /// Rows and columns exchanged.
    Transposed,
    /// In the last dimension's `index`-th third.
    Third(usize),
    /// Transposed, in the `index`-th third of each head's rows.
    ThirdOfHeads { index: usize, head_dim: usize },
    /// Each number less one.
    LessOne,
}

impl Arrangement {
    pub(crate) fn shape(self, parameter: &[usize]) -> Vec<usize> {
        let mut shape = parameter.to_vec();
        match self {
            Self::Plain | Self::LessOne => {}
            Self::Transposed => shape.reverse(),
            Self::Third(_) => *shape.last_mut().expect("no parameter is a scalar") *= 3,
            Self::ThirdOfHeads { .. } => {
                shape.reverse();
                shape[0] *= 3;
            }
        }
        shape
    }

    pub(crate) fn third(self) -> Option<usize> {
        match self {
            Self::Third(index) | Self::ThirdOfHeads { index, .. } => Some(index),
            Self::Plain | Self::Transposed | Self::LessOne => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Norm,
    /// `[outputs, inputs]`.
    Linear,
    /// `[inputs, outputs]`.
    Conv,
    ConvThird(usize),
    HeadThird(usize),
}

type Row = (&'static str, &'static str, Part);

#[derive(Debug)]
struct Names {
    outer: &'static [(&'static str, &'static str)],
    /// Prefix of a block's number.
    block: &'static str,
    parts: &'static [&'static [Row]],
    /// Whether norms store their scale less one.
    less_one: bool,
}

const LLAMA_OUTER: &[(&str, &str)] = &[
    ("wte", "model.embed_tokens.weight"),
    ("lm_head", "lm_head.weight"),
    ("final_norm.weight", "model.norm.weight"),
];

const LLAMA_PARTS: &[Row] = &[
    ("attention.query", "self_attn.q_proj", Part::Linear),
    ("attention.key", "self_attn.k_proj", Part::Linear),
    ("attention.value", "self_attn.v_proj", Part::Linear),
    ("attention.output", "self_attn.o_proj", Part::Linear),
    ("attention.query_norm", "self_attn.q_norm", Part::Norm),
    ("attention.key_norm", "self_attn.k_norm", Part::Norm),
    ("mlp.gate", "mlp.gate_proj", Part::Linear),
    ("mlp.up", "mlp.up_proj", Part::Linear),
    ("mlp.down", "mlp.down_proj", Part::Linear),
];

const GPT2: Names = Names {
    outer: &[
        ("wte", "transformer.wte.weight"),
        ("wpe", "transformer.wpe.weight"),
        ("lm_head", "lm_head.weight"),
        ("final_norm.weight", "transformer.ln_f.weight"),
        ("final_norm.bias", "transformer.ln_f.bias"),
    ],
    block: "transformer.h",
    parts: &[&[
        ("attention_norm", "ln_1", Part::Norm),
        ("attention.query", "attn.c_attn", Part::ConvThird(0)),
        ("attention.key", "attn.c_attn", Part::ConvThird(1)),
        ("attention.value", "attn.c_attn", Part::ConvThird(2)),
        ("attention.output", "attn.c_proj", Part::Conv),
        ("mlp_norm", "ln_2", Part::Norm),
        ("mlp.up", "mlp.c_fc", Part::Conv),
        ("mlp.down", "mlp.c_proj", Part::Conv),
    ]],
    less_one: false,
};

const LLAMA: Names = Names {
    outer: LLAMA_OUTER,
    block: "model.layers",
    parts: &[
        LLAMA_PARTS,
        &[
            ("attention_norm", "input_layernorm", Part::Norm),
            ("mlp_norm", "post_attention_layernorm", Part::Norm),
        ],
    ],
    less_one: false,
};

const OLMO2: Names = Names {
    parts: &[
        LLAMA_PARTS,
        &[
            ("attention_out_norm", "post_attention_layernorm", Part::Norm),
            ("mlp_out_norm", "post_feedforward_layernorm", Part::Norm),
        ],
    ],
    ..LLAMA
};

const GEMMA: Names = Names {
    parts: &[
        LLAMA_PARTS,
        &[
            ("attention_norm", "input_layernorm", Part::Norm),
            ("attention_out_norm", "post_attention_layernorm", Part::Norm),
            ("mlp_norm", "pre_feedforward_layernorm", Part::Norm),
            ("mlp_out_norm", "post_feedforward_layernorm", Part::Norm),
        ],
    ],
    less_one: true,
    ..LLAMA
};

const NEOX: Names = Names {
    outer: &[
        ("wte", "gpt_neox.embed_in.weight"),
        ("lm_head", "embed_out.weight"),
        ("final_norm.weight", "gpt_neox.final_layer_norm.weight"),
        ("final_norm.bias", "gpt_neox.final_layer_norm.bias"),
    ],
    block: "gpt_neox.layers",
    parts: &[&[
        ("attention_norm", "input_layernorm", Part::Norm),
        ("attention.query", "attention.query_key_value", Part::HeadThird(0)),
        ("attention.key", "attention.query_key_value", Part::HeadThird(1)),
        ("attention.value", "attention.query_key_value", Part::HeadThird(2)),
        ("attention.output", "attention.dense", Part::Linear),
        ("mlp_norm", "post_attention_layernorm", Part::Norm),
        ("mlp.up", "mlp.dense_h_to_4h", Part::Linear),
        ("mlp.down", "mlp.dense_4h_to_h", Part::Linear),
    ]],
    less_one: false,
};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Naming {
    /// `None` for native names.
    published: Option<&'static Names>,
    head_dim: usize,
}

impl Naming {
    /// Fails if the layout cannot hold the model.
    pub(crate) fn new(config: &GptConfig, layout: Layout) -> Result<Self, WeightsError> {
        let published = match layout {
            Layout::Native => None,
            Layout::HuggingFace => {
                hugging_face::expressible(config)?;
                Some(names(config))
            }
        };
        Ok(Self { published, head_dim: config.head_dim() })
    }

    pub(crate) fn tensor(self, ours: &str) -> (String, Arrangement) {
        let Some(names) = self.published else { return (ours.to_owned(), Arrangement::Plain) };
        let norm = if names.less_one { Arrangement::LessOne } else { Arrangement::Plain };
        let Some((layer, module, kind)) = part_of_block(ours) else {
            let theirs = names.outer.iter().find(|(known, _)| *known == ours);
            let (_, theirs) = theirs.expect("an expressible model has only parameters with published names");
            let scale = ours.ends_with("norm.weight");
            return ((*theirs).to_owned(), if scale { norm } else { Arrangement::Plain });
        };

        let row = names.parts.iter().copied().flatten().find(|(known, ..)| *known == module);
        let (_, theirs, part) = row.expect("an expressible model has only parameters with published names");
        let matrix = kind == "weight";
        let arrangement = match *part {
            Part::Norm if matrix => norm,
            Part::Linear if matrix => Arrangement::Transposed,
            Part::Norm | Part::Linear | Part::Conv => Arrangement::Plain,
            Part::ConvThird(index) => Arrangement::Third(index),
            Part::HeadThird(index) => Arrangement::ThirdOfHeads { index, head_dim: self.head_dim },
        };
        (format!("{}.{layer}.{theirs}.{kind}", names.block), arrangement)
    }
}

/// Block number, module and kind; `None` outside the blocks.
pub(super) fn part_of_block(ours: &str) -> Option<(&str, &str, &str)> {
    let (layer, part) = ours.strip_prefix("blocks.")?.split_once('.')?;
    let (module, kind) = part.rsplit_once('.').expect("a block's parameter has a module and a kind");
    Some((layer, module, kind))
}

fn names(config: &GptConfig) -> &'static Names {
    match (config.positions, config.norm, config.norm_placement) {
        (Positions::Learned, ..) => &GPT2,
        (Positions::Rope, NormKind::LayerNorm, _) => &NEOX,
        (Positions::Rope, NormKind::RmsNorm, NormPlacement::Before) => &LLAMA,
        (Positions::Rope, NormKind::RmsNorm, NormPlacement::After) => &OLMO2,
        (Positions::Rope, NormKind::RmsNorm, NormPlacement::Both) => &GEMMA,
    }
}

/// Whether a published tensor is an attention mask, a rotary table, or a tied head.
pub(crate) fn is_not_a_parameter(name: &str, tied: bool) -> bool {
    [".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq"]
        .iter()
        .any(|buffer| name.ends_with(buffer))
        || (tied && ["lm_head.weight", "embed_out.weight"].contains(&name))
}
