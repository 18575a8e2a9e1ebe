//! Rests of the driver: operations in which it is not asked again for as much as it refused. Another process may hold
//! the memory for long, and a refusal costs far more than an eviction.

/// Operations after a first refusal; doubled for each that follows soon.
const SHORTEST: u64 = 256;
const LONGEST: u64 = 1 << 16;

#[derive(Debug, Default)]
pub(crate) struct Rest {
    operations: u64,
    until: u64,
}

impl Rest {
    pub fn begin(&mut self, now: u64) {
        if now < self.until {
            return;
        }
        let soon = now < self.until + self.operations;
        self.operations = if soon { self.operations * 2 } else { SHORTEST }.min(LONGEST);
        self.until = now + self.operations;
    }

    pub fn is_over(&self, now: u64) -> bool {
        now >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_keeps_refusing_is_asked_ever_more_rarely() {
        let mut rest = Rest::default();
        let asked: Vec<u64> = (1..1_000_000)
            .filter(|now| {
                let asks = rest.is_over(*now);
                if asks {
                    rest.begin(*now);
                }
                asks
            })
            .collect();
        assert_eq!(asked[..4], [1, 257, 769, 1793]);
        assert!(asked.len() < 30, "{} times", asked.len());
        rest.begin(5_000_000);
        assert!(rest.is_over(5_000_256), "it gave for long");
    }
}
