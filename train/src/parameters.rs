//! Where each parameter is stepped, and how its new weights reach the device. The configuration alone decides
//! (`a_parameters_home_follows_from_its_part_and_the_configuration`).

use std::collections::HashMap;

use host_optim::Code;
use models::{Compute, ParameterInfo, Part};
use runs::config::{Config, CrossingKind, PlacementKind, StreamKind};

use crate::rule::steps_on_device_only;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    /// Moments are tensors.
    Device,
    /// State in host memory or on the disk.
    Host(Form),
    /// The embedding's table is in host memory; a batch's rows cross the link.
    HostRows,
}

/// How a host-stepped parameter crosses the link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Form {
    /// Whether weights are bf16 on the device and f32 on the host.
    pub(crate) narrow: bool,
    /// Code of weights in tiles of eight bits.
    pub(crate) code: Option<Code>,
    pub(crate) gradients_in_tiles: bool,
}

impl Form {
    pub(crate) fn new(config: &Config, parameter: &ParameterInfo) -> Self {
        // Vectors are small; a lookup of a few rows would decode the whole table.
        let in_tiles = parameter.is_projection();
        let code = match config.memory.stream {
            StreamKind::Computed => None,
            StreamKind::Int8 => Some(Code::Int8),
            StreamKind::Fp8 => Some(Code::Fp8),
        };
        Self {
            narrow: config.model.compute == Compute::Bf16 && (in_tiles || parameter.part == Part::Head),
            code: code.filter(|_| in_tiles),
            gradients_in_tiles: in_tiles && config.memory.gradients == CrossingKind::Int8,
        }
    }
}

pub(crate) fn home(config: &Config, parameter: &ParameterInfo) -> Home {
    let memory = &config.memory;
    let stays = parameter.block().is_some_and(|block| block < memory.device_blocks);
    if memory.optimizer != PlacementKind::Host
        || stays
        || steps_on_device_only(config.train.optimizer, parameter)
    {
        return Home::Device;
    }

    // A tied head needs the whole table. With shards, other ranks lack rows, unknown to the owner.
    if parameter.part == Part::Tokens && !config.model.tie_word_embeddings && !memory.shard.has_owners() {
        return Home::HostRows;
    }
    Home::Host(Form::new(config, parameter))
}

/// Parameters that learn: those of adapters, or all but `train.freeze`.
pub(crate) fn learned(config: &Config) -> Vec<ParameterInfo> {
    if let Some(lora) = &config.train.lora {
        return lora.parameters(&config.model);
    }
    let all = config.model.parameters().into_iter();
    all.filter(|parameter| !config.train.freezes(&parameter.name)).collect()
}

pub(crate) fn learning(config: &Config) -> u64 {
    learned(config).iter().map(ParameterInfo::elements).sum()
}

/// Numbers of weights in a checkpoint: adapters, or all.
pub(crate) fn saved(config: &Config) -> u64 {
    if config.train.lora.is_some() {
        return learning(config);
    }
    config.model.parameters().iter().map(ParameterInfo::elements).sum()
}

#[derive(Debug)]
pub(crate) struct Parameters {
    by_name: HashMap<String, (ParameterInfo, Home)>,
}

impl Parameters {
    pub(crate) fn new(config: &Config) -> Self {
        let homes = learned(config).into_iter().map(|parameter| {
            let home = home(config, &parameter);
            (parameter.name.clone(), (parameter, home))
        });
        Self { by_name: homes.collect() }
    }

    /// `None` if the parameter does not learn.
    pub(crate) fn home(&self, name: &str) -> Option<Home> {
        self.by_name.get(name).map(|(_, home)| *home)
    }

    /// `None` outside the blocks.
    pub(crate) fn block(&self, name: &str) -> Option<usize> {
        self.by_name.get(name)?.0.block()
    }

    /// The default form if not stepped on the host.
    pub(crate) fn form(&self, name: &str) -> Form {
        match self.home(name) {
            Some(Home::Host(form)) => form,
            _ => Form::default(),
        }
    }
}

#[cfg(test)]
impl Parameters {
    /// For comparison with an embedding by rows.
    pub(crate) fn bring_embedding_as_a_whole(&mut self) {
        for (_, home) in self.by_name.values_mut().filter(|(_, home)| *home == Home::HostRows) {
            *home = Home::Host(Form::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn homes(settings: &[&str]) -> impl Fn(&str) -> Home {
        let text = r#"{"model": {"n_layer": 2, "n_head": 1, "n_embd": 8, "n_positions": 4, "vocab_size": 264},
            "tokenizer": {"kind": "bytes"}, "memory": {"optimizer": "host"}, "train": {"recompute": 1}}"#;
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let parameters = Parameters::new(&Config::from_text(text, "a tiny run", &settings).expect("valid"));
        move |name| parameters.home(name).expect(name)
    }

    #[test]
    fn a_parameters_home_follows_from_its_part_and_the_configuration() {
        let wide = Home::Host(Form::default());
        let [matrix, last] = ["blocks.0.mlp.up.weight", "blocks.1.mlp.up.weight"];
        let norm = "blocks.1.mlp_norm.weight";

        let on_device = homes(&["memory.optimizer=device"]);
        for name in ["wte", matrix, norm] {
            assert_eq!(on_device(name), Home::Device, "{name}");
        }

        let plain = homes(&["memory.device_blocks=1"]);
        assert_eq!((plain("wte"), plain(matrix), plain(last)), (wide, Home::Device, wide));

        let muon = homes(&["train.optimizer=muon"]);
        assert_eq!((muon("wte"), muon(matrix), muon(norm)), (wide, Home::Device, wide));

        let untied = homes(&["model.tie_word_embeddings=false", "model.compute=bf16", "memory.stream=fp8"]);
        let narrow = Form { narrow: true, ..Form::default() };
        assert_eq!((untied("wte"), untied("lm_head")), (Home::HostRows, Home::Host(narrow)));
        assert_eq!(untied(matrix), Home::Host(Form { code: Some(Code::Fp8), ..narrow }));
        assert_eq!((untied(norm), untied("wpe")), (wide, wide));

        let sharded = homes(&["model.tie_word_embeddings=false", "memory.shard=true"]);
        assert_eq!(sharded("wte"), wide);
        let gradients = homes(&["memory.gradients=int8"]);
        assert_eq!(gradients(matrix), Home::Host(Form { gradients_in_tiles: true, ..Form::default() }));
    }
}
