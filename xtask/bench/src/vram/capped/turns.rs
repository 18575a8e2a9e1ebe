//! The order of a round's runs. Where time ends early, it must not end before the runs under a budget.

use super::{super::budget::Budget, twins::Way};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Runner {
    /// The trainer, with the model of this number.
    Ours(usize),
    Theirs(Way),
}

/// Without a limit the first of each side, which shares of its peak and speeds refer to; all under each budget; then the
/// others without a limit.
pub(super) fn round(ours: usize, ways: &[Way], budgets: &[Budget]) -> Vec<(Budget, Runner)> {
    let ours: Vec<Runner> = (0..ours).map(Runner::Ours).collect();
    let theirs: Vec<Runner> = ways.iter().copied().map(Runner::Theirs).collect();
    let at = |budget: Budget, runners: [&[Runner]; 2]| -> Vec<(Budget, Runner)> {
        runners.concat().into_iter().map(|runner| (budget, runner)).collect()
    };
    let [(our_first, our_others), (their_first, their_others)] =
        [&ours, &theirs].map(|runners| runners.split_at(runners.len().min(1)));
    let limited = budgets.iter().filter(|budget| **budget != Budget::Unlimited);
    let under_budgets = limited.flat_map(|budget| at(*budget, [&ours, &theirs]));
    let first = at(Budget::Unlimited, [our_first, their_first]);
    first.into_iter().chain(under_budgets).chain(at(Budget::Unlimited, [our_others, their_others])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Budget = Budget::Share(50.0);

    #[test]
    fn runs_under_a_budget_come_right_after_what_it_is_a_share_of() {
        let ways = [Way::Memory, Way::Fsdp];
        let [device, host] = [0, 1].map(Runner::Ours);
        let [memory, fsdp] = ways.map(Runner::Theirs);
        assert_eq!(
            round(2, &ways, &[HALF, Budget::Unlimited]),
            [
                (Budget::Unlimited, device),
                (Budget::Unlimited, memory),
                (HALF, device),
                (HALF, host),
                (HALF, memory),
                (HALF, fsdp),
                (Budget::Unlimited, host),
                (Budget::Unlimited, fsdp),
            ]
        );
    }

    #[test]
    fn one_side_alone_takes_turns_too() {
        let ours = Runner::Ours(0);
        assert_eq!(round(1, &[], &[HALF]), [(Budget::Unlimited, ours), (HALF, ours)]);
        assert_eq!(round(0, &[Way::Fsdp], &[]), [(Budget::Unlimited, Runner::Theirs(Way::Fsdp))]);
    }
}
