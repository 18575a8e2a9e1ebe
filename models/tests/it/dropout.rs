//! Dropout masks follow from their key alone.

use burn::tensor::Tensor;
use models::dropout::{DropoutKey, Place, dropout};

use crate::fixtures::{Cpu, DEVICE, numbers as numbers_of};

const KEY: DropoutKey = DropoutKey { seed: 1, step: 2, micro_batch: 3 };

fn dropped(key: Option<DropoutKey>, place: Place, rate: f64) -> Vec<f64> {
    numbers_of(&dropout(Tensor::<Cpu, 2>::ones([100, 100], &DEVICE), rate, key, place))
}

#[test]
fn dropout_keeps_its_rate_and_the_mean() {
    let kept = dropped(Some(KEY), Place::Embedding, 0.3);
    let zeros = kept.iter().filter(|value| **value == 0.0).count();
    assert!((2_850..3_150).contains(&zeros), "{zeros} of 10,000 dropped at a rate of 0.3");
    let mean = kept.iter().sum::<f64>() / 10_000.0;
    assert!((mean - 1.0).abs() < 0.03, "a mean of {mean} came out of ones");
}

#[test]
fn every_part_of_the_key_changes_the_bits_and_nothing_else_does() {
    let place = Place::Mlp(4);
    let bits = dropped(Some(KEY), place, 0.5);
    assert_eq!(bits, dropped(Some(KEY), place, 0.5));
    let other_keys = [
        DropoutKey { seed: 9, ..KEY },
        DropoutKey { step: 9, ..KEY },
        DropoutKey { micro_batch: 9, ..KEY },
        DropoutKey { seed: KEY.step, step: KEY.seed, ..KEY },
    ];
    for key in other_keys {
        assert_ne!(bits, dropped(Some(key), place, 0.5), "{key:?}");
    }
    for place in [Place::Embedding, Place::Attention(4), Place::Mlp(3), Place::Attention(5)] {
        assert_ne!(bits, dropped(Some(KEY), place, 0.5), "{place:?}");
    }
}

#[test]
fn masks_on_the_device_match_the_formula() {
    let (rows, columns) = (70, 301);
    for place in [Place::Embedding, Place::Mlp(11)] {
        let numbers = KEY.numbers(place, rows, columns, 0.2);
        let (p, m, a) = (&numbers.columns, &numbers.factors, &numbers.offsets);
        let expected: Vec<bool> = (0..rows * columns)
            .map(|at| (p[at % columns] * m[at / columns] + a[at / columns]) % 65_536 < numbers.threshold)
            .collect();
        let mask = numbers.clone().mask::<Cpu>(&DEVICE).into_data();
        assert_eq!(mask.iter::<bool>().collect::<Vec<_>>(), expected);
        let ones = Tensor::<Cpu, 3>::ones([7, 10, columns], &DEVICE);
        let kept = numbers_of(&dropout(ones, 0.2, Some(KEY), place));
        assert!(kept.iter().zip(&expected).all(|(kept, dropped)| (*kept == 0.0) == *dropped));
    }
}

/// Committed bits: resumed runs would diverge if they changed.
#[test]
fn a_key_drops_the_committed_features() {
    let mask = KEY.numbers(Place::Attention(1), 2, 32, 0.5).mask::<Cpu>(&DEVICE).into_data();
    let words = mask.iter::<bool>().collect::<Vec<_>>();
    let words =
        words.chunks(32).map(|row| row.iter().rev().fold(0_u32, |word, bit| word << 1 | u32::from(*bit)));
    assert_eq!(words.collect::<Vec<_>>(), [1_541_280_783, 2_629_483_211]);
}

#[test]
fn features_are_dropped_independently_of_their_neighbours() {
    let (rows, columns, rate) = (512, 512, 0.3);
    let dropped = KEY.numbers(Place::Mlp(0), rows, columns, rate).mask::<Cpu>(&DEVICE).into_data();
    let dropped: Vec<bool> = dropped.iter::<bool>().collect();
    let at = |row: usize, column: usize| dropped[row * columns + column];
    // Six standard deviations of a binomial.
    let check = |what: &str, count: usize, total: usize, chance: f64| {
        let off =
            (count as f64 - total as f64 * chance).abs() / (total as f64 * chance * (1.0 - chance)).sqrt();
        assert!(off < 6.0, "{what}: {count} of {total} at {chance}, {off:.1} deviations off");
    };

    for line in 0..rows {
        check("a row", (0..columns).filter(|column| at(line, *column)).count(), columns, rate);
        check("a column", (0..rows).filter(|row| at(*row, line)).count(), rows, rate);
    }

    for apart in [1, 2, 3, 64, 200] {
        for line in 0..rows - apart {
            let rows_both = (0..columns).filter(|column| at(line, *column) && at(line + apart, *column));
            check("two rows", rows_both.count(), columns, rate * rate);
            let columns_both = (0..rows).filter(|row| at(*row, line) && at(*row, line + apart));
            check("two columns", columns_both.count(), rows, rate * rate);
        }
    }
}

#[test]
fn dropout_is_off_without_a_key_or_with_rate_zero() {
    let ones = vec![1.0; 10_000];
    assert_eq!(dropped(None, Place::Embedding, 0.5), ones);
    assert_eq!(dropped(Some(KEY), Place::Embedding, 0.0), ones);
}
