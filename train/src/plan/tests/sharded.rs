//! Plans of ranks that divide weights.

use super::*;

fn on_four(settings: &[&str]) -> Plan {
    let set: Vec<_> = settings.iter().map(|set| (*set).to_owned()).collect();
    let config = Config::load("gpt-7b", &set).expect("a preset");
    let machine = "8GiB,32GiB,25GB/s,80TFLOP/s".parse::<DescribedMachine>().expect("a machine");
    let machine = Machine { other_ranks: 3, ..machine.machine(&config).expect("described") };
    plan("gpt-7b", settings, &machine)
}

#[test]
fn seven_billion_parameters_fit_four_hosts_of_32_gib_only_with_divided_weights() {
    let [whole, states, weights] =
        ["false", "states", "weights"].map(|shard| on_four(&[&format!("memory.shard={shard}")]));
    for refused in [&whole, &states] {
        assert!(refused.refusals()[0].contains("of host memory are needed"), "{refused}");
    }
    assert_eq!(weights.refusals(), [""; 0], "{weights}");

    let [held_by_states, held_by_weights] =
        [&states, &weights].map(|plan| held(plan, "weights from the host").bytes);
    // Two bytes each of 32 blocks' matrices.
    let matrices = 2 * 32 * (4 * 4096 * 4096 + 3 * 4096 * 11_008);
    // The rank that owns most has a quarter and a little.
    let elsewhere = held_by_states - held_by_weights;
    assert!(elsewhere <= matrices * 3 / 4 && elsewhere > matrices * 37 / 50, "{elsewhere} of {matrices}");
    assert_eq!(held(&weights, "gathered weights").bytes, 2 * matrices / 32);
}

#[test]
fn weights_travel_twice_per_group_and_once_at_each_turn() {
    let sent = |shard: &str, together: &str| {
        let shard = format!("memory.shard={shard}");
        on_four(&[
            &shard,
            "train.accumulate=16",
            "train.micro_batch=1",
            &format!("train.together={together}"),
        ])
        .bytes_sent_per_step
    };
    let block = 2 * (4 * 4096 * 4096 + 3 * 4096 * 11_008);
    let detour = |bytes: u64| bytes + bytes / 4;
    let more = |together: &str| sent("weights", together) - sent("states", together);
    // A rank sends its fourth of 63 or 249 blocks instead of 32 to three others.
    assert_eq!(more("4"), detour(3 * (63 - 32) * block / 4));
    assert_eq!(more("1"), detour(3 * (4 * 62 + 1 - 32) * block / 4));
}

/// Four ranks behind cards of 1 Gbit/s took 214 ms to sum 16 MiB for one owner: 1.5 times these bytes take 201.
#[test]
fn the_seconds_of_an_exchange_are_those_of_its_busiest_card() {
    let sent = |ranks: usize, shard: &str| {
        let network_bytes_per_second = Some(1.25e9);
        let machine = Machine { other_ranks: ranks - 1, network_bytes_per_second, ..card(8 * GIB) };
        let shard = format!("memory.shard={shard}");
        let plan = plan("gpt-1.5b", &["train.accumulate=8", &shard], &machine);
        let carried = 1.25e9 * plan.send_seconds.expect("a speed");
        (carried.round() as u64, plan.bytes_sent_per_step)
    };

    assert_eq!(sent(4, "false"), (6 * XL, 6 * XL));
    // Gradients to their owner, and new weights from it: 1.5 times these 8 bytes.
    assert_eq!(sent(4, "states"), (12 * XL, 15 * XL / 2));
    assert_eq!(sent(2, "states"), (8 * XL, 4 * XL));
    let (carried, mean) = sent(4, "weights");
    assert!(carried.abs_diff(mean * 8 / 5) < 8, "{carried} for {mean}");
}
