//! Sums of gradients over the ranks during the backward pass.
//!
//! All ranks submit parameters in the order of the backward pass (`gradients_leave_in_turn_while_the_pass_goes_on`),
//! each with its last micro-batch's gradient. Leftovers follow, such as all parameters of a rank without a micro-batch.
//! Neighbours in this order are summed in buckets (`many_small_parameters_take_few_rounds`). The model alone decides
//! buckets and waits, so no clock changes the order. A failed rank takes part, with zeros
//! (`a_rank_that_fails_keeps_no_other_waiting`).

use std::collections::{HashMap, VecDeque};

use backend_offload::Managed;
use burn::backend::Autodiff;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::backend::BackendTypes;
use burn::tensor::{Shape, Tensor};
use exchange::{Pairwise, neighbours};
use models::{Gpt, ParameterInfo, Part};

use super::sum::Sum;
use crate::optimizer::WeightWindow;
use crate::ranks::{BUCKET_BYTES, BackgroundSums, Job};

pub(crate) struct OverlappedReduce<I: Managed> {
    pub(crate) sums: BackgroundSums,
    pub(crate) order: ReduceOrder,
    next: usize,
    under_way: VecDeque<UnderWay<I>>,
    pub(crate) window: Option<WeightWindow<I>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReduceOrder {
    pub(crate) ids: Vec<ParamId>,
    places: HashMap<ParamId, usize>,
    window: usize,
    /// Each parameter's segment; the head's is above all.
    segments: Vec<usize>,
    ends: Vec<bool>,
}

struct UnderWay<I: Managed> {
    id: ParamId,
    shape: Shape,
    device: I::Device,
    /// Whether this rank gets the sum.
    returns: bool,
    bytes: u64,
    land: Land<I>,
}

type Land<I> = fn(&mut Sum<'_, I>, ParamId, Vec<f32>, Shape, &<I as BackendTypes>::Device);

impl ReduceOrder {
    /// With recomputed segments: the head, segments from last to first, embeddings with the first. Otherwise the
    /// model's order, which `in_turn` has.
    pub(crate) fn of_pass(
        mut in_turn: Vec<(ParamId, ParameterInfo)>,
        every: Option<usize>,
        world: usize,
    ) -> Self {
        let places = in_turn.iter().map(|(id, _)| *id).zip(0..).collect();
        let elements = |parameter: &ParameterInfo| parameter.elements() as usize;
        let mut window = in_turn.iter().map(|(_, parameter)| elements(parameter)).max().unwrap_or_default();
        let mut segments = vec![0; in_turn.len()];
        if let Some(every) = every {
            let segment = |parameter: &ParameterInfo| Some(parameter.block()? / every.max(1));
            let is_head = |parameter: &ParameterInfo| matches!(parameter.part, Part::FinalNorm | Part::Head);
            let mut sizes = HashMap::<usize, usize>::new();
            for (_, parameter) in &in_turn {
                if let Some(segment) = segment(parameter) {
                    *sizes.entry(segment).or_default() += elements(parameter);
                }
            }
            window = sizes.into_values().max().unwrap_or_default().max(window);
            in_turn.sort_by_key(|(_, parameter)| {
                (!is_head(parameter), std::cmp::Reverse(segment(parameter).unwrap_or(0)))
            });
            let in_order = in_turn.iter().map(|(_, parameter)| match segment(parameter) {
                _ if is_head(parameter) => usize::MAX,
                segment => segment.unwrap_or(0),
            });
            segments = in_order.collect();
        }
        let lens: Vec<usize> = in_turn.iter().map(|(_, parameter)| elements(parameter)).collect();
        // Two buckets at least are under way.
        let ends = bucket_ends(&lens, (BUCKET_BYTES / size_of::<f32>() * world).min(window / 2));
        Self { ids: in_turn.into_iter().map(|(id, _)| id).collect(), places, window, segments, ends }
    }
}

/// Buckets of at most `most` elements, or of one longer buffer.
pub(crate) fn bucket_ends(lens: &[usize], most: usize) -> Vec<bool> {
    let mut ends = vec![false; lens.len()];
    for bucket in neighbours(lens, most) {
        ends[bucket.end - 1] = true;
    }
    ends
}

impl<I: Managed> OverlappedReduce<I> {
    pub(crate) fn begin(sums: BackgroundSums, order: ReduceOrder) -> Self {
        Self { sums, order, next: 0, under_way: VecDeque::new(), window: None }
    }

    pub(crate) fn gather_for(&mut self, window: WeightWindow<I>) {
        window.begin(self.sums.gathers());
        self.window = Some(window);
    }

    fn is_out_down_to(&self, segment: usize) -> bool {
        self.order.segments.get(self.next).is_none_or(|next| *next <= segment)
    }

    fn is_next(&self, id: ParamId) -> bool {
        self.order.ids.get(self.next) == Some(&id)
    }

    pub(crate) fn are_out(&self) -> bool {
        self.next == self.order.ids.len()
    }

    /// The sum to wait for before `elements` more may be under way.
    fn next_to_land(&mut self, elements: usize) -> Option<UnderWay<I>> {
        let under_way: usize = self.under_way.iter().map(|one| one.shape.num_elements()).sum();
        if under_way.saturating_add(elements) > self.order.window { self.under_way.pop_front() } else { None }
    }
}

impl<I: Managed> Sum<'_, I> {
    /// Gradients must be complete. Does nothing before its turn.
    pub(crate) fn submit<const D: usize>(&mut self, id: ParamId, shape: Shape, device: I::Device) {
        if self.reduce.as_ref().is_none_or(|reduce| !reduce.is_next(id)) {
            return;
        }

        let len = shape.num_elements();
        self.land_until(len);
        let own = self.take_rows::<D>(id).and_then(|own| Ok(Pairwise::of_sums(self.share, len, own)?));
        let own = own.unwrap_or_else(|error| {
            self.failure.get_or_insert(format!("{error:#}"));
            self.nothing(len)
        });

        let range = self.share.range();
        let bytes = (size_of::<f32>() * len * self.share.held(range.end - range.start)) as u64;
        self.held.add(bytes);
        let owner = self.owners.receiver(id);
        let returns = owner.is_none_or(|owner| owner == self.share.rank);
        let reduce = self.reduce.as_mut().expect("it was there before");
        let (place, ends_bucket) = (reduce.order.places[&id], reduce.order.ends[reduce.next]);
        reduce.sums.submit(Job { own, place, owner, ends_bucket });
        reduce.next += 1;
        reduce.under_way.push_back(UnderWay { id, shape, device, returns, bytes, land: land::<I, D> });
    }

    /// Zeros from a failed rank. The vote reports the failure.
    fn nothing(&self, len: usize) -> Pairwise {
        let range = self.share.range();
        let zeros = vec![vec![0.0; len]; self.share.held(range.end - range.start)];
        Pairwise::of_sums(self.share, len, zeros).expect("as many as are held")
    }

    /// Submits what a rank without a micro-batch owes before the pass reaches `segment`.
    pub(crate) fn submit_down_to(&mut self, segment: usize, gpt: &Gpt<Autodiff<I>>) {
        self.settle();
        while self.reduce.as_ref().is_some_and(|reduce| !reduce.is_out_down_to(segment)) {
            gpt.visit(&mut SubmitAll { sum: self });
        }
    }

    pub(crate) fn submit_all(&mut self, gpt: &Gpt<Autodiff<I>>) {
        while self.reduce.as_ref().is_some_and(|reduce| !reduce.are_out()) {
            gpt.visit(&mut SubmitAll { sum: self });
        }
        self.land_until(usize::MAX);
    }

    fn land_until(&mut self, elements: usize) {
        while let Some(landing) = self.reduce.as_mut().and_then(|reduce| reduce.next_to_land(elements)) {
            let UnderWay { id, shape, device, returns, bytes, land } = landing;
            let sum = self.reduce.as_ref().and_then(|reduce| reduce.sums.take());
            self.held.remove(bytes);
            if let Some(sum) = sum.filter(|_| returns) {
                land(self, id, sum, shape, &device);
            }
        }
    }
}

fn land<I: Managed, const D: usize>(
    sum: &mut Sum<'_, I>,
    id: ParamId,
    numbers: Vec<f32>,
    shape: Shape,
    device: &I::Device,
) {
    if let Some(host) = sum.host_of(id) {
        if let Err(error) = host.land(id, &numbers) {
            sum.failure.get_or_insert(error.to_string());
        }
        return;
    }
    sum.complete_with::<D>(id, numbers, shape, device);
}

struct SubmitAll<'d, 's, I: Managed> {
    sum: &'d mut Sum<'s, I>,
}

impl<I: Managed> ModuleVisitor<Autodiff<I>> for SubmitAll<'_, '_, I> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Autodiff<I>, D>>) {
        self.sum.submit::<D>(param.id, param.lazy_shape(), param.lazy_device());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_neighbours_up_to_its_size_or_one_longer_buffer() {
        let ends = |lens: &[usize], most| -> Vec<usize> {
            let ends = bucket_ends(lens, most);
            (0..lens.len()).filter(|at| ends[*at]).collect()
        };
        assert_eq!(ends(&[1, 2, 3, 4], 3), [1, 2, 3]);
        assert_eq!(ends(&[9, 1, 1, 9, 2], 3), [0, 2, 3, 4]);
        assert_eq!(ends(&[1, 1, 1], 3), [2]);
        assert_eq!(ends(&[1, 1], 0), [0, 1]);
        assert_eq!(ends(&[], 3), [0_usize; 0]);
    }
}
