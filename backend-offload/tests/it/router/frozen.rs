//! Parameters that learn nothing: they come in as often as they are used, and leave for free.

use super::on_a_device::install;
use super::{Child, Training};
use crate::child::{Facts, Scenario};
use crate::numbers::{Series, initialise};
use backend_offload::stats;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::prelude::*;
use burn_flex::{Flex, FlexDevice};

pub fn scenarios() -> Vec<Scenario> {
    vec![Scenario { name: FROZEN, run: frozen }]
}

const FROZEN: &str = "router: frozen";
const MIB: u64 = 1 << 20;
const LAYERS: u64 = 8;

#[derive(Module, Debug)]
struct Net<B: Backend> {
    learns: Linear<B>,
    rest: Vec<Linear<B>>,
}

#[test]
fn frozen_parameters_of_any_module_leave_without_a_copy() {
    let report = |freezes: bool| {
        let child = Child::new(FROZEN).with("budget", 5 * MIB);
        if freezes { child.with("freezes", 1) } else { child }.run()
    };
    let (frozen, whole) = (report(true), report(false));
    assert_eq!(frozen.number("out"), 0);
    assert!(frozen.number("in") > 0 && frozen.number("in") <= 2 * LAYERS * MIB);
    assert!(whole.number("out") >= LAYERS * MIB / 2, "weights that learn leave with a copy");
    assert_eq!(frozen.text("loss"), report(true).text("loss"));
}

fn frozen(facts: &Facts) -> Facts {
    install::<Flex>(facts, &FlexDevice);
    let linear = |inputs| LinearConfig::new(inputs, 512).with_bias(false).init::<Training>(&FlexDevice);
    let mut net = Net { learns: linear(8), rest: (0..LAYERS).map(|_| linear(512)).collect() };
    net = initialise(net, &FlexDevice, 1);
    if facts.find("freezes").is_some() {
        net.rest = net.rest.no_grad();
    }

    let mut optimizer = SgdConfig::new().init();
    let (mut before, mut loss) = (stats::<Flex>(&FlexDevice), 0.0);
    for step in 0..6 {
        // The first steps teach the order, and copy each weight to the host once.
        if step == 5 {
            before = stats::<Flex>(&FlexDevice);
        }
        let x = Tensor::<Training, 2>::from_data(Series::new(1, "x").floats(&[4, 8], 1.0), &FlexDevice);
        let y = net.rest.iter().fold(net.learns.forward(x), |x, layer| layer.forward(x));
        let mean = y.powf_scalar(2.0).mean();
        loss = mean.clone().into_scalar();
        let gradients = GradientsParams::from_grads(mean.backward(), &net);
        net = optimizer.step(1e-3, net, gradients);
    }

    let after = stats::<Flex>(&FlexDevice);
    Facts::default()
        .with("in", after.bytes_in - before.bytes_in)
        .with("out", after.bytes_out - before.bytes_out)
        .with("loss", loss.to_bits())
}
