//! Thins curves and keeps their shape.

pub(super) type Point = (f64, f64);

/// At most `limit` points, with each stretch's extremes.
pub(super) fn thin(points: &[Point], limit: usize) -> Vec<Point> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Vec::new() };
    if points.len() <= limit {
        return points.to_vec();
    }
    let inner = &points[1..points.len() - 1];
    let stretches = (limit.max(4) - 2) / 2;
    let mut kept = vec![*first];
    for at in 0..stretches {
        let stretch = &inner[at * inner.len() / stretches..(at + 1) * inner.len() / stretches];
        let lowest = extreme(stretch, |value, best| value < best);
        let highest = extreme(stretch, |value, best| value > best);
        let (earlier, later) = (lowest.min(highest), lowest.max(highest));
        kept.extend(stretch.get(earlier));
        kept.extend(stretch.get(later).filter(|_| later > earlier));
    }
    kept.push(*last);
    kept
}

fn extreme(points: &[Point], better: impl Fn(f64, f64) -> bool) -> usize {
    (1..points.len()).fold(0, |best, at| if better(points[at].1, points[best].1) { at } else { best })
}

/// Exponential averages over about `span` points, unbiased towards the first.
pub(super) fn smooth(points: &[Point], span: usize) -> Vec<Point> {
    let kept = 1.0 - 2.0 / (span as f64 + 1.0);
    let (mut sum, mut weight) = (0.0, 0.0);
    let average = |(step, value): &Point| {
        sum = kept * sum + value;
        weight = kept * weight + 1.0;
        (*step, sum / weight)
    };
    points.iter().map(average).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(suite::cases(256)))]

        #[test]
        fn thinning_keeps_order_ends_and_extremes(values in prop::collection::vec(-1e3..1e3, 1..400), limit in 4_usize..100) {
            let points: Vec<Point> = values.iter().enumerate().map(|(at, value)| (at as f64, *value)).collect();
            let thinned = thin(&points, limit);
            prop_assert!(thinned.len() <= limit.max(2));
            prop_assert!(thinned.is_sorted_by(|a, b| a.0 < b.0));
            prop_assert_eq!((thinned.first(), thinned.last()), (points.first(), points.last()));
            let range = |points: &[Point]| points.iter().fold((f64::MAX, f64::MIN), |(low, high), (_, value)| {
                (low.min(*value), high.max(*value))
            });
            prop_assert_eq!(range(&thinned), range(&points));
        }
    }

    #[test]
    fn the_average_of_equal_values_is_that_value_from_the_first_on() {
        let points: Vec<Point> = (0..50).map(|at| (f64::from(at), 3.5)).collect();
        assert!(smooth(&points, 10).iter().all(|(_, value)| (value - 3.5).abs() < 1e-12));
    }
}
