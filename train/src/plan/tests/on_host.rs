//! Plans with the optimizer on the host.

use insta::assert_snapshot;

use super::*;

pub(super) fn large(device: u64, host: u64) -> Machine {
    Machine {
        device_total: Some(device),
        device_free: Some(device - device / 20),
        device_budget: Some(device - device / 10),
        host_free: Some(host - 8 * GIB),
        host_budget: None,
        ..card(0)
    }
}

#[test]
fn a_host_optimizer_trains_seven_billion_parameters_on_8_gib_and_eighteen_on_24() {
    let seven = plan("gpt-7b", &[], &large(8 * GIB, 128 * GIB));
    assert_eq!(seven.refusals(), [""; 0], "{seven}");
    let eighteen = plan("llama-18b", &[], &large(24 * GIB, 192 * GIB));
    assert_eq!(eighteen.refusals(), [""; 0], "{eighteen}");
    let on_device =
        plan("gpt-7b", &["memory.optimizer=device", "memory.optimizer_state=f32"], &large(8 * GIB, 96 * GIB));
    assert_ne!(on_device.refusals(), [""; 0], "{on_device}");
    assert_snapshot!(eighteen, @r"
    18,337,019,904 parameters on a card
                                bytes      stays       moves
    working memory           7.17 GiB   7.17 GiB         0 B
    rotary tables            4.00 MiB   4.00 MiB         0 B
    weights from the host   33.79 GiB  14.43 GiB   19.36 GiB
    rows of the embedding  384.00 MiB        0 B  384.00 MiB
    gradients leaving        1.48 GiB        0 B    1.48 GiB
    activations             17.25 GiB        0 B   17.25 GiB
    at the worst moment     58.59 GiB  21.60 GiB   36.99 GiB

    tokens          16,384 per step (8 sequences of 2,048), 3,276,800 in 200 steps
    arithmetic      2.52 PFLOP per step, 505 PFLOP in all, at 80.0 TFLOP/s
    kept inputs     16.88 GiB of the activations, until their blocks run again
    optimizer       on the host, 117.90 GiB with what waits for its step; its step reads and writes 239.38 GiB there, beside the next forward pass
    device budget   21.60 GiB, 22.80 GiB free, 24.00 GiB in all
    its floor       about 5.00 GiB, the largest operation; a smaller budget may not work
    link            72.63 GiB in and 52.89 GiB out per step, at 25.0 GB/s (estimated)
    slowdown        1.0× (copies behind arithmetic) to 1.2× (copies waited for)
    time            at best 32 s to 37 s per step, 106 min to 2 h 03 min in all (estimated)
    host memory     138.74 GiB, 184.00 GiB free
    disk            409.86 GiB for 2 checkpoints of 204.93 GiB, 500.00 GiB free
    ");
}

#[test]
fn sharded_ranks_hold_old_weights_and_read_ones_at_once() {
    let two = Machine { other_ranks: 1, ..large(24 * GIB, 192 * GIB) };
    let divided = ["memory.shard=true", "train.accumulate=2", "train.micro_batch=1"];
    let plan = plan("llama-18b", &divided, &two);
    assert!((98 * GIB..104 * GIB).contains(&plan.host_least), "{} of {plan}", plan.host_least);
}

#[test]
fn states_beyond_host_memory_go_to_the_disk_with_their_time_and_wear() {
    let described = |text: &str, more: &[&str]| {
        let in_one = ["train.accumulate=1", "train.micro_batch=16"];
        seven_above_a_disk(text, &[&in_one[..], more].concat())
    };
    let below = described("8GiB,24GiB,25GB/s,80TFLOP/s,disk=3GB/s", &["memory.disk_endurance=600TB"]);
    assert_eq!(below.refusals(), [""; 0], "{below}");
    assert_snapshot!(below, @r"
    6,738,415,616 parameters on a device of 8GiB (described, not measured)
                                bytes     stays       moves
    working memory           9.43 GiB  7.20 GiB    2.23 GiB
    rotary tables            4.00 MiB       0 B    4.00 MiB
    weights from the host   12.31 GiB       0 B   12.31 GiB
    rows of the embedding  500.00 MiB       0 B  500.00 MiB
    gradients leaving        1.35 GiB       0 B    1.35 GiB
    activations             16.00 GiB       0 B   16.00 GiB
    at the worst moment     38.23 GiB  7.20 GiB   31.03 GiB

    tokens          32,768 per step (16 sequences of 2,048), 6,553,600 in 200 steps
    arithmetic      1.86 PFLOP per step, 373 PFLOP in all, at 80.0 TFLOP/s
    kept inputs     15.50 GiB of the activations, until their blocks run again
    optimizer       on the host, 14.03 GiB with what waits for its step, and 49.23 GiB of its state on the disk; its step reads and writes 126.00 GiB there, beside the next forward pass
    device budget   7.20 GiB, 8.00 GiB free, 8.00 GiB in all
    its floor       about 6.72 GiB, the largest operation; a smaller budget may not work
    link            45.18 GiB in and 32.38 GiB out per step, at 25.0 GB/s (estimated)
    slowdown        2.3× (copies behind arithmetic) to 3.5× (copies waited for)
    time            at best 54 s to 81 s per step, 3 h 01 min to 4 h 30 min in all (estimated)
    disk tier       49.23 GiB of the optimizer's state and 25.86 GiB that spill of 160.00 GiB; about 65.55 GiB written and 86.47 GiB read per step (estimated), at 3.00 GB/s and 3.00 GB/s, at most 101.65 TiB written per day, which the drive's 545.70 TiB of endurance last for 5 d 8 h
    host memory     19.20 GiB, 24.00 GiB free
    disk            150.62 GiB for 2 checkpoints of 75.31 GiB
    ");
    let roomy = described("8GiB,256GiB,25GB/s,80TFLOP/s,disk=3GB/s", &[]);
    assert_eq!((roomy.optimizer_disk_bytes, roomy.disk_written_per_step), (0, 0), "{roomy}");
    // Three chunks, and the head in bf16.
    let passing = 3 * (8 * (1 << 19) + 4096) + 2 * 4096 * 32_000;
    assert_eq!(below.optimizer_host_bytes + below.optimizer_disk_bytes, roomy.optimizer_host_bytes + passing);
    assert!(below.disk_written_per_step >= below.optimizer_disk_bytes);
    let small = described("8GiB,24GiB,25GB/s,80TFLOP/s,disk=3GB/s", &["memory.disk_budget=8GiB"]);
    let refused = small.refusals().join(" ");
    assert!(refused.contains("of the optimizer's state have no room in host memory, and"), "{refused}");
}

#[test]
fn only_as_many_states_go_to_the_disk_as_needed() {
    let settings = ["memory.optimizer=host", "train.accumulate=1"];
    let host = |gib: f64| Machine {
        host_budget: Some((gib * GIB as f64) as u64),
        disk_budget: 100 * GIB,
        ..card(23 * GIB)
    };
    let all = plan("gpt-1.5b", &settings, &host(96.0));
    assert_eq!((all.optimizer_disk_bytes, all.spills), (0, 0), "{all}");

    let block = 12 * 12 * 1600 * 1600;
    let mut before = 0;
    for missing in 1..=40 {
        let short = host((all.optimizer_host_bytes - missing * block / 2) as f64 / GIB as f64);
        let plan = plan("gpt-1.5b", &settings, &short);
        let states = plan.optimizer_disk_bytes;
        assert!(
            plan.refusals().is_empty() && plan.optimizer_host_bytes <= short.host_budget.unwrap(),
            "{plan}"
        );
        assert!(
            states >= before && states <= (missing / 2 + 2) * block,
            "{missing}: {states} of {block} each"
        );
        before = states;
    }
    assert!(before > 0);
}

/// A compact state lacks half of each weight: steps read weights into pinned memory.
#[test]
fn weights_that_steps_read_never_go_to_the_disk() {
    let settings = |state| {
        let of_state = ["memory.optimizer_state=bf16", "memory.optimizer_state=compact"][state];
        let one = ["memory.optimizer=host", "train.accumulate=1", "train.micro_batch=1", "train.sequence=64"];
        [&one[..], &["model.tie_word_embeddings=false", of_state]].concat()
    };

    let host = |gib: u64| Machine {
        host_budget: Some(gib * GIB),
        host_free: Some(64 * GIB),
        disk_budget: 100 * GIB,
        ..card(5 * GIB / 4)
    };

    // 2.9 GiB of weights and 3 of gradients in bf16, and rows.
    for (gib, state, fits) in [(8, 1, true), (5, 1, false), (5, 0, true)] {
        let plan = plan("gpt-1.5b", &settings(state), &host(gib));
        assert_eq!(plan.refusals().is_empty(), fits, "{gib} GiB: {plan}");
        if fits && state == 1 {
            let on_host = plan.spills + plan.optimizer_host_bytes - plan.sinks;
            assert!(plan.sinks < GIB / 4 && on_host <= gib * GIB, "{plan}");
            assert!(plan.optimizer_disk_bytes > 9 * GIB / 2, "{plan}");
        }
    }
}

/// Ranks own whole parameters, whose states all go.
#[test]
fn each_rank_keeps_its_share_of_sharded_states_on_its_own_disk() {
    let host = |bytes| Machine {
        host_budget: Some(bytes),
        disk_budget: 100 * GIB,
        other_ranks: 3,
        ..card(23 * GIB)
    };
    let settings = ["memory.optimizer=host", "memory.shard=true", "train.accumulate=4", "model.compute=f32"];
    let all = plan("gpt-1.5b", &settings, &host(96 * GIB));
    assert_eq!((all.optimizer_disk_bytes, all.disk_written_per_step), (0, 0), "{all}");
    let below = plan("gpt-1.5b", &settings, &host(all.optimizer_host_bytes - 1));
    let vectors = XL - (48 * 12 * 1600 * 1600 + 50_304 * 1600 + 1024 * 1600);
    assert_eq!(below.optimizer_disk_bytes, 12 * (XL - vectors) / 4);
    assert_eq!(below.disk_written_per_step, below.optimizer_disk_bytes);
    let passing = 3 * (12 * (1 << 19) + 4096) + 4 * 50_304 * 1600;
    assert_eq!(below.optimizer_host_bytes, all.optimizer_host_bytes - below.optimizer_disk_bytes + passing);
    assert_eq!(below.refusals(), [""; 0], "{below}");
}

#[test]
fn a_host_optimizer_moves_each_gradient_out_and_each_weight_in() {
    let set = ["memory.optimizer=host", "train.accumulate=1"];
    let roomy = plan("gpt-1.5b", &set, &Machine { device_budget: None, device_free: None, ..card(0) });
    // Tied embedding, positions and vectors stay f32.
    let narrow = 12 * 1600 * 1600 * 48;
    let streamed = 2 * narrow + 4 * (XL - narrow);
    assert_eq!((roomy.bytes_in_per_step, roomy.bytes_out_per_step), (streamed, streamed));
    assert_eq!(roomy.optimizer_host_bytes, 12 * XL + streamed);
    let machine = Machine { device_budget: None, device_free: None, ..card(0) };
    let sgd = plan("gpt-1.5b", &[&set[..], &["train.optimizer=sgd"]].concat(), &machine);
    assert_eq!((sgd.bytes_in_per_step, sgd.bytes_out_per_step), (streamed, streamed));
    assert_eq!(sgd.optimizer_host_bytes, 8 * XL + streamed);
    let tight = plan("gpt-1.5b", &set, &card(2 * GIB));
    assert!(
        tight.bytes_in_per_step > streamed && tight.bytes_in_per_step - tight.bytes_out_per_step <= streamed
    );
    let on_device = plan("gpt-1.5b", &["train.accumulate=1"], &card(2 * GIB));
    assert!(tight.bytes_in_per_step + tight.bytes_out_per_step < on_device.bytes_out_per_step);
}

#[test]
fn eight_bits_move_33_bytes_per_32_elements_each_way() {
    let eight =
        ["memory.optimizer=host", "train.accumulate=1", "memory.stream=int8", "memory.gradients=int8"];
    let roomy = plan("gpt-1.5b", &eight, &Machine { device_budget: None, device_free: None, ..card(0) });
    let matrices = 12 * 1600 * 1600 * 48;
    let streamed = matrices * 33 / 32 + 4 * (XL - matrices);
    assert_eq!((roomy.bytes_in_per_step, roomy.bytes_out_per_step), (streamed, streamed));
    // A gradient waits in the compute type.
    assert_eq!(roomy.optimizer_host_bytes, 12 * XL + 2 * matrices + 4 * (XL - matrices));
    let tight = |set: &[&str]| {
        let plan = plan("gpt-7b", &[set, &["train.together=1"]].concat(), &large(8 * GIB, 128 * GIB));
        assert_eq!(plan.refusals(), [""; 0], "{plan}");
        (plan.bytes_in_per_step + plan.bytes_out_per_step, plan.break_even_tokens)
    };
    let (computed, weights_and_gradients) = (tight(&[]), tight(&eight[2..]));
    let all = tight(&[&eight[2..], &["memory.activations=int8"]].concat());
    assert!(weights_and_gradients.0 < computed.0 * 6 / 10 && all.0 < computed.0 * 45 / 100);
    assert!(all.1 < weights_and_gradients.1 && weights_and_gradients.1 < computed.1);
}

#[test]
fn auto_puts_the_optimizer_where_the_fewest_bytes_move() {
    let choose = |set: &[&str], machine: &Machine| {
        let set = [short_steps("gpt-1.5b"), &["memory.optimizer=auto"], set].concat();
        let set: Vec<_> = set.into_iter().map(str::to_owned).collect();
        let config = Config::load("gpt-1.5b", &set).expect("a preset");
        placed(&config, &Footprint::of(&config.model).expect("valid"), machine).memory
    };
    let moved = |set: &[&str], machine: &Machine| {
        let plan = plan("gpt-1.5b", set, machine);
        plan.bytes_in_per_step + plan.bytes_out_per_step
    };

    let host = "memory.optimizer=host";
    let endless = Machine { device_budget: None, device_free: None, ..card(0) };
    let roomy = choose(&["memory.optimizer_state=bf16"], &endless);
    assert_eq!((roomy.optimizer, roomy.optimizer_state), (PlacementKind::Device, StateKind::F32));
    let some = choose(&["train.recompute=1"], &card(20 * GIB));
    assert_eq!(some.optimizer, PlacementKind::Host);
    assert!((1..48).contains(&some.device_blocks), "{some:?}");
    let four = Machine { other_ranks: 3, ..card(8 * GIB) };
    let shared = choose(&["train.recompute=1", "train.accumulate=4", "memory.shard=true"], &four);
    assert!(shared.shard.has_owners() && shared.optimizer == PlacementKind::Host, "{shared:?}");
    let blocks = format!("memory.device_blocks={}", some.device_blocks);
    let chosen = moved(&["train.recompute=1", host, &blocks], &card(20 * GIB));
    for other in [&["train.recompute=1"][..], &["train.recompute=1", host]] {
        assert!(chosen < moved(other, &card(20 * GIB)), "{other:?}");
    }
    let none = choose(&[], &card(4 * GIB));
    assert_eq!((none.optimizer, none.device_blocks), (PlacementKind::Host, 0));
    assert_eq!(choose(&["train.optimizer=sgd"], &card(4 * GIB)).optimizer, PlacementKind::Host);
}

#[test]
fn whatever_auto_chooses_reads_back() {
    let four = Machine { other_ranks: 3, ..card(4 * GIB) };
    let sets: [&[&str]; 8] = [
        &[],
        &["train.optimizer=sgd"],
        &["train.optimizer=muon"],
        &["memory.optimizer_state=compact"],
        &["memory.shard=true"],
        &["ranks.pipeline=4"],
        &["ranks.exchange=rarely"],
        &["train.lora.rank=4"],
    ];
    let places = sets.map(|set| {
        let set = [short_steps("gpt-1.5b"), &["memory.optimizer=auto"], set].concat();
        let set: Vec<_> = set.into_iter().map(str::to_owned).collect();
        let config = Config::load("gpt-1.5b", &set).expect("a preset");
        let placed = placed(&config, &Footprint::of(&config.model).expect("valid"), &four);
        let read = Config::from_text(&placed.to_json(), "a choice", &[]);
        assert_eq!(read.unwrap_or_else(|error| panic!("{set:?}: {error}")), placed);
        placed.memory.optimizer
    });
    assert!(places[..6].contains(&PlacementKind::Host), "{places:?}");
    assert_eq!(places[6..], [PlacementKind::Device; 2]);
}

#[test]
fn narrower_states_are_offered_when_host_memory_is_short() {
    // A group of micro-batches would fit.
    let set = ["memory.optimizer=host", "train.together=1"];
    let small = Machine { host_budget: Some(20 * GIB), ..card(8 * GIB) };
    let refused = plan("gpt-1.5b", &set, &small);
    let said = refused.refusals().join(" ");
    assert!(said.contains("`memory.optimizer_state` = \"compact\""), "{said}");
    let sgd = plan("gpt-1.5b", &[&set[..], &["train.optimizer=sgd"]].concat(), &small);
    let said = sgd.refusals().join(" ");
    assert!(said.contains("`memory.optimizer_state` = \"bf16\""), "{said}");
}
