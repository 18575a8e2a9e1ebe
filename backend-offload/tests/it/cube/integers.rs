//! Integer kernels give the processor's results, which random bits need.

use super::{Machine, Plain, Spilling, Target, children, install, promises};
use crate::child::Facts;
use burn::prelude::*;
use burn::tensor::ElementConversion;

children! { "cube/integers plain" => plain, "cube/integers" => spilling }

promises! {
    stand_in { sums_products_and_masks_of_bits_below_two_to_the_31_are_exact: One }
    vulkan {}
    full { sums_products_and_masks_of_bits_below_two_to_the_31_are_exact }
}

fn plain<T: Target>(_: &Facts) -> Facts {
    wrong::<Plain<T>>(&T::device())
}

fn spilling<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    install::<T>(parameters, &device);
    wrong::<Spilling<T>>(&device)
}

fn wrong<B: Backend>(device: &B::Device) -> Facts {
    let (rows, columns, limit) = (300, 500, 19_660);
    let numbers = |count: usize, step: usize, below: usize| -> Vec<i32> {
        (0..count).map(|at| (below - 1 - at * step % below) as i32).collect()
    };
    let (p, m, a) =
        (numbers(columns, 12_345, 1 << 15), numbers(rows, 9_876, 1 << 16), numbers(rows, 54_321, 1 << 15));
    let expected = (0..rows * columns).map(|at| {
        let (row, column) = (at / columns, at % columns);
        let sum = p[column].checked_mul(m[row]).and_then(|product| product.checked_add(a[row]));
        sum.expect("below 2³¹") % 65_536 < limit
    });
    let tensor = |numbers: &Vec<i32>, shape| {
        Tensor::<B, 2, Int>::from_data(TensorData::new(numbers.clone(), shape), device)
    };
    let spread = tensor(&p, [1, columns]) * tensor(&m, [rows, 1]) + tensor(&a, [rows, 1]);
    // CubeCL 0.10's `remainder_scalar` computes in floats: 57 of these are wrong.
    let below = spread.bitwise_and_scalar(65_535.elem()).lower_elem(limit);
    let ones = Tensor::<B, 2>::ones([rows, columns], device).mask_fill(below, 0.0).into_data();
    let found = ones.iter::<f32>().map(|value| value == 0.0);
    Facts::default().with("wrong", found.zip(expected).filter(|(found, expected)| found != expected).count())
}

fn sums_products_and_masks_of_bits_below_two_to_the_31_are_exact(machine: &Machine) {
    assert_eq!(machine.run(machine.child("cube/integers plain")).number("wrong"), 0);
    let spilled = machine.child("cube/integers").with("budget", 1).with("alone", true).with("smallest", 1);
    assert_eq!(machine.run(spilled).number("wrong"), 0);
}
