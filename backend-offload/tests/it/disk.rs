//! Tensors above a disk that sometimes fails: right values or an error.

use crate::child::{Facts, Report};
use crate::folders;
use backend_offload::{Budget, DiskFault, Faults, Offload, OffloadConfig, Offloadable, Stats, stats};
use burn::prelude::*;
use burn::tensor::TensorData;

pub const FAULTS: [(&str, DiskFault, &str); 5] = [
    ("cannot read", DiskFault::Read, "Input/output error"),
    ("reads short", DiskFault::ShortRead, "end of file"),
    ("damages", DiskFault::Damage, "its bytes are not those that were written"),
    ("cannot write", DiskFault::Write, "Input/output error"),
    ("is full", DiskFault::Full, "No space left on device"),
];

pub fn fault(facts: &Facts) -> Option<(DiskFault, u64)> {
    facts.find("disk fault").map(|name| (named(name).1, facts.number("every")))
}

fn named(name: &str) -> (&str, DiskFault, &str) {
    FAULTS.into_iter().find(|(other, ..)| *other == name).expect("a fault's name")
}

const LEN: usize = 1 << 15;
const BYTES: u64 = 4 * LEN as u64;

/// Device and host hold seven.
const TENSORS: usize = 24;

fn number(tensor: usize, place: usize) -> f32 {
    ((tensor * LEN + place) as f32 * 0.618).fract()
}

pub fn tensors<B: Offloadable>(facts: &Facts, device: &B::Device) -> Facts {
    let faults = Faults { break_disk_every: fault(facts), ..Faults::default() };
    let config = OffloadConfig::new().device_budget(Budget::Bytes(4 * BYTES)).faults(faults);
    let config =
        config.host_budget(Budget::Bytes(3 * BYTES)).disk(folders::target(), Budget::Bytes(16 << 20));
    config.install::<B>(device).expect("installs");

    let mut errors = Vec::new();
    let made = |n: usize| {
        let numbers: Vec<_> = (0..LEN).map(|place| number(n, place)).collect();
        let tensor = Tensor::<Offload<B>, 1>::from_data(TensorData::new(numbers, [LEN]), device) * 2.0;
        read(&tensor).map(|_| tensor)
    };
    let tensors: Vec<_> = (0..TENSORS).map(|n| retry_until_ok(&mut errors, || made(n))).collect();

    for _ in 0..2 {
        for (n, tensor) in tensors.iter().enumerate() {
            assert_is(&retry_until_ok(&mut errors, || read(tensor)), |place| 2.0 * number(n, place));
            assert_is(&retry_until_ok(&mut errors, || read(&(tensor.clone() * 0.5))), |place| {
                number(n, place)
            });
        }
    }

    drop(tensors);
    _ = Offload::<B>::sync(device);
    let Stats { device, host, disk, spilled, loaded, .. } = stats::<B>(device);
    let (_, _, reason) = named(facts.text("disk fault"));
    for words in &errors {
        assert!(words.contains(" of the file on the disk at ") && words.contains(reason), "{words}");
    }
    Facts::default()
        .with("errors", errors.len())
        .with("spilled", spilled)
        .with("loaded", loaded)
        .with("left", device.in_use + host.in_use + disk.in_use)
}

/// After a panic fusion would keep dropped tensors.
fn read<B: Backend>(tensor: &Tensor<B, 1>) -> Result<TensorData, String> {
    tensor.clone().try_into_data().map_err(|error| error.to_string())
}

fn retry_until_ok<T>(errors: &mut Vec<String>, work: impl Fn() -> Result<T, String>) -> T {
    loop {
        match work() {
            Ok(done) => return done,
            Err(words) => errors.push(words),
        }
        assert!(errors.len() < 200, "nothing works any more: {errors:?}");
    }
}

fn assert_is(data: &TensorData, number: impl Fn(usize) -> f32) {
    let wrong = data.iter::<f32>().enumerate().find(|(place, x)| x.to_bits() != number(*place).to_bits());
    assert_eq!(wrong, None);
}

pub fn values_are_right_or_the_failure_is_reported(faults: &[usize], run: impl Fn(&str) -> Report) {
    for (name, fault, _) in faults.iter().map(|n| FAULTS[*n]) {
        let report = run(name);
        assert!(report.number("spilled").min(report.number("loaded")) > 12, "{name}: {report:?}");
        // A failed write keeps its bytes; later ones usually succeed.
        assert!(fault.is_of_writes() || report.number("errors") > 0, "{name}: {report:?}");
        assert_eq!(report.number("left"), 0, "{name}: nothing stays behind");
    }
}
