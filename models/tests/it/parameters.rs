//! A configuration lists its model's parameters.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use models::{Footprint, Gpt, ParameterInfo, Part, presets};

use crate::fixtures::{Cpu, DEVICE, shrunk, unusual};

#[test]
fn parameters_are_listed_in_the_order_and_shapes_of_the_model() {
    let shapes = presets::PRESETS.iter().map(|preset| shrunk(preset)).chain([unusual()]);
    for config in shapes {
        let model = Gpt::<Cpu>::new(&config, 0, &DEVICE).expect("a valid configuration");
        let mut found = Found::default();
        model.visit(&mut found);
        let listed = config.parameters();
        let shapes: Vec<_> =
            listed.iter().map(|listed| (listed.name.clone(), listed.shape.clone())).collect();
        assert_eq!(shapes, found.shapes, "{config:?}");

        let footprint = Footprint::of(&config).expect("small");
        let sum = |some: &dyn Fn(&ParameterInfo) -> bool| -> u64 {
            listed.iter().filter(|listed| some(listed)).map(ParameterInfo::elements).sum()
        };
        assert_eq!(sum(&|_| true), footprint.parameters, "{config:?}");
        assert_eq!(sum(&ParameterInfo::is_projection), footprint.hidden_matrices, "{config:?}");
        assert_eq!(sum(&|listed| listed.part == Part::Block(0)), footprint.per_block, "{config:?}");
    }
}

#[derive(Default)]
struct Found {
    path: Vec<String>,
    shapes: Vec<(String, Vec<usize>)>,
}

impl ModuleVisitor<Cpu> for Found {
    models::keeps_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Cpu, D>>) {
        self.shapes.push((self.path.join("."), param.lazy_shape().to_vec()));
    }
}
