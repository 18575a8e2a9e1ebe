//! Operations that cannot run: a read of the result gives one error with the cause.

use super::on_a_device::{catch, install, report};
use super::{Child, Offloaded};
use crate::child::{Facts, Scenario};
use crate::numbers::Series;
use backend_offload::stats;
use burn::prelude::*;
use burn::tensor::{DType, TensorData};
use burn_flex::{Flex, FlexDevice};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario { name: "router: too large", run: too_large },
        Scenario { name: "router: host full", run: host_full },
        Scenario { name: "router: a backend's panic", run: backend_panic },
        Scenario { name: "router: unsupported", run: unsupported },
    ]
}

const MIB: u64 = 1 << 20;

fn data(name: &str, rows: usize) -> TensorData {
    Series::new(6, name).floats(&[rows, 1024], 1.0)
}

fn matrix(name: &str, rows: usize) -> Tensor<Offloaded, 2> {
    Tensor::from_data(data(name, rows), &FlexDevice)
}

fn verdict<const D: usize>(tensor: Tensor<Offloaded, D>) -> String {
    tensor.try_into_data().map_or_else(|error| error.to_string(), |_| "read".to_owned())
}

#[test]
fn an_operation_above_the_budget_fails_where_its_output_is_read_and_nowhere_else() {
    let report = Child::new("router: too large").with("budget", 2 * MIB).run();
    for name in ["too large", "derived"] {
        let error = report.text(name);
        assert!(error.contains("BaseFloat::RepeatDim"), "{error}");
        assert!(error.contains("wants 4.00 MiB") && error.contains("of 2.00 MiB"), "{error}");
        assert!(error.contains("raise the device budget") && error.contains("largest holders"), "{error}");
    }
    assert_eq!(report.text("data above the budget"), "read", "it begins on the host");
    assert!(report.text("first synchronisation").contains("wants 4.00 MiB"));
    assert_eq!(report.text("second synchronisation"), "fine");
    assert_eq!(report.text("another thread's"), "fine");
    assert_eq!(report.text("source"), "read");
    assert_eq!(report.text("smaller"), "read");
    assert_eq!(report.number("failures"), 2);
    assert_eq!(report.number("in use") + report.number("host in use"), 0);
}

fn too_large(facts: &Facts) -> Facts {
    install::<Flex>(facts, &FlexDevice);
    let source = matrix("source", 256);
    let four = source.clone().repeat_dim(0, 3);
    let derived = four.clone() + 1.0;
    let synchronised =
        || Offloaded::sync(&FlexDevice).map_or_else(|error| error.to_string(), |()| "fine".to_owned());
    let elsewhere = std::thread::spawn(synchronised).join().expect("a thread that asks");
    let (first, second) = (synchronised(), synchronised());
    let found = Facts::default()
        .with("first synchronisation", first)
        .with("second synchronisation", second)
        .with("another thread's", elsewhere)
        .with("too large", verdict(four))
        .with("derived", verdict(derived))
        .with("data above the budget", verdict(matrix("large", 1024)))
        .with("smaller", verdict(source.clone().slice([0..64, 0..1024]).repeat_dim(0, 2)))
        .with("source", if source.into_data() == data("source", 256) { "read" } else { "damaged" });
    report(&stats::<Flex>(&FlexDevice)).and(found)
}

#[test]
fn a_full_host_fails_the_operation_that_needs_room_and_loses_nothing() {
    let report = Child::new("router: host full").with("budget", 2 * MIB).with("host budget", 2 * MIB).run();
    let error = report.text("the fifth");
    assert!(
        error.contains("raise the host budget") && error.contains("host 2.00 MiB in use of 2.00 MiB"),
        "{error}"
    );
    assert_eq!(report.text("the four"), "intact");
    assert_eq!(report.text("after one is gone"), "read");
    assert_eq!(report.number("failures"), 1);
}

fn host_full(facts: &Facts) -> Facts {
    install::<Flex>(facts, &FlexDevice);
    let names = ["a", "b", "c", "d"];
    let mut four: Vec<_> = names.iter().map(|name| matrix(name, 256)).collect();
    let fifth = verdict(matrix("e", 256));
    let intact = four.iter().zip(names).all(|(tensor, name)| tensor.to_data() == data(name, 256));
    four.pop();
    let found = Facts::default()
        .with("the fifth", fifth)
        .with("the four", if intact { "intact" } else { "damaged" })
        .with("after one is gone", verdict(matrix("f", 256)));
    report(&stats::<Flex>(&FlexDevice)).and(found)
}

