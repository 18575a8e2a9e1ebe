//! Memory is freed, views share it, and tensors on the host are read there.

use super::on_a_device::{install, report};
use super::{Child, Offloaded};
use crate::child::{Facts, Scenario};
use crate::numbers::Series;
use crate::programs::{Size, program};
use backend_offload::{Event, events, in_place, reset_peaks, stats};
use burn::prelude::*;
use burn::tensor::TensorPrimitive;
use burn_flex::{Flex, FlexDevice};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario { name: "router: two hundred steps", run: two_hundred_steps },
        Scenario { name: "router: views", run: views },
        Scenario { name: "router: reads", run: reads },
        Scenario { name: "router: in place", run: changes },
        Scenario { name: "router: in place of views", run: changes_of_views },
    ]
}

const MIB: u64 = 1 << 20;

fn matrix(name: &str) -> Tensor<Offloaded, 2> {
    Tensor::from_data(Series::new(4, name).floats(&[512, 512], 1.0), &FlexDevice)
}

fn made_on_device() -> Tensor<Offloaded, 2> {
    Tensor::zeros([512, 512], &FlexDevice)
}

#[test]
fn two_hundred_steps_leave_usage_flat_and_both_tiers_empty() {
    let report = Child::new("router: two hundred steps").with("budget", 6 * MIB).run();
    assert_eq!(report.number("peak after 200"), report.number("peak after 20"));
    assert_eq!(report.number("host peak after 200"), report.number("host peak after 20"));
    assert_eq!((report.number("in use"), report.number("host in use")), (0, 0));
    assert_eq!(report.number("reserved"), 0, "what is freed is gone at once");
    assert!(report.number("evictions") > 0);
}

fn two_hundred_steps(facts: &Facts) -> Facts {
    install::<Flex>(facts, &FlexDevice);
    let train = program::<super::Training>("mlp").train;
    train(&FlexDevice, Size::Usual, 20, 1);
    let early = stats::<Flex>(&FlexDevice);
    train(&FlexDevice, Size::Usual, 200, 1);
    let late = stats::<Flex>(&FlexDevice);
    report(&late)
        .with("peak after 20", early.device.peak)
        .with("peak after 200", late.device.peak)
        .with("host peak after 20", early.host.peak)
        .with("host peak after 200", late.host.peak)
}

#[test]
fn views_share_one_block_even_after_evict_and_restore() {
    let report = Child::new("router: views").with("budget", 3 * MIB).run();
    assert_eq!(report.number("blocks of three views"), 1);
    assert_eq!(report.number("bytes of three views"), MIB);
    assert_eq!(report.text("events on the way"), "out, back");
    assert_eq!(report.number("blocks after the journey"), 1);
    assert_eq!(report.text("product"), "same");
    assert_eq!(report.number("allocations of an update in place"), 0);
    assert_eq!(report.number("allocations of an update beside a view"), 1);
}

fn views(facts: &Facts) -> Facts {
    install::<Flex>(facts, &FlexDevice);
    let counters = || stats::<Flex>(&FlexDevice);
    let holders = || backend_offload::largest_holders::<Flex>(&FlexDevice, 10).len();
    let source = matrix("source");
    let turned = source.clone().transpose();
    let part = source.clone().slice([100..300, 0..512]);
    let found = Facts::default()
        .with("blocks of three views", holders())
        .with("bytes of three views", counters().device.in_use);
    let product = turned.clone().matmul(part.clone().transpose()).into_data();

    events::<Flex>(&FlexDevice);
    let others = [(); 3].map(|()| made_on_device());
    let away = events::<Flex>(&FlexDevice);
    drop(others);
    let again = turned.matmul(part.transpose()).into_data();
    let back = events::<Flex>(&FlexDevice);
    let out = away.contains(&Event::Evicted { bytes: MIB, copied: true });
    let restored = back.iter().filter(|event| **event == Event::Restored { bytes: MIB }).count();
    let found = found
        .with("events on the way", if out && restored == 1 { "out, back" } else { "something else" })
        .with("blocks after the journey", holders())
        .with("product", if product.bytes[..] == again.bytes[..] { "same" } else { "different" });

    let before = counters().allocations;
    let updated = source + 1.0;
    let in_place = counters().allocations - before;
    let view = updated.clone().slice([0..512, 0..8]);
    let copied = updated * 2.0;
    let beside = counters().allocations - before - in_place;
    drop((view, copied));
    found
        .with("allocations of an update in place", in_place)
        .with("allocations of an update beside a view", beside)
}

#[test]
fn contents_on_the_host_are_read_there() {
    let report = Child::new("router: reads").with("budget", MIB).run();
    assert_eq!(report.text("whole"), "read");
    assert_eq!(report.text("part"), "read");
    assert_eq!(report.number("restores of reads in one piece"), 0);
    assert_eq!(report.text("turned"), "read");
    assert_eq!(report.number("restores of a strided read"), 1);
}

