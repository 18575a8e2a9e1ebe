//! Maps values to positions on an axis with round labels.

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scale {
    /// Exponents of ten on a logarithmic axis.
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) logarithmic: bool,
}

/// Logarithmic if the largest value exceeds the median by this factor.
const SPIKE: f64 = 100.0;

const TICKS: f64 = 5.0;

impl Scale {
    pub(super) fn exact(low: f64, high: f64) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        Self { low, high, logarithmic: false }
    }

    /// All values must be finite.
    pub(super) fn around(mut values: Vec<f64>, from_zero: bool) -> Self {
        values.sort_by(f64::total_cmp);
        let (Some(&low), Some(&high)) = (values.first(), values.last()) else { return Self::exact(0.0, 1.0) };
        if from_zero {
            return Self::exact(low.min(0.0), if high > 0.0 { high * 1.05 } else { 1.0 });
        }
        if low > 0.0 && high > SPIKE * values[values.len() / 2] {
            return Self { low: low.log10().floor(), high: high.log10().ceil(), logarithmic: true };
        }
        let room = if high > low { 0.05 * (high - low) } else { (0.1 * high.abs()).max(1e-9) };
        Self::exact(low - room, high + room)
    }

    /// 0 at the low end, 1 at the high end.
    pub(super) fn place(&self, value: f64) -> f64 {
        let value = if self.logarithmic { value.log10() } else { value };
        (value - self.low) / (self.high - self.low)
    }

    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        if self.logarithmic {
            let stride = ((self.high - self.low) / TICKS).ceil();
            let exponents = multiples(self.low, self.high, stride);
            return exponents.map(|exponent| (self.along(exponent), format!("1e{exponent}"))).collect();
        }
        let stride = round_stride((self.high - self.low) / TICKS);
        let unit = Unit::for_largest(self.low.abs().max(self.high.abs()));
        let decimals = (-(stride / unit.size).log10()).ceil().max(0.0) as usize;
        let label = |value: f64| match value {
            0.0 => "0".to_owned(),
            value => format!("{:.decimals$}{}", value / unit.size, unit.suffix),
        };
        multiples(self.low, self.high, stride).map(|value| (self.along(value), label(value))).collect()
    }

    fn along(&self, tick: f64) -> f64 {
        (tick - self.low) / (self.high - self.low)
    }
}

/// 1, 2 or 5 times a power of ten, at least `stride`.
fn round_stride(stride: f64) -> f64 {
    let power = 10_f64.powf(stride.log10().floor());
    let round = [1.0, 2.0, 5.0].into_iter().find(|round| round * power >= stride);
    round.unwrap_or(10.0) * power
}

fn multiples(low: f64, high: f64, stride: f64) -> impl Iterator<Item = f64> {
    // Tolerates rounding at both ends.
    let (first, last) = ((low / stride - 1e-9).ceil(), (high / stride + 1e-9).floor());
    // Adding zero makes a negative zero positive.
    (0..=(last - first).max(0.0) as u32).map(move |at| (first + f64::from(at)) * stride + 0.0)
}

struct Unit {
    size: f64,
    suffix: String,
}

impl Unit {
    fn for_largest(largest: f64) -> Self {
        match largest {
            n if n >= 1e15 || (n > 0.0 && n < 1e-3) => {
                let exponent = n.log10().floor();
                Self { size: 10_f64.powf(exponent), suffix: format!("e{exponent}") }
            }
            n if n >= 1e9 => Self { size: 1e9, suffix: "G".to_owned() },
            n if n >= 1e6 => Self { size: 1e6, suffix: "M".to_owned() },
            n if n >= 1e4 => Self { size: 1e3, suffix: "k".to_owned() },
            _ => Self { size: 1.0, suffix: String::new() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale) -> String {
        scale.ticks().into_iter().map(|(_, label)| label).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ticks_are_round_and_short() {
        assert_eq!(labels(Scale::exact(1.0, 5000.0)), "1000 2000 3000 4000 5000");
        assert_eq!(labels(Scale::exact(0.0, 100_000.0)), "0 20k 40k 60k 80k 100k");
        assert_eq!(labels(Scale::exact(1.32, 4.81)), "2 3 4");
        assert_eq!(labels(Scale::exact(1.9, 1.96)), "1.90 1.92 1.94 1.96");
        assert_eq!(labels(Scale::exact(0.0, 6e-4)), "0 2e-4 4e-4 6e-4");
        assert_eq!(labels(Scale::exact(-0.1, 0.1)), "-0.10 -0.05 0 0.05 0.10");
    }

    #[test]
    fn spikes_make_an_axis_logarithmic() {
        let scale = Scale::around(vec![0.5, 0.7, 0.9, 1.1, 4e5], false);
        assert!(scale.logarithmic);
        assert_eq!(labels(scale), "1e0 1e2 1e4 1e6");
        assert!((scale.place(1e6) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn any_finite_values_have_a_position() {
        for values in [vec![], vec![3.0], vec![0.0; 5], vec![-1e300, 1e300], vec![1e-300, 2e-300]] {
            let scale = Scale::around(values.clone(), false);
            let place = |value: &f64| (-0.01..=1.01).contains(&scale.place(*value));
            assert!(values.iter().all(place) && scale.ticks().len() < 20, "{values:?} {scale:?}");
        }
    }
}
