//! Decides which checkpoints to remove.

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rule {
    pub(super) keep_last: usize,
    /// Multiples stay.
    pub(super) keep_every: Option<u64>,
    /// `latest` and `best`, which stay.
    pub(super) pointed: [Option<u64>; 2],
}

impl Rule {
    /// The first of `steps`, the latest save, stays.
    pub(super) fn removable(&self, steps: &[u64]) -> Vec<u64> {
        let older = steps.iter().copied().skip(self.keep_last.max(1));
        let stays = |step: u64| {
            self.pointed.contains(&Some(step))
                || self.keep_every.is_some_and(|every| step.is_multiple_of(every))
        };
        older.filter(|step| !stays(*step)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_few_and_every_nth_and_the_pointed_ones_stay() {
        let steps = [900, 800, 700, 600, 500, 400, 300];
        let rule = Rule { keep_last: 2, keep_every: Some(300), pointed: [Some(900), Some(400)] };
        assert_eq!(rule.removable(&steps), [700, 500]);
    }

    #[test]
    fn the_checkpoint_saved_last_stays_whatever_its_step() {
        assert_eq!(Rule::default().removable(&[200, 900, 800]), [900, 800]);
    }
}
