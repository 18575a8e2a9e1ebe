//! Dropout draws what its key says, and different keys draw different bits.

use burn::tensor::Tensor;
use models::DropoutKey;
use models::dropout::{Place, dropout};

use crate::fixtures::{Cpu, DEVICE, numbers};

const KEY: DropoutKey = DropoutKey { seed: 1, step: 2, micro_batch: 3 };

fn dropped(key: Option<DropoutKey>, place: Place, rate: f64) -> Vec<f64> {
    numbers(&dropout(Tensor::<Cpu, 2>::ones([100, 100], &DEVICE), rate, key, place))
}

#[test]
fn the_rate_is_kept_and_so_is_the_mean() {
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
fn without_a_key_or_a_rate_nothing_happens() {
    let ones = vec![1.0; 10_000];
    assert_eq!(dropped(None, Place::Embedding, 0.5), ones);
    assert_eq!(dropped(Some(KEY), Place::Embedding, 0.0), ones);
}
