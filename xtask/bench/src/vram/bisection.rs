//! Finds the greatest working depth: all smaller ones work.

use anyhow::Result;

pub(super) type Probe<T> = Result<T, String>;

#[derive(Debug, PartialEq)]
pub(super) struct Deepest<T> {
    pub(super) works: Option<(u64, T)>,
    pub(super) refused: Option<(u64, String)>,
}

/// Doubles from `start` until a depth fails or `most` works, then bisects.
pub(super) fn deepest<T>(
    start: u64,
    most: u64,
    mut probe: impl FnMut(u64) -> Result<Probe<T>>,
) -> Result<Deepest<T>> {
    let mut found = Deepest { works: None, refused: None };
    let mut depth = start.clamp(1, most);
    loop {
        match probe(depth)? {
            Ok(measured) => found.works = Some((depth, measured)),
            Err(reason) => found.refused = Some((depth, reason)),
        }
        let works = found.works.as_ref().map_or(0, |(depth, _)| *depth);
        depth = match &found.refused {
            Some((refused, _)) if *refused == works + 1 => return Ok(found),
            Some((refused, _)) => works.midpoint(*refused),
            None if works == most => return Ok(found),
            None => (2 * works).min(most),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(start: u64, most: u64, limit: u64) -> (Deepest<u64>, Vec<u64>) {
        let mut tried = Vec::new();
        let found = deepest(start, most, |depth| {
            tried.push(depth);
            Ok(if depth <= limit { Ok(depth * 10) } else { Err(format!("{depth} is too deep")) })
        });
        (found.unwrap(), tried)
    }

    #[test]
    fn the_deepest_is_found_from_any_start() {
        for limit in 0..70 {
            for start in [1, 3, 64, 100] {
                let (found, tried) = search(start, 100, limit);
                let works = (limit > 0).then_some((limit, limit * 10));
                let refused = Some((limit + 1, format!("{} is too deep", limit + 1)));
                assert_eq!(found, Deepest { works, refused }, "start {start}");
                assert!(tried.len() <= 15, "{} probes from {start} to {limit}", tried.len());
            }
        }
    }

    #[test]
    fn no_depth_is_tried_twice() {
        let (_, mut tried) = search(1, 4096, 37);
        let count = tried.len();
        tried.sort_unstable();
        tried.dedup();
        assert_eq!(tried.len(), count);
    }

    #[test]
    fn a_search_ends_at_the_most_that_is_asked_for() {
        let (found, tried) = search(1, 48, 1000);
        assert_eq!(found, Deepest { works: Some((48, 480)), refused: None });
        assert_eq!(tried, [1, 2, 4, 8, 16, 32, 48]);
    }

    #[test]
    fn an_error_ends_the_search() {
        assert!(deepest::<()>(1, 8, |_| anyhow::bail!("bad input")).is_err());
    }
}
