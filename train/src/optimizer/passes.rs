//! AdamW and sums of squares in one pass each, for devices in this process's memory.
//!
//! On the CPU, each of Burn's dozen operations allocates a parameter-sized tensor. These loops work in place, with the
//! same bits. Small budgets use two passes with three tensors each.

use backend_offload::{Managed, stats, works_in_place};
use burn::tensor::{Tensor, TensorPrimitive, backend::Backend, ops::FloatTensor};
use host_optim::{AdamW, Stride, Values};

use super::moments::Moments;

/// Changes f32 tensors in place, or returns them unchanged as an error.
type InPlace<I> = fn(
    Vec<FloatTensor<I>>,
    &mut dyn FnMut(&mut [&mut [f32]]),
) -> Result<Vec<FloatTensor<I>>, Vec<FloatTensor<I>>>;

/// `None` if the device cannot change tensors in place.
#[derive(Debug)]
pub(crate) struct Passes<I: Backend>(Option<InPlaceSupport<I>>);

#[derive(Debug)]
struct InPlaceSupport<I: Backend> {
    in_place: InPlace<I>,
    /// Bytes; `None` without a limit.
    budget: fn(&I::Device) -> Option<u64>,
}

impl<I: Backend> Clone for Passes<I> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<I: Backend> Clone for InPlaceSupport<I> {
    fn clone(&self) -> Self {
        Self { in_place: self.in_place, budget: self.budget }
    }
}

impl<I: Backend> InPlaceSupport<I> {
    fn has_room_for_four<const D: usize>(&self, tensor: &Tensor<I, D>) -> bool {
        let bytes = (tensor.shape().num_elements() * size_of::<f32>()) as u64;
        (self.budget)(&tensor.device()).is_none_or(|budget| 4 * bytes <= budget)
    }
}

pub(super) type Stepped<I, const D: usize> = (Tensor<I, D>, Moments<I>);

impl<I: Backend> Passes<I> {
    pub(crate) fn none() -> Self {
        Self(None)
    }

    pub(crate) fn for_device() -> Self
    where
        I: Managed,
    {
        let budget = |device: &I::Device| stats::<I>(device).device.budget;
        Self(
            works_in_place::<I>()
                .then_some(InPlaceSupport { in_place: backend_offload::in_place::<I>, budget }),
        )
    }

    #[expect(clippy::type_complexity, reason = "the error gives the operands back")]
    pub(super) fn adamw<const D: usize>(
        &self,
        rule: &AdamW,
        stride: Stride,
        weight: Tensor<I, D>,
        gradient: Tensor<I, D>,
        before: Option<Moments<I>>,
    ) -> Result<Stepped<I, D>, (Tensor<I, D>, Tensor<I, D>, Option<Moments<I>>)> {
        let Some(support) = &self.0 else { return Err((weight, gradient, before)) };
        let has_room = support.has_room_for_four(&weight);
        let time = before.as_ref().map_or(0, |before| before.time);
        let zeros = || Tensor::<I, D>::zeros(weight.shape(), &weight.device()).into_primitive().tensor();
        let moments = match before {
            Some(Moments { first, second, .. }) => [first, second.expect("AdamW's state has two moments")],
            None => [zeros(), zeros()],
        };

        let [weight, gradient] = [weight, gradient].map(|tensor| tensor.into_primitive().tensor());
        let [first, second] = moments;
        let passes = if has_room { in_one_pass::<I> } else { in_two_passes::<I> };

        let stepped =
            passes(support.in_place, rule, (stride, time as u32 + 1), [weight, gradient, first, second]);
        let is_stepped = stepped.is_ok();
        let [weight, gradient, first, second] = stepped.unwrap_or_else(|operands| operands);

        let [weight, gradient] =
            [weight, gradient].map(|tensor| Tensor::from_primitive(TensorPrimitive::Float(tensor)));
        let second = Some(second);
        if is_stepped {
            Ok((weight, Moments { time: time + 1, first, second }))
        } else {
            let moments = (time > 0).then_some(Moments { time, first, second });
            Err((weight, gradient, moments))
        }
    }

    /// Returns the gradient and its sum of squares, shape `[1]`. Fails if one pass is impossible.
    pub(crate) fn squares<const D: usize>(
        &self,
        gradient: Tensor<I, D>,
    ) -> Result<(Tensor<I, D>, Tensor<I, 1>), Tensor<I, D>> {
        let Some(InPlaceSupport { in_place, .. }) = &self.0 else { return Err(gradient) };
        let device = gradient.device();
        let mut sum = 0.0;
        let read = in_place(vec![gradient.into_primitive().tensor()], &mut |slices| {
            sum = slices.iter().map(|slice| Values::F32(slice).squares()).sum();
        });
        let tensor = |mut tensors: Vec<FloatTensor<I>>| {
            Tensor::from_primitive(TensorPrimitive::Float(tensors.remove(0)))
        };
        match read {
            Ok(gradient) => {
                // `from_data` would count as traffic.
                Ok((tensor(gradient), Tensor::full([1], sum as f32, &device)))
            }
            Err(gradient) => Err(tensor(gradient)),
        }
    }
}