fn reads(facts: &Facts) -> Facts {
    install::<Flex>(facts, &FlexDevice);
    let restores = || stats::<Flex>(&FlexDevice).restores;
    let source = matrix("source");
    let (part, turned) = (source.clone().slice([7..9, 0..512]), source.clone().transpose());
    let expected = Series::new(4, "source").floats(&[512, 512], 1.0);
    let others = [(); 2].map(|()| made_on_device());
    let verdict = |same: bool| if same { "read" } else { "something else" };

    let whole = source.to_data() == expected;
    let rows = part.into_data().bytes[..] == expected.bytes[7 * 512 * 4..9 * 512 * 4];
    let in_one_piece = restores();
    let columns = turned.into_data().iter::<f32>().nth(1) == expected.iter::<f32>().nth(512);
    drop(others);
    Facts::default()
        .with("whole", verdict(whole))
        .with("part", verdict(rows))
        .with("turned", verdict(columns))
        .with("restores of reads in one piece", in_one_piece)
        .with("restores of a strided read", restores() - in_one_piece)
}

#[test]
fn an_in_place_change_allocates_nothing_and_invalidates_host_copies() {
    let report = Child::new("router: in place").with("budget", 8 * MIB).with("paranoid", true).run();
    assert_eq!(report.number("allocations"), 0, "four operands are in their own storages");
    assert_eq!(report.number("peak"), 8 * MIB);
    assert_eq!(report.text("after a journey"), "changed");
    assert_eq!(report.text("what another holder has"), "as it was");
}

fn changes(facts: &Facts) -> Facts {
    install::<Flex>(facts, &FlexDevice);
    let loaded = |tensors: Vec<Tensor<Offloaded, 2>>| {
        let primitives = tensors.into_iter().map(|tensor| tensor.into_primitive().tensor()).collect();
        let changed = in_place::<Offloaded>(primitives, &mut |slices| {
            slices.iter_mut().flat_map(|slice| slice.iter_mut()).for_each(|x| *x += 1.0);
        });
        let tensor = |primitive| Tensor::<Offloaded, 2>::from_primitive(TensorPrimitive::Float(primitive));
        changed.expect("the CPU's memory is ours").into_iter().map(tensor).collect::<Vec<_>>()
    };
    let holds = |tensor: &Tensor<Offloaded, 2>, name: &str, more: f32| {
        let found = tensor.to_data();
        let before = Series::new(4, name).floats(&[512, 512], 1.0);
        found
            .iter::<f32>()
            .zip(before.iter::<f32>())
            .all(|(found, before)| found.to_bits() == (before + more).to_bits())
    };

    let names = ["a", "b", "c", "d"];
    let operands = names.map(matrix);
    let push_out = || {
        let before = stats::<Flex>(&FlexDevice).evictions;
        drop((0..8).map(|_| made_on_device()).collect::<Vec<_>>());
        stats::<Flex>(&FlexDevice).evictions - before
    };
    assert_eq!(push_out(), 4, "every operand leaves");
    let sums: Vec<f32> = operands.iter().map(|operand| operand.clone().max().into_scalar()).collect();
    drop(sums);

    let before = stats::<Flex>(&FlexDevice).allocations;
    let changed = loaded(operands.to_vec());
    let copied = stats::<Flex>(&FlexDevice).allocations - before;
    let is_as_it_was = operands.iter().zip(names).all(|(operand, name)| holds(operand, name, 0.0));

    drop(operands);
    let before = stats::<Flex>(&FlexDevice).allocations;
    let changed = loaded(changed);
    let after = stats::<Flex>(&FlexDevice);
    assert_eq!(push_out(), 4, "every changed operand leaves");
    let is_changed = changed.iter().zip(names).all(|(tensor, name)| holds(tensor, name, 2.0));
    assert!(copied >= 4, "what is shared was written to");

    Facts::default()
        .with("allocations", after.allocations - before)
        .with("peak", after.device.peak)
        .with("after a journey", if is_changed { "changed" } else { "stale" })
        .with("what another holder has", if is_as_it_was { "as it was" } else { "changed" })
}

#[test]
fn a_change_that_needs_a_copy_reserves_its_memory() {
    let report = Child::new("router: in place of views").with("budget", 8 * MIB).with("paranoid", true).run();
    assert_eq!(report.number("largest launch of one in rows"), MIB);
    assert_eq!(report.number("largest launch of a turned one"), 2 * MIB);
    assert_eq!(report.number("largest launch of a shared one"), 2 * MIB);
    assert_eq!(report.number("largest launch of three"), 3 * MIB, "they were copied one by one before");
}

fn changes_of_views(facts: &Facts) -> Facts {
    install::<Flex>(facts, &FlexDevice);
    let largest_of = |tensors: Vec<Tensor<Offloaded, 2>>| {
        let tensors = tensors.into_iter().map(|tensor| tensor.into_primitive().tensor()).collect();
        reset_peaks::<Flex>(&FlexDevice);
        let changed = in_place::<Offloaded>(tensors, &mut |_| {});
        assert!(changed.is_ok(), "the CPU's memory is ours");
        stats::<Flex>(&FlexDevice).largest_launch
    };
    let in_rows = largest_of(vec![matrix("a")]);
    let whole = matrix("b");
    let shared = largest_of(vec![whole.clone().reshape([256, 1024])]);
    let turned = largest_of(vec![matrix("c").transpose()]);
    let three = largest_of(vec![whole.clone(), matrix("d").transpose(), matrix("e").transpose()]);
    drop(whole);
    Facts::default()
        .with("largest launch of one in rows", in_rows)
        .with("largest launch of a shared one", shared)
        .with("largest launch of a turned one", turned)
        .with("largest launch of three", three)
}
