//! The default suite: about ten minutes.

use std::path::Path;

use clap::ValueEnum;

use crate::records::machine::Machine;

pub(crate) struct Model {
    pub(super) name: String,
    /// As asked for: a path, a preset, or a shape in place of a preset's. Names the twin in another framework.
    pub(super) shape: String,
    /// A path or a preset.
    pub(super) config: String,
    pub(super) settings: Vec<String>,
}

/// Where moments and master weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Optimizer {
    Device,
    Host,
}

/// After the model's name.
pub(super) const ON_THE_HOST: &str = "optimizer on the host";

/// How matrices and their gradients cross the link to an optimizer on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Crossing {
    /// In the type of the computation.
    Computed,
    /// Both as eight-bit integers.
    Int8,
    /// Matrices as eight-bit floats, gradients as eight-bit integers.
    Fp8,
}

/// An empty list keeps the configuration's.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Turns<'a> {
    pub(super) optimizers: &'a [Optimizer],
    pub(super) crossings: &'a [Crossing],
    /// Sizes of groups of micro-batches.
    pub(super) together: &'a [u64],
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Never `auto`: all cells run on one device.
    pub(super) device: String,
    pub(super) has_gpu: bool,
}

/// Disable all but training steps.
const STEPS_ONLY: [&str; 8] = [
    "eval.every=0",
    "eval.sequences=1",
    "eval.sample_every=0",
    "eval.prompts=[]",
    "eval.questions=[]",
    "eval.quiz=0",
    "checkpoint.every=0",
    "checkpoint.last=false",
];

/// No tokenizer training, and only the steps' text: a micro-batch costs the same.
const QUICK_START: [&str; 3] = ["tokenizer.kind=bytes", "data.dialogues=5000", "train.accumulate=1"];

/// A published network in place of a preset's: its name, the preset, and the settings that put it there.
const SHAPES: [(&str, &str, [&str; 3]); 1] = [(
    "llama-1.1b",
    "gpt-124m",
    [r#"model={"preset":"llama-1.1b","compute":"bf16"}"#, "train.micro_batch=2", "train.sequence=512"],
)];

/// A CPU computes in no type smaller than f32.
const SHORT_STEPS: [&str; 3] = ["train.micro_batch=1", "train.sequence=64", "model.compute=f32"];

impl Place {
    pub(super) fn choose(asked: &str, machine: &Machine) -> Self {
        let found = if machine.gpu.is_some() { "cuda" } else { "cpu" };
        let device = if asked == "auto" { found } else { asked };
        Self { device: device.to_owned(), has_gpu: device != "cpu" && machine.gpu.is_some() }
    }

    pub(super) fn name(&self, machine: &Machine) -> String {
        let gpu = machine.gpu.clone().filter(|_| self.has_gpu);
        gpu.unwrap_or_else(|| machine.processor.clone())
    }

    fn models(&self) -> &'static [&'static str] {
        if self.has_gpu { &["gpt-124m", "llama-1.1b"] } else { &["toy", "gpt-124m"] }
    }
}

/// Models `asked` for, or suited to the place, each in all `turns`. The last of `settings` wins.
pub(super) fn models(
    asked: &[String],
    steps: Option<u64>,
    turns: Turns<'_>,
    settings: &[String],
    place: &Place,
) -> Vec<Model> {
    let chosen: Vec<String> = match asked {
        [] => place.models().iter().map(|&name| name.to_owned()).collect(),
        asked => asked.to_vec(),
    };
    let models = chosen.into_iter().map(|config| Model::new(config, steps, place));
    let placed = models.flat_map(|model| match turns.optimizers {
        [] => vec![model],
        optimizers => optimizers.iter().map(|&optimizer| model.with_optimizer(optimizer)).collect(),
    });
    let crossing = placed.flat_map(|model| match turns.crossings {
        [] => vec![model],
        crossings => crossings.iter().map(|&crossing| model.with_crossing(crossing)).collect(),
    });
    let with_settings = |mut model: Model| {
        model.settings.extend_from_slice(settings);
        model
    };
    let grouped = crossing.flat_map(|model| match turns.together {
        [] => vec![model],
        counts => counts.iter().map(|&count| model.with_group(count)).collect(),
    });
    grouped.map(with_settings).collect()
}

