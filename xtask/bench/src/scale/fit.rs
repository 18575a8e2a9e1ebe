//! Least-squares line: `time = latency + bytes × seconds per byte`.
//!
//! Times span three orders of magnitude: no line fits all. Squared seconds would leave the latency to chance; squared
//! relative errors, the rate to the smallest size. So relative errors give the latency, then seconds the rate.

/// Neither number is negative.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line {
    /// Seconds for zero bytes.
    pub(super) latency: f64,
    /// Seconds.
    pub(super) per_byte: f64,
    /// Largest error relative to the measured time.
    pub(super) worst: f64,
}

impl Line {
    /// Fits points of (bytes, seconds). `None` with fewer than two sizes, or if a time is not positive.
    pub(super) fn fit(points: &[(f64, f64)]) -> Option<Self> {
        let (first, _) = points.first()?;
        let differ = points.iter().any(|(bytes, _)| bytes.total_cmp(first).is_ne());
        if !differ || points.iter().any(|(_, seconds)| *seconds <= 0.0) {
            return None;
        }
        // Minimise the sum of (latency × u + per_byte × v − 1)², with u = 1 / seconds and v = bytes / seconds.
        let sum = |term: fn(f64, f64) -> f64| {
            points.iter().map(|(bytes, seconds)| term(*bytes, *seconds)).sum::<f64>()
        };
        let (u, v) = (sum(|_, seconds| 1.0 / seconds), sum(|bytes, seconds| bytes / seconds));
        let (uu, vv) = (sum(|_, seconds| seconds.powi(-2)), sum(|bytes, seconds| (bytes / seconds).powi(2)));
        let uv = sum(|bytes, seconds| bytes / seconds.powi(2));
        let determinant = uu * vv - uv * uv;
        let (free, slope) = ((u * vv - v * uv) / determinant, (v * uu - u * uv) / determinant);
        let latency = if slope < 0.0 { u / uu } else { free.max(0.0) };
        // Minimise the sum of (latency + per_byte × bytes − seconds)² over the rate.
        let squares = sum(|bytes, _| bytes * bytes);
        let per_byte = (sum(|bytes, seconds| bytes * seconds) - latency * sum(|bytes, _| bytes)) / squares;
        let per_byte = per_byte.max(0.0);
        let line = Self { latency, per_byte, worst: 0.0 };
        let error = |(bytes, seconds): &(f64, f64)| (line.seconds(*bytes) / seconds - 1.0).abs();
        Some(Self { worst: points.iter().map(error).fold(0.0, f64::max), ..line })
    }

    pub(super) fn seconds(&self, bytes: f64) -> f64 {
        self.latency + bytes * self.per_byte
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(time: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        [1e4, 1e6, 1e8].map(|bytes| (bytes, time(bytes))).to_vec()
    }

    fn near(found: f64, expected: f64) -> bool {
        (found - expected).abs() <= 1e-9 * expected.abs().max(1e-9)
    }

    #[test]
    fn a_line_is_recovered_even_if_its_latency_is_tiny() {
        let line = Line::fit(&points(|bytes| 2e-5 + bytes * 1e-9)).unwrap();
        assert!(near(line.latency, 2e-5) && near(line.per_byte, 1e-9) && line.worst < 1e-9, "{line:?}");
    }

    #[test]
    fn an_error_of_the_largest_size_does_not_become_latency() {
        let mut points = points(|bytes| 2e-5 + bytes * 1e-9);
        points[2].1 *= 1.1;
        let line = Line::fit(&points).unwrap();
        assert!((line.latency / 2e-5 - 1.0).abs() < 0.1, "{line:?}");
        assert!(line.worst > 0.05 && line.worst < 0.2, "{line:?}");
    }

    #[test]
    fn the_rate_follows_large_sizes_if_small_ones_are_faster() {
        let line = Line::fit(&points(|bytes| 2e-5 + bytes * if bytes > 1e7 { 2e-9 } else { 1e-9 })).unwrap();
        assert!((line.per_byte / 2e-9 - 1.0).abs() < 0.01, "{line:?}");
    }

    #[test]
    fn latency_and_time_per_byte_are_never_negative() {
        let steep = Line::fit(&points(|bytes| bytes * bytes * 1e-15)).unwrap();
        assert!(near(steep.latency, 0.0) && steep.per_byte > 0.0, "{steep:?}");
        let falling = Line::fit(&points(|bytes| 1.0 - bytes * 5e-9)).unwrap();
        assert!(near(falling.per_byte, 0.0) && falling.latency > 0.0, "{falling:?}");
    }

    #[test]
    fn a_line_needs_two_sizes_and_positive_times() {
        assert_eq!(Line::fit(&[(8.0, 1.0), (8.0, 2.0)]), None);
        assert_eq!(Line::fit(&[]), None);
        assert_eq!(Line::fit(&[(8.0, 1.0), (9.0, 0.0)]), None);
    }
}
