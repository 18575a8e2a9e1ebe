//! The order of a stage's work in a step: one micro-batch forward, one backward (1F1B).
//!
//! At most `P - s` micro-batches are under way on stage `s` of `P`. Each stage idles for `P - 1` of `m + P - 1` turns
//! (`a_stage_idles_for_the_bubble_alone`).
//!
//! A tied head's stage embeds `P` micro-batches ahead, and takes gradients `P - 1` later.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Embed(usize),
    Forward(usize),
    Backward(usize),
    EmbedBackward(usize),
}

use Work::{Backward, Embed, EmbedBackward, Forward};

pub(crate) fn schedule((stage, stages): (usize, usize), count: usize, embeds: bool) -> Vec<Work> {
    let ahead = (stages - 1 - stage).min(count);
    let turns = (ahead..count).flat_map(|next| [Forward(next), Backward(next - ahead)]);
    let alone: Vec<Work> =
        (0..ahead).map(Forward).chain(turns).chain((count - ahead..count).map(Backward)).collect();
    if !embeds {
        return alone;
    }

    let mut all: Vec<Work> = (0..stages.min(count)).map(Embed).collect();
    for work in alone {
        all.push(work);
        let Backward(done) = work else { continue };
        all.extend((done + stages < count).then_some(Embed(done + stages)));
        all.extend((done + 1).checked_sub(stages).map(EmbedBackward));
    }
    all.extend((count.saturating_sub(stages - 1)..count).map(EmbedBackward));
    all
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// The turn in which each work ends. Embedding takes none.
    fn turns(stages: usize, count: usize, tied: bool) -> Vec<Vec<(Work, usize)>> {
        let last = stages - 1;
        let orders: Vec<Vec<Work>> =
            (0..stages).map(|stage| schedule((stage, stages), count, tied && stage == last)).collect();
        let mut ended = HashMap::new();
        let mut next = vec![0; stages];
        let mut turns = vec![Vec::new(); stages];
        let key = |stage: usize, work: Work| (stage, format!("{work:?}"));
        while (0..stages).any(|stage| next[stage] < orders[stage].len()) {
            let before: usize = next.iter().sum();
            for stage in 0..stages {
                let Some(&work) = orders[stage].get(next[stage]) else { continue };
                let needs = match work {
                    Embed(_) => None,
                    Forward(n) if stage == 0 => tied.then(|| key(last, Embed(n))),
                    Forward(n) => Some(key(stage - 1, Forward(n))),
                    Backward(_) if stage == last => None,
                    Backward(n) => Some(key(stage + 1, Backward(n))),
                    EmbedBackward(n) => Some(key(0, Backward(n))),
                };
                let ready = match needs.map(|needs| ended.get(&needs).copied()) {
                    Some(None) => continue,
                    Some(Some(turn)) => turn,
                    None => 0,
                };
                let takes = usize::from(matches!(work, Forward(_) | Backward(_)));
                let previous = turns[stage].last().map_or(0, |(_, turn)| *turn);
                let end = ready.max(previous) + takes;
                turns[stage].push((work, end));
                ended.insert(key(stage, work), end);
                next[stage] += 1;
            }
            assert!(next.iter().sum::<usize>() > before, "stages wait for each other in {orders:?}");
        }
        turns
    }

    #[test]
    fn a_stage_idles_for_the_bubble_alone() {
        for (stages, count) in [(2, 4), (4, 4), (2, 16), (4, 16), (3, 7), (4, 1)] {
            for tied in [false, true] {
                let all = turns(stages, count, tied);
                let end = all.iter().flatten().map(|(_, turn)| *turn).max().expect("work");
                assert_eq!(end, 2 * (count + stages - 1), "{stages} stages, {count} micro-batches");
                for works in &all {
                    let busy = works.iter().filter(|(work, _)| matches!(work, Forward(_) | Backward(_)));
                    assert_eq!(end - busy.count(), 2 * (stages - 1));
                }
            }
        }
    }

    #[test]
    fn each_stage_has_all_work_once_and_few_micro_batches_under_way() {
        for (stages, count) in [(1, 3), (2, 4), (4, 4), (4, 2), (4, 16)] {
            for stage in 0..stages {
                let embeds = stages > 1 && stage + 1 == stages;
                let works = schedule((stage, stages), count, embeds);
                let of = |make: fn(usize) -> Work| -> Vec<Work> {
                    works.iter().copied().filter(|work| (0..count).any(|n| *work == make(n))).collect()
                };
                for make in [Forward, Backward] {
                    assert_eq!(of(make), (0..count).map(make).collect::<Vec<_>>());
                }
                for make in [Embed, EmbedBackward] {
                    assert_eq!(of(make), (0..if embeds { count } else { 0 }).map(make).collect::<Vec<_>>());
                }
                let mut under_way = (0_i32, 0);
                for work in &works {
                    under_way.0 += match work {
                        Forward(_) => 1,
                        Backward(_) => -1,
                        Embed(_) | EmbedBackward(_) => 0,
                    };
                    under_way.1 = under_way.1.max(under_way.0);
                }
                assert_eq!(under_way, (0, count.min(stages - stage) as i32), "stage {stage} of {stages}");
            }
        }
    }
}
