//! Plans of adapters on frozen weights.

use models::ParameterInfo;

use super::*;

const LORA: [&str; 6] = [
    "train.lora.rank=16",
    "memory.optimizer=device",
    "memory.optimizer_state=f32",
    "train.micro_batch=1",
    "train.accumulate=4",
    "train.sequence=512",
];

fn seven(set: &[&str]) -> Plan {
    plan("gpt-7b", &[&LORA[..], set].concat(), &card(8 * GIB))
}

#[test]
fn frozen_weights_come_in_twice_per_group_and_never_leave() {
    for (together, groups) in [("1", 4), ("4", 1)] {
        let plan = seven(&[&format!("train.together={together}")]);
        assert_eq!(plan.refusals(), [""; 0], "{plan}");
        let frozen = held(&plan, "weights, frozen");
        assert!(frozen.spills > 2 * GIB, "{plan}");
        // Other spills, in both directions.
        let others = plan.bytes_out_per_step;
        assert!(others < plan.bytes_in_per_step / 20, "{plan}");
        let come = plan.bytes_in_per_step - others;
        assert!(come.abs_diff(2 * groups * frozen.spills) <= others, "{plan}");
    }
}

#[test]
fn frozen_factors_take_the_compute_type_and_have_no_gradient_and_no_state() {
    let config = Config::load("gpt-7b", &LORA.map(str::to_owned)).expect("a preset");
    let lora = config.train.lora.as_ref().expect("it was set");
    let adapters = lora.elements(&config.model);
    let plan = seven(&[]);
    assert_eq!(plan.learning, adapters);
    assert_eq!(held(&plan, "weights").bytes, 4 * adapters);
    assert_eq!(held(&plan, "gradients").bytes, 4 * adapters);
    assert_eq!(held(&plan, "optimizer state").bytes, 8 * adapters);
    assert_eq!(plan.checkpoint_bytes, 12 * adapters);

    let (frozen, parameters) = (held(&plan, "weights, frozen").bytes, plan.parameters);
    assert!((2 * parameters..2 * parameters + parameters / 10).contains(&frozen), "{frozen}");
    let wide = held(&seven(&["model.compute=f32"]), "weights, frozen").bytes;
    assert_eq!(wide, 4 * parameters);
    assert!(plan.held.iter().all(|held| held.what != "narrow copies of weights"), "{plan}");

    let whole = self::plan("gpt-7b", &LORA[1..], &card(8 * GIB));
    assert!(plan.flops_per_step < 0.8 * whole.flops_per_step, "no gradients of frozen weights");
}

#[test]
fn the_table_says_what_learns() {
    let text = seven(&[]).to_string();
    let first = text.lines().next().expect("a line");
    assert!(first.contains("in adapters, which alone learn, on a card"), "{first}");
}

#[test]
fn adapters_keep_an_automatic_optimizer_on_the_device() {
    let set = [&LORA[..], &["memory.optimizer=auto"]].concat();
    let set: Vec<_> = set.iter().map(|set| (*set).to_owned()).collect();
    let config = Config::load("gpt-7b", &set).expect("valid");
    let placed = placed(&config, &Footprint::of(&config.model).expect("valid"), &card(8 * GIB));
    assert_eq!(placed.memory.optimizer, PlacementKind::Device);
}

#[test]
fn a_packed_base_takes_its_bits_and_crosses_the_link_as_it_is() {
    let exact = seven(&[]);
    let config = Config::load("gpt-7b", &[]).expect("a preset");
    let projections = config.model.parameters().into_iter().filter(ParameterInfo::is_projection);
    let numbers: u64 = projections.map(|parameter| parameter.elements()).sum();
    let frozen = |plan: &Plan| held(plan, "weights, frozen").bytes;
    let others = frozen(&exact) - 2 * numbers;
    for (base, sixteenths) in [("bf16", 32), ("int8", 16), ("nf4", 9)] {
        let plan = seven(&[&format!("memory.base={base}")]);
        assert_eq!(plan.refusals(), [""; 0], "{plan}");
        let scales = if base == "int8" { numbers / 32 } else { 0 };
        assert_eq!(frozen(&plan), others + numbers / 16 * sixteenths + scales, "{base}");
        assert_eq!(held(&plan, "weights").bytes, held(&exact, "weights").bytes);
    }
    let [nf4, whole] = ["nf4", "bf16"].map(|base| seven(&[&format!("memory.base={base}")]));
    assert!(4 * nf4.bytes_in_per_step < whole.bytes_in_per_step, "{nf4}");
}
