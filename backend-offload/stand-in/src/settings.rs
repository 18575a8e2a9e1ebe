//! Environment variables `STAND_IN_*`, read once. Unknown names fail: a misspelt option would make tests pass.

use std::{path::PathBuf, sync::LazyLock};

use crate::prices::Prices;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Mode {
    /// Work runs at the call.
    #[default]
    Eager,
    /// Work runs when something waits for it.
    Lazy,
    /// Random order by seed, as far as streams and events allow.
    Random,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Lazy => "lazy",
            Self::Random => "random",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    pub(crate) order: Order,
    pub(crate) checks: Checks,
    pub(crate) device: Device,
    pub(crate) memory: Memory,
    pub(crate) faults: Faults,
    /// Names of threads that only wait.
    pub(crate) waiters: Vec<String>,
    pub(crate) prices: Prices,
    /// `-` is standard error.
    pub(crate) report: Option<PathBuf>,
    pub(crate) trace: Option<PathBuf>,
    pub(crate) compiler: Compiler,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Order {
    pub(crate) mode: Mode,
    pub(crate) seed: u64,
    pub(crate) patience_ms: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Checks {
    pub(crate) races: bool,
    pub(crate) strict: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Device {
    pub(crate) count: u32,
    /// Major version times ten, plus minor.
    pub(crate) capability: u32,
    /// Otherwise work takes its time on the simulated clock and moves no byte.
    pub(crate) computes: bool,
    /// See [`Haste`](crate::haste::Haste).
    pub(crate) haste: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Memory {
    /// Bytes of each device.
    pub(crate) device: u64,
    /// Bytes of page-locked host memory at most.
    pub(crate) pinned: u64,
    /// Bytes of device memory that a driver maps at once.
    pub(crate) granule: u64,
    pub(crate) reuse: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Faults {
    /// Allocations before device memory is refused.
    pub(crate) allocations_after: Option<u64>,
    /// Copies before the one that fails.
    pub(crate) copies_after: Option<u64>,
    pub(crate) sticky: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Compiler {
    pub(crate) program: String,
    pub(crate) flags: Vec<String>,
    pub(crate) cache: PathBuf,
}

const PREFIX: &str = "STAND_IN_";
const KNOWN: [&str; 26] = [
    "MODE",
    "SEED",
    "RACES",
    "STRICT",
    "VRAM",
    "PINNED",
    "GRANULE",
    "REUSE",
    "FAIL_ALLOCATIONS_AFTER",
    "FAIL_COPY_AFTER",
    "STICKY",
    "CC",
    "COMPUTE",
    "HASTE",
    "DEVICES",
    "REPORT",
    "TRACE",
    "CARD",
    "KERNEL_US",
    "INTENSITY",
    "BANDWIDTH",
    "PATIENCE_MS",
    "WAITERS",
    "CACHE",
    "CXX",
    "CXXFLAGS",
];
const SIZE: &str = "a size such as 64M or 4G";
/// Contracts no operations, so the optimiser changes no bit.
const FLAGS: &str = "-O2 -march=native -ffp-contract=off";

/// Ends the process if the environment is invalid.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: LazyLock<Settings> = LazyLock::new(|| {
        let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
        let variables = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
        Settings::parse(variables).unwrap_or_else(|problem| {
            eprintln!("stand-in: {problem}");
            // SAFETY: ends the process without running code that other threads may still use.
            unsafe { libc::_exit(2) }
        })
    });
    &SETTINGS
}

impl Settings {
    /// An empty value counts as absent.
    pub(crate) fn parse(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self, String> {
        let ours =
            variables.into_iter().filter(|(name, value)| name.starts_with(PREFIX) && !value.is_empty());
        let given: Vec<(String, String)> = ours.collect();
        if let Some((name, _)) = given.iter().find(|(name, _)| !KNOWN.contains(&&name[PREFIX.len()..])) {
            return Err(format!("{name} is no option: there are {PREFIX}{}", KNOWN.join(", ")));
        }

        let given = Given(given);
        let devices = given.number("DEVICES", 1, "a number of devices from 1 to 4", &u32::from_str_radix)?;
        if !(1..=4).contains(&devices) {
            return Err(format!("{PREFIX}DEVICES={devices} is not a number of devices from 1 to 4"));
        }

        let Some(cache) = given.text("CACHE") else {
            return Err(format!(
                "{PREFIX}CACHE is not set: name a folder for compiled kernels, or start the program with `cargo xtask \
                 stand-in`"
            ));
        };

        let order = Order {
            mode: given.parsed("MODE", Mode::default(), "eager, lazy or random", mode)?,
            seed: given.number("SEED", 1, "a number", &u64::from_str_radix)?,
            patience_ms: given.number("PATIENCE_MS", 5, "milliseconds", &u64::from_str_radix)?,
        };
        let checks = Checks {
            races: given.parsed("RACES", false, "0 or 1", switch)?,
            strict: given.parsed("STRICT", false, "0 or 1", switch)?,
        };
        let device = Device {
            count: devices,
            capability: given.number("CC", 70, "a compute capability such as 70", &u32::from_str_radix)?,
            computes: given.parsed("COMPUTE", true, "0 or 1", switch)?,
            haste: given.number("HASTE", 1, "a number", &u32::from_str_radix)?,
        };
        let memory = Memory {
            device: given.parsed("VRAM", 4 << 30, SIZE, size)?,
            pinned: given.parsed("PINNED", u64::MAX, SIZE, size)?,
            granule: given.parsed("GRANULE", 1, SIZE, granule)?,
            reuse: given.parsed("REUSE", false, "0 or 1", switch)?,
        };
        let number = |option| given.parsed(option, None, "a number", |text| text.parse().ok().map(Some));
        let faults = Faults {
            allocations_after: number("FAIL_ALLOCATIONS_AFTER")?,
            copies_after: number("FAIL_COPY_AFTER")?,
            sticky: given.parsed("STICKY", false, "0 or 1", switch)?,
        };
        let mut prices = given.parsed("CARD", Prices::FLAT, "4090, laptop or h100", Prices::of_card)?;
        let (link, kernels) = (&mut prices.link, &mut prices.kernels);
        kernels.fixed = given.parsed("KERNEL_US", kernels.fixed, "microseconds", microseconds)?;
        kernels.intensity = given.parsed("INTENSITY", kernels.intensity, "FLOPs per byte", positive)?;
        link.pinned = given.parsed("BANDWIDTH", link.pinned, "bytes per second", positive)?;
        let waiters = given.text("WAITERS").unwrap_or_default().split(',').filter(|name| !name.is_empty());
        let flags = given.text("CXXFLAGS").unwrap_or(FLAGS);
        let compiler = Compiler {
            program: given.text("CXX").unwrap_or("g++").to_owned(),
            flags: flags.split_whitespace().map(Into::into).collect(),
            cache: cache.into(),
        };

        Ok(Self {
            order,
            checks,
            device,
            memory,
            faults,
            waiters: waiters.map(str::to_owned).collect(),
            prices,
            report: given.text("REPORT").map(PathBuf::from),
            trace: given.text("TRACE").map(PathBuf::from),
            compiler,
        })
    }
}

struct Given(Vec<(String, String)>);

impl Given {
    fn text(&self, option: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| &name[PREFIX.len()..] == option).map(|(_, value)| value.as_str())
    }

    fn parsed<T>(
        &self,
        option: &str,
        default: T,
        meaning: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, String> {
        let Some(text) = self.text(option) else { return Ok(default) };
        parse(text).ok_or_else(|| format!("{PREFIX}{option}={text} is not {meaning}"))
    }

    fn number<T, E>(
        &self,
        option: &str,
        default: T,
        meaning: &str,
        parse: &dyn Fn(&str, u32) -> Result<T, E>,
    ) -> Result<T, String> {
        self.parsed(option, default, meaning, |text| parse(text, 10).ok())
    }
}

fn mode(text: &str) -> Option<Mode> {
    [Mode::Eager, Mode::Lazy, Mode::Random].into_iter().find(|mode| mode.name() == text)
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn granule(text: &str) -> Option<u64> {
    size(text).filter(|size| *size > 0)
}

fn microseconds(text: &str) -> Option<f64> {
    positive(text).map(|microseconds| microseconds * 1e-6)
}

fn positive(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(given: &[(&str, &str)]) -> Result<Settings, String> {
        let all = [("STAND_IN_CACHE", "/c"), ("PATH", "/bin")].iter().chain(given);
        Settings::parse(all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn every_option_is_read() {
        let settings = parse(&[
            ("STAND_IN_MODE", "random"),
            ("STAND_IN_SEED", "7"),
            ("STAND_IN_RACES", "1"),
            ("STAND_IN_STRICT", "0"),
            ("STAND_IN_VRAM", "64M"),
            ("STAND_IN_PINNED", "32M"),
            ("STAND_IN_GRANULE", "2M"),
            ("STAND_IN_REUSE", "1"),
            ("STAND_IN_FAIL_ALLOCATIONS_AFTER", "3"),
            ("STAND_IN_FAIL_COPY_AFTER", "0"),
            ("STAND_IN_STICKY", "1"),
            ("STAND_IN_CC", "80"),
            ("STAND_IN_COMPUTE", "0"),
            ("STAND_IN_HASTE", "16"),
            ("STAND_IN_DEVICES", "2"),
            ("STAND_IN_REPORT", "-"),
            ("STAND_IN_TRACE", ""),
            ("STAND_IN_BANDWIDTH", "1e9"),
            ("STAND_IN_CXXFLAGS", "-O1 -g"),
        ]);
        let settings = settings.unwrap();
        assert_eq!((settings.order.mode, settings.order.seed), (Mode::Random, 7));
        assert_eq!((settings.checks.races, settings.checks.strict), (true, false));
        assert_eq!((settings.memory.device, settings.memory.pinned), (64 << 20, 32 << 20));
        assert_eq!((settings.memory.granule, settings.memory.reuse), (2 << 20, true));
        let faults = Faults { allocations_after: Some(3), copies_after: Some(0), sticky: true };
        assert_eq!(settings.faults, faults);
        assert_eq!(settings.device, Device { count: 2, capability: 80, computes: false, haste: 16 });
        assert_eq!((settings.report, settings.trace), (Some("-".into()), None));
        assert_eq!((settings.prices.link.pinned, settings.compiler.flags.len()), (1e9, 2));
        assert_eq!(settings.compiler.program, "g++");
    }

    #[test]
    fn a_card_sets_all_prices_and_options_replace_some() {
        let prices = |given: &[(&str, &str)]| parse(given).unwrap().prices;
        let card = prices(&[("STAND_IN_CARD", "h100")]);
        assert_eq!(card, Prices::of_card("h100").unwrap());
        let replaced =
            prices(&[("STAND_IN_CARD", "h100"), ("STAND_IN_KERNEL_US", "7"), ("STAND_IN_BANDWIDTH", "1e9")]);
        assert!((replaced.kernels.fixed - 7e-6).abs() < 1e-12);
        assert_eq!((replaced.link.pinned, replaced.kernels.memory), (1e9, card.kernels.memory));
        assert_eq!(prices(&[]), Prices::FLAT);
        assert_eq!(prices(&[("STAND_IN_INTENSITY", "50")]).kernels.intensity.to_bits(), 50.0_f64.to_bits());
    }

    #[test]
    fn an_unknown_option_is_refused_by_name() {
        let problem = parse(&[("STAND_IN_RACE", "1")]).unwrap_err();
        assert!(problem.starts_with("STAND_IN_RACE is no option"), "{problem}");
        assert!(!problem.contains('\n'));
    }

    #[test]
    fn an_invalid_value_is_refused_with_the_expected_form() {
        for (name, value) in [
            ("MODE", "Lazy"),
            ("SEED", "-1"),
            ("RACES", "yes"),
            ("VRAM", "4T"),
            ("GRANULE", "0"),
            ("DEVICES", "5"),
            ("BANDWIDTH", "0"),
            ("CARD", "5090"),
        ] {
            let name = format!("STAND_IN_{name}");
            let problem = parse(&[(&name, value)]).unwrap_err();
            assert!(problem.starts_with(&format!("{name}={value} is not ")), "{problem}");
        }
    }

    #[test]
    fn the_folder_for_kernels_is_required() {
        let problem = Settings::parse([]).unwrap_err();
        assert!(problem.starts_with("STAND_IN_CACHE is not set"), "{problem}");
    }
}