impl Model {
    fn new(shape: String, steps: Option<u64>, place: &Place) -> Self {
        let file = Path::new(&shape).file_name();
        let stem = file.map_or(shape.as_str().into(), |file| file.to_string_lossy());
        let name = stem.strip_suffix(".json").unwrap_or(&stem).to_owned();
        let is_file = Path::new(&shape).exists();
        let replaced = SHAPES.iter().find(|(known, ..)| *known == shape && !is_file);
        let is_large_preset = (name.starts_with("gpt-") && !is_file) || replaced.is_some();
        let (usual_steps, own): (u64, Vec<&str>) = match (name.as_str(), is_large_preset, place.has_gpu) {
            (_, true, true) => (8, QUICK_START.to_vec()),
            (_, true, false) => (5, [QUICK_START, SHORT_STEPS].concat()),
            ("toy", ..) => (30, Vec::new()),
            _ => (10, Vec::new()),
        };
        let steps =
            [format!("train.steps={}", steps.unwrap_or(usual_steps)), "train.schedule.warmup=1".to_owned()];
        let network = replaced.iter().flat_map(|(_, _, settings)| *settings);
        let fixed = STEPS_ONLY.iter().copied().chain(network).chain(own).map(str::to_owned);
        let settings = steps.into_iter().chain(fixed).collect();
        let config = replaced.map_or_else(|| shape.clone(), |(_, preset, _)| (*preset).to_owned());
        Self { name, shape, config, settings }
    }

    pub(crate) fn on_cpu(config: &str, steps: u64) -> Self {
        Self::new(config.to_owned(), Some(steps), &Place { device: "cpu".to_owned(), has_gpu: false })
    }

    fn with_optimizer(&self, optimizer: Optimizer) -> Self {
        let (name, setting) = match optimizer {
            Optimizer::Device => (self.name.clone(), "device"),
            Optimizer::Host => (format!("{}, {ON_THE_HOST}", self.name), "host"),
        };
        let mut settings = self.settings.clone();
        settings.push(format!("memory.optimizer={setting}"));
        if optimizer == Optimizer::Device {
            // Smaller types exist on the host only.
            settings.push("memory.optimizer_state=f32".to_owned());
        }
        self.changed(name, settings)
    }

    /// Eight-bit weights come from master weights: the optimizer moves to the host.
    fn with_crossing(&self, crossing: Crossing) -> Self {
        let (name, stream, gradients) = match crossing {
            Crossing::Computed => ("as computed with", "computed", "computed"),
            Crossing::Int8 => ("in int8", "int8", "int8"),
            Crossing::Fp8 => ("in fp8", "fp8", "int8"),
        };
        let mut settings = self.settings.clone();
        settings.push("memory.optimizer=host".to_owned());
        settings.push(format!("memory.stream={stream}"));
        settings.push(format!("memory.gradients={gradients}"));
        self.changed(format!("{}, crossing {name}", self.name), settings)
    }

    fn with_group(&self, count: u64) -> Self {
        let settings = [&self.settings[..], &[format!("train.together={count}")]].concat();
        self.changed(format!("{}, {count} together", self.name), settings)
    }