#[test]
fn a_backend_panic_reaches_its_caller_unchanged() {
    let report = Child::new("router: a backend's panic").run();
    assert_ne!(report.text("plain"), "no panic");
    assert_eq!(report.text("ours"), report.text("plain"));
    assert_eq!(report.text("afterwards"), "intact");
    assert_eq!(report.text("another thread"), "intact");
    assert_eq!(report.number("in use"), 0);
}

fn backend_panic(facts: &Facts) -> Facts {
    fn out_of_range<B: Backend<Device = FlexDevice>>() -> String {
        let rows = Tensor::<B, 1, Int>::from_data([0, 70_000], &FlexDevice);
        let source = Tensor::<B, 2>::from_data(data("source", 64), &FlexDevice);
        catch(|| source.select(0, rows).into_data()).map_or_else(|message| message, |_| "no panic".to_owned())
    }
    install::<Flex>(facts, &FlexDevice);
    let bystander = matrix("bystander", 64);
    let found =
        Facts::default().with("plain", out_of_range::<Flex>()).with("ours", out_of_range::<Offloaded>());
    let check = |tensor: Tensor<Offloaded, 2>| {
        let sum = (tensor + 0.0).into_data();
        if sum == data("bystander", 64) { "intact" } else { "damaged" }
    };
    let elsewhere = bystander.clone();
    let another = std::thread::spawn(move || check(elsewhere)).join().expect("no panic of its own");
    let found = found.with("another thread", another).with("afterwards", check(bystander));
    report(&stats::<Flex>(&FlexDevice)).and(found)
}

#[test]
fn unsupported_operations_are_refused_on_the_callers_thread_and_harm_no_other_tensor() {
    let report = Child::new("router: unsupported").run();
    let custom = report.text("custom operation");
    assert!(custom.starts_with("Custom is not supported on the CPU adapter"), "{custom}");
    let quantized = report.text("quantized data");
    assert!(quantized.contains("quantized tensors"), "{quantized}");
    for name in ["quantize", "fourier transform"] {
        let message = report.text(name);
        assert!(
            message.contains("not implemented") || message.contains("not supported"),
            "{name}: {message}"
        );
    }
    assert_eq!(report.text("quantized types"), "false");
    assert_eq!(report.text("afterwards"), "read");
    assert_eq!(report.number("in use"), 0);
}

fn unsupported(facts: &Facts) -> Facts {
    use burn::tensor::TensorPrimitive;
    use burn::tensor::quantization::{QuantScheme, QuantStore, QuantValue};
    use burn_ir::{CustomOpIr, OperationIr};
    use burn_router::RunnerClient;

    install::<Flex>(facts, &FlexDevice);
    let refusal =
        |result: Result<(), String>| result.map_or_else(|message| message, |()| "not refused".to_owned());
    let source = matrix("source", 64);
    let TensorPrimitive::Float(primitive) = source.clone().into_primitive() else {
        unreachable!("floats are floats")
    };
    let client = primitive.client.clone();
    let ir = primitive.into_ir();
    let custom = catch(|| client.register_op(OperationIr::Custom(CustomOpIr::new("mine", &[ir], &[]))));
    let scheme = QuantScheme::default().with_value(QuantValue::Q8S).with_store(QuantStore::Native);
    let mut packed = TensorData::new(vec![1i8, 2, 3, 4], [4]);
    packed.dtype = DType::QFloat(scheme);
    let found = Facts::default()
        .with("custom operation", refusal(custom))
        .with("quantized data", refusal(catch(|| drop(client.register_tensor_data(packed)))))
        .with("quantize", refusal(catch(|| drop(source.clone().quantize_dynamic(&scheme)))))
        .with(
            "fourier transform",
            refusal(catch(|| drop(burn::tensor::signal::rfft(source.clone(), 1, None)))),
        )
        .with("quantized types", Offloaded::supports_dtype(&FlexDevice, DType::QFloat(scheme)))
        .with("afterwards", verdict(source * 2.0));
    report(&stats::<Flex>(&FlexDevice)).and(found)
}
