//! Machines described by text: `rtx-4090,64GiB` or `24GiB,128GiB,25GB/s,80TFLOP/s`.

use std::str::FromStr;

use backend_offload::{Budget, DEFAULT_DEVICE_SHARE, DEFAULT_HOST_SHARE};
use models::Compute;
use runs::BadInput;
use runs::config::{Config, DiskPart};

use super::Machine;

const GIB: u64 = 1 << 30;

struct Card {
    name: &'static str,
    bytes: u64,
    link: f64,
    /// Dense FLOP/s of TF32 factors with f32 sums.
    tf32: f64,
    /// Dense FLOP/s of bf16 factors with f32 sums.
    bf16: f64,
}

const fn card(name: &'static str, gib: u64, link: f64, tf32: f64, bf16: f64) -> Card {
    Card { name, bytes: gib * GIB, link: link * 1e9, tf32: tf32 * 1e12, bf16: bf16 * 1e12 }
}

// Links: 12 GB/s for PCIe 4 x8 or PCIe 3 x16, 25 for PCIe 4 x16, 50 for PCIe 5.
const CARDS: [Card; 9] = [
    card("rtx-3060", 12, 25.0, 12.7, 25.5),
    card("rtx-3090", 24, 25.0, 35.6, 71.0),
    card("rtx-4060", 8, 12.0, 15.1, 30.2),
    card("rtx-4070", 12, 25.0, 29.1, 58.3),
    card("rtx-4090", 24, 25.0, 82.6, 165.2),
    card("rtx-5090", 32, 50.0, 104.8, 209.5),
    card("a100-80gb", 80, 25.0, 156.0, 312.0),
    card("h100", 80, 50.0, 494.5, 989.0),
    card("h200", 141, 50.0, 494.5, 989.0),
];

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DescribedMachine {
    device: String,
    device_bytes: u64,
    host_bytes: u64,
    link: Option<f64>,
    disk: Option<f64>,
    /// FLOP/s in f32 and in narrower types.
    arithmetic: Option<[f64; 2]>,
}

impl DescribedMachine {
    pub(crate) fn machine(&self, config: &Config) -> anyhow::Result<Machine> {
        let limit = |given: Option<Budget>, auto: Budget, free: u64| match given.unwrap_or(auto) {
            Budget::Bytes(bytes) => Some(bytes),
            Budget::Share(share) => Some((free as f64 * share) as u64),
            Budget::Unlimited => None,
        };

        let (memory, wide) = (&config.memory, usize::from(config.model.compute != Compute::F32));
        Ok(Machine {
            device: self.device.clone(),
            device_total: Some(self.device_bytes),
            device_free: Some(self.device_bytes),
            device_budget: limit(memory.device_budget.value(), DEFAULT_DEVICE_SHARE, self.device_bytes),
            shares_host: false,
            link_bytes_per_second: self.link,
            flops_per_second: self.arithmetic.map(|speeds| speeds[wide]),
            host_free: Some(self.host_bytes),
            host_budget: limit(memory.host_budget.value(), DEFAULT_HOST_SHARE, self.host_bytes),
            disk_budget: disk(config)?,
            disk_bytes_per_second: self.disk.map(|speed| [speed; 2]),
            disk_free: None,
            measurement: None,
            other_ranks: 0,
            network_bytes_per_second: None,
        })
    }
}

fn disk(config: &Config) -> anyhow::Result<u64> {
    match config.memory.disk_part() {
        Some((_, DiskPart::Bytes(bytes))) => Ok(bytes),
        Some((_, DiskPart::Share(_))) => Err(BadInput(
            "--on describes no disk that `memory.disk_budget` could be a share of; give it in bytes"
                .to_owned(),
        )
        .into()),
        None => Ok(0),
    }
}

impl FromStr for DescribedMachine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "write the device, the host's memory, and where the device is none of the known cards its link \
                            and its arithmetic: `rtx-4090,64GiB` or `24GiB,128GiB,25GB/s,80TFLOP/s`; with a disk below \
                            the host its speed: `disk=3GB/s`";
        let mut parts = text.split(',').map(str::trim);

        let (Some(device), Some(host)) = (parts.next(), parts.next()) else { return Err(FORM.to_owned()) };
        let mut machine = match CARDS.iter().find(|card| card.name == device) {
            Some(card) => Self {
                device: format!("a card like {} (data sheet, not measured)", card.name),
                device_bytes: card.bytes,
                host_bytes: 0,
                link: Some(card.link),
                disk: None,
                arithmetic: Some([card.tf32, card.bf16]),
            },
            None => Self {
                device: format!("a device of {device} (described, not measured)"),
                device_bytes: size(device).ok_or_else(|| {
                    let known = CARDS.map(|card| card.name).join(", ");
                    format!("`{device}` is neither a size such as 24GiB nor one of the known cards {known}")
                })?,
                host_bytes: 0,
                link: None,
                disk: None,
                arithmetic: None,
            },
        };

        machine.host_bytes =
            size(host).ok_or_else(|| format!("`{host}` is no size of host memory such as 64GiB"))?;
        for part in parts {
            if let Some(disk) = part.strip_prefix("disk=").and_then(|part| speed(part, "B/s")) {
                machine.disk = Some(disk);
            } else if let Some(link) = speed(part, "B/s") {
                machine.link = Some(link);
            } else if let Some(arithmetic) = speed(part, "FLOP/s") {
                machine.arithmetic = Some([arithmetic; 2]);
            } else {
                return Err(format!("`{part}` is no speed such as 25GB/s or 80TFLOP/s; {FORM}"));
            }
        }
        Ok(machine)
    }
}