    fn changed(&self, name: String, settings: Vec<String>) -> Self {
        Self { name, shape: self.shape.clone(), config: self.config.clone(), settings }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(gpu: Option<&str>) -> Machine {
        Machine {
            gpu: gpu.map(str::to_owned),
            evidence: String::new(),
            processor: "Some CPU".to_owned(),
            facts: Vec::new(),
        }
    }

    fn names(asked: &[String], place: &Place) -> Vec<String> {
        models(asked, None, Turns::default(), &[], place).into_iter().map(|model| model.name).collect()
    }

    #[test]
    fn a_gpu_is_used_by_default() {
        let with = machine(Some("NVIDIA L4"));
        let place = Place::choose("auto", &with);
        assert_eq!((place.device.as_str(), place.name(&with).as_str()), ("cuda", "NVIDIA L4"));
        assert_eq!(names(&[], &place), ["gpt-124m", "llama-1.1b"]);
        let place = Place::choose("cpu", &with);
        assert_eq!((place.has_gpu, place.name(&with).as_str()), (false, "Some CPU"));
        assert_eq!(Place::choose("cuda:1", &with).device, "cuda:1");
    }

    #[test]
    fn without_a_gpu_the_models_are_small_and_the_sequences_short() {
        let place = Place::choose("auto", &machine(None));
        assert_eq!(place.device, "cpu");
        let models = models(&[], None, Turns::default(), &[], &place);
        assert_eq!(models.iter().map(|model| model.name.as_str()).collect::<Vec<_>>(), ["toy", "gpt-124m"]);
        assert!(models[1].settings.contains(&"train.sequence=64".to_owned()));
        assert!(!models[0].settings.contains(&"train.sequence=64".to_owned()));
    }

    #[test]
    fn a_software_vulkan_does_not_get_the_work_of_a_gpu() {
        assert!(!Place::choose("vulkan", &machine(None)).has_gpu);
    }

    #[test]
    fn a_published_shape_replaces_a_presets_network_before_other_settings() {
        let place = Place { device: "cuda".to_owned(), has_gpu: true };
        let asked = ["llama-1.1b".to_owned()];
        let further = ["model.compute=f32".to_owned()];
        let models = models(&asked, None, Turns::default(), &further, &place);
        let Model { name, shape, config, settings } = &models[0];
        assert_eq!([name, shape, config], ["llama-1.1b", "llama-1.1b", "gpt-124m"]);
        let at = |wanted: &str| settings.iter().position(|setting| setting.starts_with(wanted)).unwrap();
        assert!(at("model={") < at("model.compute=f32") && settings.contains(&QUICK_START[0].to_owned()));
        assert!(settings[at("model={")].contains("\"preset\":\"llama-1.1b\""), "{settings:?}");
    }

    #[test]
    fn given_settings_win_over_defaults() {
        let place = Place::choose("cpu", &machine(None));
        let asked = ["sizes/gpt-mine.json".to_owned()];
        let models = models(&asked, Some(3), Turns::default(), &["train.micro_batch=4".to_owned()], &place);
        let settings = &models[0].settings;
        assert_eq!((models[0].name.as_str(), models[0].config.as_str()), ("gpt-mine", "sizes/gpt-mine.json"));
        assert!(settings.contains(&"train.steps=3".to_owned()));
        assert_eq!(settings.last().unwrap(), "train.micro_batch=4");
    }

    #[test]
    fn each_model_runs_with_its_optimizer_in_each_place_asked_for() {
        let place = Place::choose("cpu", &machine(None));
        let asked = ["toy".to_owned()];
        let further = ["memory.optimizer_state=bf16".to_owned()];
        let turns = Turns { optimizers: &[Optimizer::Device, Optimizer::Host], ..Turns::default() };
        let models = models(&asked, None, turns, &further, &place);
        let names: Vec<_> = models.iter().map(|model| model.name.as_str()).collect();
        assert_eq!(names, ["toy", "toy, optimizer on the host"]);
        for (model, setting) in models.iter().zip(["device", "host"]) {
            assert!(model.settings.contains(&format!("memory.optimizer={setting}")), "{:?}", model.settings);
            assert_eq!(model.settings.last(), Some(&further[0]));
        }
    }

    #[test]
    fn each_model_runs_with_each_size_of_group_asked_for() {
        let place = Place::choose("cpu", &machine(None));
        let turns = Turns { together: &[1, 8], ..Turns::default() };
        let further = ["train.accumulate=8".to_owned()];
        let models = models(&["toy".to_owned()], None, turns, &further, &place);
        let names: Vec<_> = models.iter().map(|model| model.name.as_str()).collect();
        assert_eq!(names, ["toy, 1 together", "toy, 8 together"]);
        assert!(models[1].settings.ends_with(&["train.together=8".to_owned(), further[0].clone()]));
    }

    #[test]
    fn each_model_crosses_the_link_in_each_way_asked_for() {
        let place = Place::choose("cpu", &machine(None));
        let asked = ["toy".to_owned()];
        let crossings = [Crossing::Computed, Crossing::Int8, Crossing::Fp8];
        let further = ["memory.activations=int8".to_owned()];
        let turns = Turns { crossings: &crossings, ..Turns::default() };
        let models = models(&asked, None, turns, &further, &place);
        let names: Vec<_> = models.iter().map(|model| model.name.as_str()).collect();
        assert_eq!(
            names,
            ["toy, crossing as computed with", "toy, crossing in int8", "toy, crossing in fp8"]
        );
        let expected = [("computed", "computed"), ("int8", "int8"), ("fp8", "int8")];
        for (model, (stream, gradients)) in models.iter().zip(expected) {
            let set = |setting: &str| model.settings.iter().any(|given| given == setting);
            assert!(
                set("memory.optimizer=host") && set(&format!("memory.stream={stream}")),
                "{:?}",
                model.name
            );
            assert!(set(&format!("memory.gradients={gradients}")), "{:?}", model.settings);
            assert_eq!(model.settings.last(), Some(&further[0]));
        }
    }
}
