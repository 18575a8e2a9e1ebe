//! The parameters of a future model (`parameters_are_listed_in_the_order_and_shapes_of_the_model`).

use std::borrow::Cow;
use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Tensor, backend::Backend};

use crate::adapter::is_adapter;
use crate::config::{GptConfig, NormPlacement, Positions};
use crate::gpt::Gpt;

/// Methods of a Burn module visitor or mapper that keep the names of the modules around a parameter in `self.path`, a
/// `Vec<String>`.
#[macro_export]
macro_rules! keeps_path {
    () => {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }
    };
}

/// A part of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Token table, also a tied head.
    Tokens,
    /// Table of learned positions.
    Positions,
    /// Table of followers.
    Followers,
    /// Norm after the tables.
    EmbeddingNorm,
    /// A block, counted from 0.
    Block(usize),
    /// Norm before the head.
    FinalNorm,
    /// An untied head.
    Head,
}

/// A future model's parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterInfo {
    /// Its field's path, as in a checkpoint.
    pub name: String,
    /// Its part of the network.
    pub part: Part,
    /// One or two dimensions.
    pub shape: Vec<usize>,
}

impl ParameterInfo {
    /// Whether the parameter has two dimensions.
    pub fn is_matrix(&self) -> bool {
        self.shape.len() == 2
    }

    /// Whether it is a matrix of a block.
    pub fn is_projection(&self) -> bool {
        self.is_matrix() && self.block().is_some()
    }

    /// Its block, if any.
    pub fn block(&self) -> Option<usize> {
        match self.part {
            Part::Block(block) => Some(block),
            _ => None,
        }
    }

    /// The lowest block that a backward pass to the parameter reaches.
    pub(crate) fn lowest_block(&self) -> usize {
        match self.part {
            Part::Tokens | Part::Positions | Part::Followers | Part::EmbeddingNorm => 0,
            Part::Block(block) => block,
            Part::FinalNorm | Part::Head => usize::MAX,
        }
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product, side| product.saturating_mul(*side as u64))
    }
}

impl GptConfig {
    /// All parameters, in the order of the model's fields.
    pub fn parameters(&self) -> Vec<ParameterInfo> {
        let mut list = List { config: self, part: Part::Tokens, found: Vec::new() };
        let (words, width) = (self.vocab_size, self.n_embd);

        list.add("wte".to_owned(), &[words, width]);
        if self.positions == Positions::Learned {
            list.at(Part::Positions).add("wpe".to_owned(), &[self.n_positions, width]);
        }
        if self.longest_match {
            list.at(Part::Followers).add("followers".to_owned(), &[words + 1, width]);
        }
        if self.embedding_norm {
            list.at(Part::EmbeddingNorm).norm("embedding_norm", width);
        }
        for block in 0..self.n_layer {
            list.at(Part::Block(block)).block(&format!("blocks.{block}"));
        }
        list.at(Part::FinalNorm).norm("final_norm", width);
        if !self.tie_word_embeddings {
            list.at(Part::Head).add("lm_head".to_owned(), &[words, width]);
        }
        list.found
    }
}

impl<B: Backend> Gpt<B> {
    /// Parameters that learn: adapters', or all but frozen groups, in the order of the model's fields. Waits for no weight.
    pub fn learning(&self) -> Vec<(ParamId, ParameterInfo)> {
        let mut ids = Ids { path: Vec::new(), found: Vec::new() };
        self.visit(&mut ids);
        let adapts = self.has_adapters();
        let learns = |name: &str| (!adapts || is_adapter(name)) && !self.is_frozen(name);
        let learning = ids.found.into_iter().filter(|(name, ..)| learns(name));
        let listed = self.config().parameters().into_iter();
        let parts: HashMap<_, _> = listed.map(|parameter| (parameter.name, parameter.part)).collect();
        let info = |(name, id, shape): (String, ParamId, Vec<usize>)| {
            let part = parts[&*weight_under(&name)];
            (id, ParameterInfo { name, part, shape })
        };
        learning.map(info).collect()
    }
}

/// The number in `blocks.N.`…
pub(crate) fn block_of(name: &str) -> Option<usize> {
    name.strip_prefix("blocks.")?.split_once('.')?.0.parse().ok()
}

/// An adapter's projection weight, or the parameter itself.
fn weight_under(name: &str) -> Cow<'_, str> {
    match name.split_once(".adapter.") {
        Some((projection, _)) => format!("{projection}.weight").into(),
        None => name.into(),
    }
}

struct Ids {
    path: Vec<String>,
    found: Vec<(String, ParamId, Vec<usize>)>,
}

impl<B: Backend> ModuleVisitor<B> for Ids {
    crate::keeps_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.found.push((self.path.join("."), param.id, param.lazy_shape().to_vec()));
    }
}

struct List<'c> {
    config: &'c GptConfig,
    part: Part,
    found: Vec<ParameterInfo>,
}

impl List<'_> {
    fn at(&mut self, part: Part) -> &mut Self {
        self.part = part;
        self
    }

    fn add(&mut self, name: String, shape: &[usize]) {
        self.found.push(ParameterInfo { name, part: self.part, shape: shape.to_vec() });
    }

    fn norm(&mut self, name: &str, width: usize) {
        if self.config.norm_weights {
            self.add(format!("{name}.weight"), &[width]);
        }
        if self.config.norm_bias {
            self.add(format!("{name}.bias"), &[width]);
        }
    }

    fn linear(&mut self, name: &str, shape: [usize; 2], bias: bool) {
        self.add(format!("{name}.weight"), &shape);
        if bias {
            self.add(format!("{name}.bias"), &shape[1..]);
        }
    }

    fn block(&mut self, name: &str) {
        let config = self.config;
        let (width, inner, head) = (config.n_embd, config.inner(), config.head_dim());
        let (queries, keys) = (config.n_head * head, config.kv_heads() * head);

        let [before, after] =
            [NormPlacement::After, NormPlacement::Before].map(|lacking| config.norm_placement != lacking);
        let normed = |width| if config.qk_norm_across_heads { width } else { head };

        if before {
            self.norm(&format!("{name}.attention_norm"), width);
        }
        let attention = format!("{name}.attention");
        self.linear(&format!("{attention}.query"), [width, queries], config.attention_bias);
        self.linear(&format!("{attention}.key"), [width, keys], config.attention_bias);
        self.linear(&format!("{attention}.value"), [width, keys], config.attention_bias);
        self.linear(&format!("{attention}.output"), [queries, width], config.has_output_bias());
        if config.qk_norm {
            self.norm(&format!("{attention}.query_norm"), normed(queries));
            self.norm(&format!("{attention}.key_norm"), normed(keys));
        }
        if after {
            self.norm(&format!("{name}.attention_out_norm"), width);
        }

        if before {
            self.norm(&format!("{name}.mlp_norm"), width);
        }
        if config.has_gate() {
            self.linear(&format!("{name}.mlp.gate"), [width, inner], config.mlp_bias);
        }
        self.linear(&format!("{name}.mlp.up"), [width, inner], config.mlp_bias);
        self.linear(&format!("{name}.mlp.down"), [inner, width], config.mlp_bias);
        if after {
            self.norm(&format!("{name}.mlp_out_norm"), width);
        }
    }
}
