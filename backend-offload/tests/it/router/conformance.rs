//! Every operation through the door, compared with the backend and with the door itself.

use super::{Child, OPERATE, Training, one_byte, outcomes};
use crate::operations::{Value, operations};
use burn::backend::Autodiff;
use burn_flex::{Flex, FlexDevice};
use std::collections::HashMap;

/// How far an operation through the router may be from plain Flex, as a share of the largest value.
///
/// Burn's router forwards no default methods, so what Flex computes in one kernel arrives as several
/// operations that round in between. Everything that is not listed is equal to the last bit.
const TOLERANCES: &[(&str, f64)] = &[
    // Forward exact; backward Burn's own approximation, where Flex has a kernel.
    ("gelu", 1e-3),
    ("sigmoids", 2.4e-7),
    ("lstm", 2.4e-7),
    ("gru", 2.4e-7),
];

#[test]
fn operations_differ_from_plain_flex_only_where_the_router_takes_them_apart() {
    let device = FlexDevice;
    let mut wrong = Vec::new();
    for (plain, ours) in operations::<Autodiff<Flex>>().iter().zip(operations::<Training>()) {
        let tolerance = TOLERANCES.iter().find(|(name, _)| *name == plain.name).map_or(0.0, |entry| entry.1);
        let (expected, found) = ((plain.run)(&device), (ours.run)(&device));
        assert_eq!(expected.len(), found.len(), "{}", plain.name);
        let apart = |pair: (&Value, &Value)| pair.0.difference(pair.1);
        let most = expected.iter().zip(&found).map(apart).fold(0.0, f64::max);
        if most > tolerance || (tolerance > 0.0 && most == 0.0) {
            wrong.push(format!("{}: {most:e}, stated {tolerance:e}", plain.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn one_byte_is_enough_for_every_operation_to_give_the_same_bits() {
    let free = Child::new(OPERATE).with("threads", 1).run();
    let expected: HashMap<&str, &str> = outcomes(&free).collect();
    assert!(expected.values().all(|outcome| !outcome.starts_with("panic")), "{expected:?}");
    for threads in [1, 8] {
        let tight = one_byte(threads).run();
        let found: Vec<_> = outcomes(&tight).collect();
        assert_eq!(found.len(), threads * expected.len());
        for (operation, outcome) in found {
            assert_eq!(outcome, expected[operation], "{operation} with {threads} threads");
        }
        assert!(tight.number("evictions") > 0);
        assert_eq!(tight.number("in use") + tight.number("host in use"), 0);
    }
}