type Operands<I> = [FloatTensor<I>; 4];

fn in_one_pass<I: Backend>(
    in_place: InPlace<I>,
    rule: &AdamW,
    (stride, time): (Stride, u32),
    operands: Operands<I>,
) -> Result<Operands<I>, Operands<I>> {
    let stepped = in_place(operands.into(), &mut |slices| {
        let [weight, gradient, first, second] = slices else { unreachable!("as many as were given") };
        rule.step(stride, time, weight, [first, second], gradient);
    });
    stepped.map(array).map_err(array)
}

/// All or nothing: only the first pass can fail, and then changes nothing.
fn in_two_passes<I: Backend>(
    in_place: InPlace<I>,
    rule: &AdamW,
    (stride, time): (Stride, u32),
    [weight, gradient, first, second]: Operands<I>,
) -> Result<Operands<I>, Operands<I>> {
    let moved = in_place(vec![gradient, first, second], &mut |slices| {
        let [gradient, first, second] = slices else { unreachable!("as many as were given") };
        rule.step_moments(stride, time, [first, second], gradient);
    });
    let [gradient, first, second] = match moved.map(array) {
        Ok(moved) => moved,
        Err(operands) => {
            let [gradient, first, second] = array(operands);
            return Err([weight, gradient, first, second]);
        }
    };
    let stepped = in_place(vec![weight, first, second], &mut |slices| {
        let [weight, first, second] = slices else { unreachable!("as many as were given") };
        rule.step_weights(stride, time, weight, [first, second]);
    });
    let Ok(stepped) = stepped else { panic!("a weight is f32, as its moments are") };
    let [weight, first, second] = array(stepped);
    Ok([weight, gradient, first, second])
}

fn array<T, const N: usize>(tensors: Vec<T>) -> [T; N] {
    tensors.try_into().unwrap_or_else(|_| unreachable!("as many as were given"))
}

#[cfg(test)]
mod tests {
    use backend_offload::Offload;
    use burn::backend::{Flex, flex::FlexDevice};
    use burn::tensor::TensorData;
    use runs::config::TrainSection;

    use super::*;
    use crate::optimizer::{Optimizer, Stride};

    type OnCpu = Offload<Flex>;

    fn matrix(seed: usize) -> Tensor<OnCpu, 2> {
        let number = |n: usize| ((n * 7919 + seed * 104_729) % 2003) as f32 / 500.0 - 2.0;
        Tensor::from_data(TensorData::new((0..600).map(number).collect(), [20, 30]), &FlexDevice)
    }

    fn bits<const D: usize>(tensor: &Tensor<OnCpu, D>) -> Vec<u32> {
        tensor.to_data().iter::<f32>().map(f32::to_bits).collect()
    }

    #[test]
    fn adamw_in_one_or_two_passes_has_the_bits_of_burns_adamw() {
        let settings = TrainSection { lr: 0.01, weight_decay: 0.1, ..TrainSection::default() };
        let stepped = |passes| {
            let mut optimizer = Optimizer::<OnCpu> { passes, ..Optimizer::new(&settings) };
            let mut weight = matrix(0);
            for step in 1..6 {
                let stride = Stride { share: 0.5, scale: if step % 2 == 0 { 0.3 } else { 1.0 } };
                // Not contiguous, as after a matmul.
                let gradient = matrix(step).reshape([30, 20]).transpose();
                weight = optimizer.updated("wte", weight, gradient, stride);
            }
            let moments = &optimizer.moments["wte"];
            let [first, second] = [moments.first.clone(), moments.second.clone().expect("two moments")]
                .map(|moment| Tensor::<OnCpu, 2>::from_primitive(TensorPrimitive::Float(moment)));
            (bits(&weight), bits(&first), bits(&second), moments.time)
        };
        let in_one = stepped(Passes::for_device());
        assert_eq!(in_one, stepped(Passes::none()));
        assert_eq!(in_one.3, 5);
        let in_place = backend_offload::in_place::<OnCpu>;
        let tight = Passes(Some(InPlaceSupport { in_place, budget: |_| Some(4 * 4 * 600 - 1) }));
        assert_eq!(in_one, stepped(tight));
    }

    #[test]
    fn squares_are_added_up_and_the_gradient_comes_back() {
        let gradient = matrix(3);
        let before = bits(&gradient);
        let Ok((gradient, sum)) = Passes::for_device().squares(gradient) else { panic!("it is on the CPU") };
        assert_eq!(bits(&gradient), before);
        let expected: f64 = gradient.into_data().iter::<f64>().map(|x| x * x).sum();
        assert!((f64::from(sum.into_scalar()) - expected).abs() < 1e-6 * expected);
        assert!(Passes::none().squares(matrix(3)).is_err());
    }
}