fn size(text: &str) -> Option<u64> {
    match text.parse() {
        Ok(Budget::Bytes(bytes)) if bytes > 0 => Some(bytes),
        _ => None,
    }
}

/// Bytes per second of a link between ranks, such as 10Gbit/s or 1.2GB/s.
pub(crate) fn link_between(text: &str) -> Result<f64, String> {
    let bits = speed(text, "bit/s").map(|bits| bits / 8.0);
    bits.or_else(|| speed(text, "B/s"))
        .ok_or_else(|| format!("`{text}` is no speed such as 10Gbit/s or 1.2GB/s"))
}

fn speed(text: &str, unit: &str) -> Option<f64> {
    let number = text.strip_suffix(unit)?.trim_end();
    let scales = [("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15)];
    let scaled = scales.into_iter().find_map(|(prefix, scale)| Some((number.strip_suffix(prefix)?, scale)));
    let (number, scale) = scaled.unwrap_or((number, 1.0));
    let speed = number.trim_end().parse::<f64>().ok()? * scale;
    (speed.is_finite() && speed > 0.0).then_some(speed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(text: &str) -> DescribedMachine {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_link_between_ranks_is_given_in_bits_or_in_bytes() {
        assert_eq!([link_between("10Gbit/s"), link_between("1.25 GB/s")], [Ok(1.25e9), Ok(1.25e9)]);
        assert!(link_between("10Gb").is_err_and(|error| error.contains("`10Gb` is no speed")));
    }

    fn toy(set: &[&str]) -> Config {
        let set: Vec<String> = set.iter().map(|set| (*set).to_owned()).collect();
        Config::load("toy", &set).expect("a preset")
    }

    #[test]
    fn a_described_machine_is_parsed_as_written() {
        let config = toy(&["memory.device_budget=auto"]);
        let machine = described("24GiB, 128GiB, 25 GB/s, 80TFLOP/s").machine(&config).expect("budgets");
        assert_eq!(machine.device_total, Some(24 * GIB));
        assert_eq!(machine.device_budget, Some(23_192_823_398), "nine tenths");
        assert_eq!((machine.host_free, machine.host_budget), (Some(128 * GIB), Some(109_951_162_777)));
        assert_eq!((machine.link_bytes_per_second, machine.flops_per_second), (Some(25e9), Some(80e12)));
        let unknown = described("24GiB,128GiB").machine(&config).expect("budgets");
        assert_eq!((unknown.link_bytes_per_second, unknown.flops_per_second), (None, None));
    }

    #[test]
    fn the_speed_of_a_named_card_depends_on_the_compute_type() {
        let speed = |text: &str, compute: &str| {
            let machine = described(text).machine(&toy(&[compute])).expect("budgets");
            (machine.link_bytes_per_second, machine.flops_per_second)
        };
        assert_eq!(speed("rtx-4090,64GiB", "model.compute=f32"), (Some(25e9), Some(82.6e12)));
        assert_eq!(speed("rtx-4090,64GiB", "model.compute=bf16"), (Some(25e9), Some(165.2e12)));
        assert_eq!(speed("rtx-4090,64GiB,12GB/s", "model.compute=bf16").0, Some(12e9));
    }

    #[test]
    fn budgets_come_from_the_configuration() {
        let config = toy(&["memory.device_budget=50%", "memory.host_budget=unlimited"]);
        let machine = described("rtx-4060,32GiB").machine(&config).expect("budgets");
        assert_eq!((machine.device_budget, machine.host_budget), (Some(4 * GIB), None));
    }

    #[test]
    fn a_bad_machine_description_is_refused_by_its_part() {
        let refused = |text: &str| text.parse::<DescribedMachine>().expect_err("no machine");
        assert!(refused("24GiB").contains("write the device"));
        assert!(refused("rtx-1,64GiB").contains("`rtx-1` is neither"));
        assert!(refused("rtx-1,64GiB").contains("rtx-4090"));
        assert!(refused("24GiB,80%").contains("`80%` is no size"));
        assert!(refused("24GiB,64GiB,fast").contains("`fast` is no speed"));
        assert!(refused("24GiB,64GiB,-1GB/s").contains("is no speed"));
    }
}
