//! A gradient in host memory, kept until its step.
//!
//! Shares are added pairwise by number: 2k and 2k + 1 first, then neighbouring pairs. Bits do not depend on which
//! process adds which.

use backend_offload::{HostBuffer, HostMemory, OffloadError};
use half::bf16;

use crate::numbers::Values;
use crate::pieces::{add, convert, copy};

/// The sum of `1 << level` neighbouring shares.
#[derive(Debug)]
struct PartialSum {
    level: u32,
    buffer: HostBuffer,
    is_narrow: bool,
}

impl PartialSum {
    fn values(&self) -> Values<'_> {
        if self.is_narrow {
            Values::Bf16(bytemuck::cast_slice(&self.buffer))
        } else {
            Values::F32(bytemuck::cast_slice(&self.buffer))
        }
    }

    /// Adds the next sum of as many shares. A single share keeps its type; sums are f32.
    fn add(&mut self, memory: &HostMemory, name: &str, more: Values<'_>) -> Result<(), OffloadError> {
        let computes = !memory.computes_nothing();
        self.level += 1;
        if let Values::Bf16(narrow) = self.values() {
            let len = size_of::<f32>() * narrow.len();
            let mut wide = memory.take(len, format_args!("the summed gradients of {name}"))?;
            if computes {
                convert::<bf16, f32>(bytemuck::cast_slice_mut(&mut wide), narrow, |x| x);
            }
            (self.buffer, self.is_narrow) = (wide, false);
        }
        let sum = bytemuck::cast_slice_mut(&mut self.buffer);
        match more {
            Values::F32(more) if computes => add(sum, more),
            Values::Bf16(more) if computes => add(sum, more),
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct Gradient {
    next: u64,
    partial_sums: Vec<PartialSum>,
}

impl Gradient {
    pub(crate) fn new(first: u64) -> Self {
        Self { next: first, partial_sums: Vec::new() }
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// See [`HostState::arrive_sum`](crate::HostState::arrive_sum).
    pub(crate) fn arrive(
        &mut self,
        memory: &HostMemory,
        name: &str,
        sum: Values<'_>,
        level: u32,
    ) -> Result<(), OffloadError> {
        let (first, count) = (self.next, 1 << level);
        assert!(first.is_multiple_of(count), "a sum of {count} gradients of {name} begins at number {first}");
        let is_right = |level: u32| !(first >> level).is_multiple_of(2);

        let neighbour = self.partial_sums.last_mut().filter(|left| left.level == level && is_right(level));
        if let Some(left) = neighbour {
            left.add(memory, name, sum)?;
        } else {
            let mut buffer = memory.take(sum.bytes().len(), format_args!("the gradient of {name}"))?;
            if !memory.computes_nothing() {
                copy(&mut buffer, sum.bytes());
            }
            self.partial_sums.push(PartialSum { level, buffer, is_narrow: sum.is_narrow() });
        }
        while let [.., left, right] = &mut self.partial_sums[..]
            && left.level == right.level
            && is_right(right.level)
        {
            left.add(memory, name, right.values())?;
            self.partial_sums.pop();
        }
        self.next += count;
        Ok(())
    }

    /// Adds the remaining partial sums from the right.
    pub(crate) fn complete(&mut self, memory: &HostMemory, name: &str) -> Result<(), OffloadError> {
        while let [.., left, right] = &mut self.partial_sums[..] {
            left.add(memory, name, right.values())?;
            self.partial_sums.pop();
        }
        Ok(())
    }

    /// Valid after [`complete`](Self::complete).
    pub(crate) fn whole(&self) -> Values<'_> {
        self.partial_sums[0].values()
    }

    pub(crate) fn partial_sums(&self) -> impl ExactSizeIterator<Item = Values<'_>> {
        self.partial_sums.iter().map(PartialSum::values)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.partial_sums.iter().map(|part| part.buffer.len() as u64).sum()
    }

    pub(crate) fn squares(&self) -> f64 {
        self.whole().squares()
    }

    /// [`squares`](Self::squares) after [`complete`](Self::complete), to the same bits, of a sum in other memory.
    pub(crate) fn squares_so_far(&self, memory: &HostMemory, name: &str) -> Result<f64, OffloadError> {
        let computes = !memory.computes_nothing();
        if self.partial_sums.len() == 1 {
            return Ok(if computes { self.squares() } else { 0.0 });
        }
        let len = size_of::<f32>() * self.whole().len();
        let mut sum = memory.take(len, format_args!("the summed gradients of {name}"))?;
        if !computes {
            return Ok(0.0);
        }
        sum.fill(0);
        let numbers = bytemuck::cast_slice_mut::<u8, f32>(&mut sum);
        for more in self.partial_sums.iter().rev() {
            match more.values() {
                Values::F32(more) => add(numbers, more),
                Values::Bf16(more) => add(numbers, more),
            }
        }
        Ok(Values::F32(numbers).squares())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(share: u64) -> Vec<f32> {
        (0..5).map(|n| ((share * 5 + n) as f32 * 0.618_034).fract() + 1e-4 * share as f32).collect()
    }

    fn sum(range: std::ops::Range<u64>) -> Vec<f32> {
        if range.end - range.start == 1 {
            return numbers(range.start);
        }
        let middle = range.start.midpoint(range.end);
        let halves = [sum(range.start..middle), sum(middle..range.end)];
        halves[0].iter().zip(&halves[1]).map(|(left, right)| left + right).collect()
    }

    #[test]
    fn sums_of_neighbouring_shares_arrive_like_their_shares() {
        let memory = HostMemory::unlimited();
        // First share's number, and each arrival's level.
        for (first, levels) in [(0, vec![3]), (0, vec![1, 1, 2]), (3, vec![0, 2, 1]), (4, vec![2, 0])] {
            let (mut alone, mut together) = (Gradient::new(first), Gradient::new(first));
            for level in levels {
                let begin = together.next();
                let end = begin + (1 << level);
                for share in begin..end {
                    alone.arrive(&memory, "w", Values::F32(&numbers(share)), 0).expect("memory");
                }
                together.arrive(&memory, "w", Values::F32(&sum(begin..end)), level).expect("memory");
                let bytes = |gradient: &Gradient| -> Vec<Vec<u8>> {
                    gradient.partial_sums().map(|values| values.bytes().to_vec()).collect()
                };
                assert_eq!(bytes(&together), bytes(&alone), "{end} shares from {first}");
            }
        }
    }

    #[test]
    fn squares_between_shares_are_those_of_their_sum_and_change_no_partial_sum() {
        let memory = HostMemory::unlimited();
        let arrived = |shares: u64| {
            let mut gradient = Gradient::new(0);
            for share in 0..shares {
                gradient.arrive(&memory, "w", Values::F32(&numbers(share)), 0).expect("memory");
            }
            gradient
        };
        for shares in 1..9 {
            let (gradient, mut completed) = (arrived(shares), arrived(shares));
            let bytes = |gradient: &Gradient| -> Vec<Vec<u8>> {
                gradient.partial_sums().map(|values| values.bytes().to_vec()).collect()
            };
            let before = bytes(&gradient);
            let squares = gradient.squares_so_far(&memory, "w").expect("memory");
            assert_eq!(bytes(&gradient), before, "{shares} shares");
            completed.complete(&memory, "w").expect("memory");
            assert_eq!(squares.to_bits(), completed.squares().to_bits(), "{shares} shares");
        }
    }

    #[test]
    #[should_panic(expected = "a sum of 2 gradients of w begins at number 3")]
    fn a_sum_across_two_pairs_is_refused() {
        let memory = HostMemory::unlimited();
        _ = Gradient::new(3).arrive(&memory, "w", Values::F32(&[1.0]), 1);
    }
}
