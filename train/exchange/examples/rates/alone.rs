//! A world of one against a plain sum of the same contributions.

use std::{error::Error, io::Write, time::Instant};

use exchange::{Engine, Exact, Pairwise, Share};

use super::{Asked, Sample, gradient};

const COUNT: usize = 4;

type Sum = fn(&mut dyn Engine, Vec<Vec<f32>>) -> exchange::Result<Vec<f32>>;

/// The plain sum stands twice: its distance from itself is the noise.
const SUMS: [(&str, Sum); 3] = [
    ("plain", |_, rows| Ok(plain(rows))),
    ("alone", step_of_one),
    ("plain again", |_, rows| Ok(plain(rows))),
];

pub fn measure(mut engine: impl Engine, asked: &Asked, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    for &bytes in &asked.sizes {
        let row = gradient(bytes);
        for turn in 0..asked.turns_of(bytes * COUNT) {
            for at in 0..SUMS.len() {
                let (kind, sum) = SUMS[(turn + at) % SUMS.len()];
                let rows = vec![row.clone(); COUNT];
                let began = Instant::now();
                let summed = sum(&mut engine, rows)?;
                let seconds = began.elapsed().as_secs_f64();
                drop(summed);
                Sample { kind, bytes, turn, sent: 0, seconds }.print(out)?;
            }
        }
    }
    Ok(())
}

fn plain(mut rows: Vec<Vec<f32>>) -> Vec<f32> {
    while rows.len() > 1 {
        let mut pairs = rows.into_iter();
        let mut sums = Vec::new();
        while let Some(mut sum) = pairs.next() {
            if let Some(more) = pairs.next() {
                sum.iter_mut().zip(&more).for_each(|(sum, more)| *sum += *more);
            }
            sums.push(sum);
        }
        rows = sums;
    }
    rows.pop().unwrap_or_default()
}

fn step_of_one(engine: &mut dyn Engine, rows: Vec<Vec<f32>>) -> exchange::Result<Vec<f32>> {
    let share = Share { count: rows.len() as u64, world: engine.world(), rank: engine.rank() };
    let len = rows.first().map_or(0, Vec::len);
    let mut own = Pairwise::new(share, len);
    for row in rows {
        own.push(row)?;
    }
    let sum = Exact::default().sum(engine, own)?;
    engine.commit(true)?;
    Ok(sum)
}
