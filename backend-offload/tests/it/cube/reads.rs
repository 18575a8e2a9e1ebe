//! Tensors read while kernels run arrive unchanged.

use super::{Machine, Target, Unfused, children, counted, install_for_copies, promises};
use crate::child::Facts;
use burn::prelude::*;
use burn::tensor::{TensorData, try_read_sync};
use std::task::{Context, Poll, Waker};

children! { "cube/reads" => read_while_running }

promises! {
    stand_in { tensors_read_while_kernels_run_arrive_unchanged: Every }
    vulkan {}
    full { tensors_read_while_kernels_run_arrive_unchanged }
}

const ROUNDS: usize = 8;
/// Longer than a tensor's copy on a simulated clock.
const KERNELS: usize = 8;

fn read_while_running<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    let out_of_order = install_for_copies::<T>(parameters, &device);
    let keeps = parameters.find("lets go").is_none();
    let allocates = parameters.find("allocates").is_some();
    // On CUDA, the second shape's rows have gaps. The last one is below the smallest block.
    let shapes = match parameters.find("small") {
        Some(_) => &[[16, 16]][..],
        None => &[[512, 512], [300, 333]],
    };
    let begun = shapes
        .iter()
        .map(|shape| rounds::<Unfused<T>>(&device, *shape, (keeps, allocates), out_of_order))
        .sum::<usize>();
    counted::<T>(&device, Facts::default().with("under way", begun))
}

fn rounds<B: Backend>(
    device: &B::Device,
    shape: [usize; 2],
    (keeps, allocates): (bool, bool),
    out_of_order: bool,
) -> usize {
    let made = |value: f32| Tensor::<B, 2>::full(shape, value, device);
    let others: Vec<_> = (0..4).map(|n| made(n as f32)).collect();
    let mut work = made(1.0);
    let mut before: Option<(usize, _)> = None;
    let mut under_way = 0;

    for round in 0..ROUNDS {
        let tensor = work.clone() * (round as f32 + 1.0);
        let kept = (keeps && round % 2 == 1).then(|| tensor.clone());
        let mut reading = Box::pin(tensor.into_data_async());
        let begun = match reading.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(data) => Err(data),
            Poll::Pending => Ok(reading),
        };
        under_way += usize::from(begun.is_ok());

        let changed = kept.map(|kept| kept * 0.0);
        for n in 0..KERNELS {
            let _before = allocates.then(|| work.clone());
            work = work * if n % 2 == 0 { 2.0 } else { 0.5 };
        }
        let next = others[round % others.len()].clone() + work.clone();
        let sum = next + changed.unwrap_or_else(|| made(0.0));

        if let Some((round, begun)) = before.replace((round, begun)) {
            arrive(round, begun, out_of_order);
        }
        drop(sum);
    }
    if let Some((round, begun)) = before {
        arrive(round, begun, out_of_order);
    }
    under_way
}

type Read = Result<TensorData, burn::tensor::backend::ExecutionError>;

fn arrive(round: usize, begun: Result<impl Future<Output = Read>, Read>, out_of_order: bool) {
    let data = begun.map_or_else(|read| read, |reading| try_read_sync(reading).expect("a thread can wait"));
    let expected = round as f32 + 1.0;
    let data = data.expect("it can be read");
    let wrong = data.iter::<f32>().find(|value| value.to_bits() != expected.to_bits());
    assert!(wrong.is_none() || out_of_order, "{wrong:?} where {expected} was read");
}

fn tensors_read_while_kernels_run_arrive_unchanged(machine: &Machine) {
    let child = |budget: &str| machine.child("cube/reads").with("budget", budget);
    assert_eq!(machine.run(child("unlimited")).number("evictions"), 0);
    assert!(machine.run(child("5MiB")).number("evictions") > 0);
}
