//! The steps that the program marks.

#[derive(Debug, Default)]
pub(crate) struct MarkedSteps {
    count: u64,
    /// Departures counted at the ends of the last two steps, in order.
    left: [u64; 2],
}

impl MarkedSteps {
    pub fn count(&self) -> u64 {
        self.count
    }

    /// `left` blocks have left so far.
    pub fn end(&mut self, left: u64) {
        self.count += 1;
        self.left = [self.left[1], left];
    }

    /// Whether blocks have left since the previous step began.
    pub fn spill(&self, left: u64) -> bool {
        left > self.left[0]
    }
}
