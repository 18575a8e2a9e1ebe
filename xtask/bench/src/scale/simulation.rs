//! Predicts steps at unmeasured numbers of ranks.
//!
//! A line fitted at `n` ranks is extrapolated to `N`. Every rank writes to all others: latency grows with `N − 1`, as
//! for votes after sums. Each sends `(N − 1) / N` of the bytes: so grows the time per byte. An assumed network adds its
//! latency and the sent bytes' time.

use std::fmt;

use super::{
    cell::Cell,
    fit::Line,
    sample::{Kind, Link},
};

pub(super) const RANKS: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// A sum has two phases of small messages and data; the commit is one small message.
const TRIPS: f64 = 5.0;

#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    /// Seconds per rank.
    pub(super) compute: f64,
    pub(super) gradient: u64,
    /// Local steps per exchange, if rare.
    pub(super) every: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Network {
    /// Between all ranks.
    AsMeasured,
    /// The measured link, then a network.
    Assumed { bytes_per_second: f64, latency: f64 },
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AsMeasured => f.write_str("nothing"),
            Self::Assumed { bytes_per_second, latency } => {
                write!(f, "{:.0} MB/s and {:.0} µs", bytes_per_second / 1e6, latency * 1e6)
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Exact,
    OneBit,
    Rarely,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Exact, Self::OneBit, Self::Rarely];
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Model {
    pub(super) link: Link,
    pub(super) ranks: u64,
    exact: Line,
    one_bit: Line,
    /// Seconds per vote.
    commit: f64,
    /// Bytes sent per byte of gradients at `ranks`: exact, and one bit.
    sent: (f64, f64),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Forecast {
    pub(super) ranks: u64,
    pub(super) exchange: f64,
    /// Compute over compute and exchange, if all ranks share one rank's step.
    pub(super) strong: f64,
    /// The same if each computes a whole step.
    pub(super) weak: f64,
}

pub(super) fn line(cells: &[Cell], link: Link, ranks: usize, kind: Kind) -> Option<Line> {
    let own = cells.iter().filter(|cell| (cell.link, cell.ranks, cell.kind) == (link, ranks, kind));
    Line::fit(&own.map(|cell| (cell.bytes as f64, cell.undisturbed())).collect::<Vec<_>>())
}

impl Model {
    /// Fits cells at the most ranks; `None` with fewer than two sizes.
    pub(super) fn fit(cells: &[Cell], link: Link) -> Option<Self> {
        let ranks = cells.iter().filter(|cell| cell.link == link).map(|cell| cell.ranks).max()?;
        let sent = |kind| {
            let own = cells.iter().filter(|cell| (cell.link, cell.ranks, cell.kind) == (link, ranks, kind));
            own.max_by_key(|cell| cell.bytes).map(|cell| cell.sent as f64 / cell.bytes as f64)
        };
        Some(Self {
            link,
            ranks: ranks as u64,
            exact: line(cells, link, ranks, Kind::Exact)?,
            one_bit: line(cells, link, ranks, Kind::OneBit)?,
            commit: cells
                .iter()
                .find(|cell| (cell.link, cell.ranks, cell.kind) == (link, ranks, Kind::Commit))?
                .undisturbed(),
            sent: (sent(Kind::Exact)?, sent(Kind::OneBit)?),
        })
    }

    /// Predicted seconds.
    pub(super) fn sum(&self, way: Way, ranks: u64, bytes: f64) -> f64 {
        let (line, _) = self.line_and_sent(way);
        line.latency * self.peers(ranks) + line.per_byte * bytes * self.share(ranks)
    }

    fn exchange(&self, way: Way, ranks: u64, bytes: f64, network: Network) -> f64 {
        if ranks < 2 {
            return 0.0;
        }
        let (_, sent) = self.line_and_sent(way);
        let wire = match network {
            Network::AsMeasured => 0.0,
            Network::Assumed { bytes_per_second, latency } => {
                TRIPS * latency + sent * bytes * self.share(ranks) / bytes_per_second
            }
        };
        self.sum(way, ranks, bytes) + self.commit * self.peers(ranks) + wire
    }

    fn line_and_sent(&self, way: Way) -> (Line, f64) {
        match way {
            Way::Exact | Way::Rarely => (self.exact, self.sent.0),
            Way::OneBit => (self.one_bit, self.sent.1),
        }
    }

    fn peers(&self, ranks: u64) -> f64 {
        (ranks - 1) as f64 / (self.ranks - 1) as f64
    }

    /// Bytes sent per rank, relative to the measurement.
    fn share(&self, ranks: u64) -> f64 {
        self.peers(ranks) * self.ranks as f64 / ranks as f64
    }

    pub(super) fn forecasts(&self, way: Way, step: &Step, network: Network) -> Vec<Forecast> {
        let forecast = |ranks: u64| {
            let once = self.exchange(way, ranks, step.gradient as f64, network);
            let exchange = if way == Way::Rarely { once / step.every as f64 } else { once };
            let efficiency = |compute: f64| compute / (compute + exchange);
            let dealt = step.compute / ranks as f64;
            Forecast { ranks, exchange, strong: efficiency(dealt), weak: efficiency(step.compute) }
        };
        RANKS.into_iter().map(forecast).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            cell::cells,
            sample::{Sample, tests::samples},
        },
        *,
    };

    const STEP: Step = Step { compute: 10.0, gradient: 500_000_000, every: 8 };

    fn model() -> Model {
        Model::fit(&cells(&samples()), Link::Tcp).unwrap()
    }

    fn near(found: f64, expected: f64) -> bool {
        (found - expected).abs() < 1e-4 * expected
    }

    #[test]
    fn a_model_predicts_ranks_it_was_not_fitted_at() {
        for cell in cells(&samples()).iter().filter(|cell| cell.link == Link::Tcp && cell.ranks == 2) {
            let way = match cell.kind {
                Kind::Exact => Way::Exact,
                Kind::OneBit => Way::OneBit,
                _ => continue,
            };
            let predicted = model().sum(way, 2, cell.bytes as f64);
            assert!(near(predicted, cell.seconds), "{cell:?}: {predicted}");
        }
        assert_eq!(model().ranks, 4);
    }

    #[test]
    fn load_in_most_turns_does_not_change_the_model() {
        let turn =
            |slow: f64| move |sample: &Sample| Sample { seconds: slow * sample.seconds, ..sample.clone() };
        let disturbed =
            [1.0, 9.0, 7.0, 1.0, 30.0].map(|slow| samples().iter().map(turn(slow)).collect::<Vec<_>>());
        let busy = Model::fit(&cells(&disturbed.concat()), Link::Tcp).unwrap();
        let wait = |model: &Model| model.exchange(Way::Exact, 512, 500e6, Network::AsMeasured);
        assert!(near(wait(&busy), wait(&model())));
    }

    #[test]
    fn a_thousand_ranks_pay_for_every_peer_and_every_byte() {
        let predicted = model().exchange(Way::Exact, 1024, 500e6, Network::AsMeasured);
        let share = 1023.0 / 1024.0;
        assert!(near(predicted, 1023.0 * 5e-5 + 500e6 * share * 2e-9), "{predicted}");
        let slow = Network::Assumed { bytes_per_second: 125e6, latency: 1e-4 };
        let wired = model().exchange(Way::Exact, 1024, 500e6, slow);
        assert!(near(wired - predicted, 5e-4 + 2.0 * 500e6 * share / 125e6), "{wired}");
    }

    #[test]
    fn one_rank_never_waits() {
        for way in Way::ALL {
            let alone = model().forecasts(way, &STEP, Network::AsMeasured)[0];
            assert_eq!(alone, Forecast { ranks: 1, exchange: 0.0, strong: 1.0, weak: 1.0 });
        }
    }

    #[test]
    fn efficiency_is_compute_over_compute_and_exchange() {
        let predicted = model().forecasts(Way::Exact, &STEP, Network::AsMeasured)[3];
        assert_eq!(predicted.ranks, 8);
        assert!(
            near(predicted.strong, 1.25 / (1.25 + predicted.exchange))
                && near(predicted.weak, 10.0 / (10.0 + predicted.exchange))
        );
    }

    #[test]
    fn exchanging_every_eighth_step_costs_an_eighth() {
        let [exact, rarely] = [Way::Exact, Way::Rarely]
            .map(|way| model().forecasts(way, &STEP, Network::AsMeasured)[10].exchange);
        assert!(near(rarely * 8.0, exact));
    }

    #[test]
    fn one_bit_is_faster_on_a_slow_network_and_slower_in_memory() {
        let wait = |way, network| model().exchange(way, 64, 500e6, network);
        assert!(wait(Way::OneBit, Network::AsMeasured) > wait(Way::Exact, Network::AsMeasured));
        let slow = Network::Assumed { bytes_per_second: 12.5e6, latency: 1e-3 };
        assert!(wait(Way::OneBit, slow) < wait(Way::Exact, slow) / 4.0);
    }

    #[test]
    fn a_link_that_was_not_measured_has_no_model() {
        assert!(Model::fit(&cells(&samples()), Link::None).is_none());
    }
}
