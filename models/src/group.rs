//! Groups of parameters by name: `embedding`, `blocks.0-11`, `norms`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, backend::Backend};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::gpt::Gpt;
use crate::packed::numbers;
use crate::parameters::{ParameterInfo, block_of};
use crate::precision::Compute;

/// A group of parameters. Groups may overlap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ParameterGroup {
    /// Tables of tokens, with a tied head, and of positions.
    Embedding,
    /// The table of followers.
    Followers,
    /// All blocks.
    Blocks,
    /// Blocks from the first to the last, from 0.
    BlockRange(usize, usize),
    /// Attention in all blocks.
    Attention,
    /// The MLP in all blocks.
    Mlp,
    /// All norms.
    Norms,
    /// All biases, those of norms too.
    Biases,
    /// An untied head.
    Head,
}

use ParameterGroup::{Attention, Biases, BlockRange, Blocks, Embedding, Followers, Head, Mlp, Norms};

const NAMED: [(&str, ParameterGroup); 8] = [
    ("embedding", Embedding),
    ("followers", Followers),
    ("blocks", Blocks),
    ("attention", Attention),
    ("mlp", Mlp),
    ("norms", Norms),
    ("biases", Biases),
    ("head", Head),
];

/// A name of no group.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "`{0}` is no group of parameters; the groups are `embedding`, `followers`, `blocks`, `blocks.N`, `blocks.N-M` (from 0), \
     `attention`, `mlp`, `norms`, `biases`, `head`"
)]
pub struct UnknownGroup(String);

impl ParameterGroup {
    /// Whether the parameter `name`, or the weight that it adapts, is in the group.
    pub fn contains(&self, name: &str) -> bool {
        let mut path = name.split('.').rev();
        let (last, owner) = (path.next().unwrap_or_default(), path.next().unwrap_or_default());
        let within = |part: &str| name.split('.').nth(2) == Some(part);
        match self {
            Embedding => matches!(name, "wte" | "wpe"),
            Followers => name == "followers",
            Blocks => block_of(name).is_some(),
            BlockRange(first, end) => block_of(name).is_some_and(|block| (*first..=*end).contains(&block)),
            Attention => within("attention"),
            Mlp => within("mlp"),
            Norms => owner.ends_with("norm"),
            Biases => last == "bias",
            Head => name == "lm_head",
        }
    }
}

impl FromStr for ParameterGroup {
    type Err = UnknownGroup;

    fn from_str(text: &str) -> Result<Self, UnknownGroup> {
        if let Some((_, group)) = NAMED.iter().find(|(name, _)| *name == text) {
            return Ok(group.clone());
        }
        let blocks = text.strip_prefix("blocks.").and_then(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            let number = |text: &str| text.parse::<usize>().ok().filter(|_| is_number(text));
            Some((number(first)?, number(last)?)).filter(|(first, last)| first <= last)
        });
        blocks.map(|(first, last)| BlockRange(first, last)).ok_or_else(|| UnknownGroup(text.to_owned()))
    }
}

impl fmt::Display for ParameterGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockRange(first, last) if first == last => write!(f, "blocks.{first}"),
            BlockRange(first, last) => write!(f, "blocks.{first}-{last}"),
            _ => f.write_str(NAMED.iter().find(|(_, group)| group == self).expect("it has a name").0),
        }
    }
}

impl TryFrom<String> for ParameterGroup {
    type Error = UnknownGroup;

    fn try_from(text: String) -> Result<Self, UnknownGroup> {
        text.parse()
    }
}

impl From<ParameterGroup> for String {
    fn from(group: ParameterGroup) -> Self {
        group.to_string()
    }
}

impl JsonSchema for ParameterGroup {
    fn schema_name() -> Cow<'static, str> {
        "ParameterGroup".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

/// Groups that do not learn.
#[derive(Debug, Clone, Default)]
pub(crate) struct Frozen(Vec<ParameterGroup>);

impl Frozen {
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.iter().any(|group| group.contains(name))
    }
}

