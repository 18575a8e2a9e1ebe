//! Times exchanges between ranks: from a barrier to the end of the slowest rank.

use std::{error::Error, io::Write, time::Instant};

use exchange::{Counted, Engine, Exact, OneBit, Pairwise, Share, even};

use super::{Asked, Sample, gradient};

/// The first turn connects; one bit has all residuals from the second on.
const UNCOUNTED: usize = 2;

const CALLS: usize = 200;

/// Tags of messages.
const ACTIVATIONS: u8 = 0;
const GRADIENTS: u8 = 1;

pub fn measure(engine: impl Engine, asked: &Asked, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let mut meter = Meter { engine: Counted::new(engine), out };
    let calls = CALLS.min(asked.turns);
    meter.take("barrier", 0, calls, || Ok(()), |engine, ()| engine.barrier())?;
    meter.take("commit", 0, calls, || Ok(()), |engine, ()| engine.commit(true))?;

    for &bytes in &asked.sizes {
        let turns = asked.turns_of(bytes);
        let whole = gradient(bytes);
        let (world, rank) = (meter.engine.world(), meter.engine.rank());
        let contribution = || {
            let mut own = Pairwise::new(Share { count: world as u64, world, rank }, whole.len());
            own.push(whole.clone()).map(|_| own)
        };
        meter.take("exact", bytes, turns, contribution, |engine, own| Exact::default().sum(engine, own))?;
        let mut one_bit = OneBit::new(whole.len(), 0);
        meter.take("one bit", bytes, turns, contribution, |engine, own| {
            let sum = one_bit.sum(engine, own)?;
            one_bit.settle(true);
            Ok(sum)
        })?;
        let (owners, elements) = ((0..world).collect::<Vec<_>>(), even(whole.len(), world));
        let parts = || {
            let share = Share { count: world as u64, world, rank };
            let mut parts = Vec::with_capacity(world);
            for part in &elements {
                let mut own = Pairwise::new(share, *part);
                own.push(whole[..*part].to_vec())?;
                parts.push(own);
            }
            Ok(parts)
        };
        meter.take("reduce-scatter", bytes, turns, parts, |engine, own| {
            Exact::default().sum_all(engine, own, Some(&owners))
        })?;
        meter.take("to one owner", bytes, turns, contribution, |engine, own| {
            Exact::default().sum_all(engine, vec![own], Some(&[0]))
        })?;
        let mut from_one = vec![0; world];
        from_one[0] = bytes;
        for (kind, owned) in [("all-gather", even(bytes, world)), ("from one owner", from_one)] {
            let weights = || Ok(vec![1; bytes]);
            meter.take(kind, bytes, turns, weights, |engine, mut weights| {
                Exact::default().gather_owned(engine, &mut weights, &owned).map(|()| weights)
            })?;
        }
        meter.take("pipeline", bytes, turns, || Ok(()), |engine, ()| pass_on(engine, bytes))?;
    }
    Ok(())
}

/// Activations go to the next rank while gradients of as many bytes go to the one before.
fn pass_on(engine: &mut dyn Engine, bytes: usize) -> exchange::Result<()> {
    let (rank, world) = (engine.rank(), engine.world());
    let next = (rank + 1 < world).then_some(rank + 1);
    let before = rank.checked_sub(1);
    let mut missing = 0;
    for (peer, sent, received) in [(next, ACTIVATIONS, GRADIENTS), (before, GRADIENTS, ACTIVATIONS)] {
        if let Some(peer) = peer {
            engine.expect((peer, received), bytes)?;
            engine.send((peer, sent), vec![1; bytes])?;
            missing += 1;
        }
    }
    while missing > 0 || engine.is_sending() {
        match engine.arrived()? {
            Some(_) => missing -= 1,
            None => std::thread::yield_now(),
        }
    }
    Ok(())
}

struct Meter<'a, E> {
    engine: Counted<E>,
    out: &'a mut dyn Write,
}

impl<E: Engine> Meter<'_, E> {
    /// Times `exchange`, but neither `prepare`, nor dropping the result, nor the first turns.
    fn take<P, R>(
        &mut self,
        kind: &'static str,
        bytes: usize,
        turns: usize,
        prepare: impl Fn() -> exchange::Result<P>,
        mut call: impl FnMut(&mut Counted<E>, P) -> exchange::Result<R>,
    ) -> Result<(), Box<dyn Error>> {
        let mut own = Vec::with_capacity(turns);
        for turn in 0..turns + UNCOUNTED {
            let prepared = prepare()?;
            self.engine.barrier()?;
            let before = self.engine.costs().sent;
            let began = Instant::now();
            let result = call(&mut self.engine, prepared)?;
            let seconds = began.elapsed().as_secs_f64();
            drop(result);
            if turn >= UNCOUNTED {
                own.push((seconds, self.engine.costs().sent - before));
            }
        }

        for (turn, (seconds, sent)) in own.into_iter().enumerate() {
            let seconds = self.largest(seconds)?;
            if self.engine.rank() == 0 {
                Sample { kind, bytes, turn, sent, seconds }.print(self.out)?;
            }
        }
        Ok(())
    }

    fn largest(&mut self, own: f64) -> exchange::Result<f64> {
        let mut all = vec![own.to_ne_bytes(); self.engine.world()];
        let mut parts: Vec<&mut [u8]> = all.iter_mut().map(<[u8; 8]>::as_mut_slice).collect();
        self.engine.all_gather(&mut parts)?;
        Ok(all.into_iter().map(f64::from_ne_bytes).fold(own, f64::max))
    }
}
