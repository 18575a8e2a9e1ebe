//! Memory goes back, views keep sharing it, and what is on the host is read there.

use super::on_a_device::{install, report};
use super::{Child, Offloaded};
use crate::child::{Facts, Scenario};
use crate::numbers::Series;
use crate::programs::{Size, program};
use backend_offload::{Event, events, stats};
use burn::prelude::*;
use burn_flex::{Flex, FlexDevice};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario { name: "router: two hundred steps", run: two_hundred_steps },
        Scenario { name: "router: views", run: views },
        Scenario { name: "router: reads", run: reads },
    ]
}

const MIB: u64 = 1 << 20;

/// A matrix of one MiB.
fn matrix(name: &str) -> Tensor<Offloaded, 2> {
    Tensor::from_data(Series::new(4, name).floats(&[512, 512], 1.0), &FlexDevice)
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
fn views_share_one_block_and_still_do_after_a_journey() {
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

    // Three others push it out; using a view brings all views back.
    events::<Flex>(&FlexDevice);
    let others = [matrix("a"), matrix("b"), matrix("c")];
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
    // Room for one: whoever comes next pushes the others out, by whatever order they leave.
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
    let others = [matrix("a"), matrix("b")];
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