impl<B: Backend> Gpt<B> {
    /// Freezes `groups`: they get no gradient. Recomputation ends above the blocks in and below which nothing learns.
    /// Frozen factors of products whose numbers bf16 has exactly take it, if it is the compute type.
    #[must_use]
    pub fn with_frozen(mut self, groups: &[ParameterGroup]) -> Self {
        if groups.is_empty() {
            return self;
        }
        self.frozen = Frozen(groups.to_vec());
        let frozen = self.frozen.clone();
        self.map(&mut Freeze { frozen, path: Vec::new() }).exactly_narrowed()
    }

    fn exactly_narrowed(mut self) -> Self {
        if self.config.compute != Compute::Bf16 {
            return self;
        }
        let projections = self.blocks.iter_mut().enumerate().flat_map(|(layer, block)| {
            let named = block.named_projections_mut();
            named.map(move |(projection, linear)| {
                (format!("blocks.{layer}.{}.weight", projection.path()), &mut linear.weight)
            })
        });
        let head = self.lm_head.iter_mut().map(|head| ("lm_head".to_owned(), head));
        for (_, weight) in projections.chain(head).filter(|(name, _)| self.frozen.contains(name)) {
            if weight.is_initialized() && numbers(weight).iter().all(|number| is_bf16(*number)) {
                *weight = weight.clone().map(|weight| Compute::Bf16.narrow(weight));
            }
        }
        self
    }

    pub(crate) fn is_frozen(&self, name: &str) -> bool {
        self.frozen.contains(name)
    }

    /// First blocks without a parameter that learns in or below them.
    pub(crate) fn frozen_blocks(&self) -> usize {
        if self.frozen.0.is_empty() {
            return 0;
        }
        frozen_blocks(&self.learning().into_iter().map(|(_, parameter)| parameter).collect::<Vec<_>>())
            .min(self.blocks.len())
    }
}

/// First blocks of which, and below which, nothing is in `learning`; `usize::MAX` if none of it is in a block.
pub fn frozen_blocks(learning: &[ParameterInfo]) -> usize {
    learning.iter().map(ParameterInfo::lowest_block).min().unwrap_or(usize::MAX)
}

fn is_bf16(number: f32) -> bool {
    number.to_bits().is_multiple_of(1 << 16)
}

struct Freeze {
    frozen: Frozen,
    path: Vec<String>,
}

impl<B: Backend> ModuleMapper<B> for Freeze {
    crate::keeps_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let learns = !self.frozen.contains(&self.path.join("."));
        if learns { param } else { param.set_require_grad(false) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(text: &str) -> ParameterGroup {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_group_is_written_as_it_is_read() {
        for (name, _) in &NAMED {
            assert_eq!(group(name).to_string(), *name);
        }
        for range in ["blocks.0", "blocks.3-11"] {
            assert_eq!(group(range).to_string(), range);
        }
        assert_eq!(group("blocks.3-3").to_string(), "blocks.3");
    }

    #[test]
    fn an_unknown_group_is_refused_with_the_list_of_groups() {
        for text in ["embeddings", "blocks.", "blocks.2-1", "blocks.a", "blocks.+1", "wte", ""] {
            let error = text.parse::<ParameterGroup>().expect_err(text).to_string();
            assert!(
                error.starts_with(&format!("`{text}` is no group")) && error.contains("`blocks.N-M`"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_group_has_the_parameters_of_its_name() {
        let names = [
            "wte",
            "wpe",
            "followers",
            "embedding_norm.weight",
            "blocks.2.attention_norm.bias",
            "blocks.2.attention.query.weight",
            "blocks.2.attention.query_norm.weight",
            "blocks.12.mlp.up.bias",
            "blocks.12.mlp.up.adapter.down",
            "final_norm.weight",
            "lm_head",
        ];
        let of = |text: &str| -> Vec<usize> {
            (0..names.len()).filter(|at| group(text).contains(names[*at])).collect()
        };
        assert_eq!(of("embedding"), [0, 1]);
        assert_eq!(of("followers"), [2]);
        assert_eq!(of("blocks"), [4, 5, 6, 7, 8]);
        assert_eq!(of("blocks.2"), [4, 5, 6]);
        assert_eq!(of("blocks.1-12"), [4, 5, 6, 7, 8]);
        assert_eq!(of("attention"), [5, 6]);
        assert_eq!(of("mlp"), [7, 8]);
        assert_eq!(of("norms"), [3, 4, 6, 9]);
        assert_eq!(of("biases"), [4, 7]);
        assert_eq!(of("head"), [10]);
    }
}
