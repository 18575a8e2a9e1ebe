//! Bits, bytes and residuals of the exchanges over random sizes and worlds.

use std::sync::Mutex;

use exchange::threads::{self, Threads};
use exchange::{Alone, Bf16, Counted, Engine, Exact, OneBit, Pairwise, Share, all_gather, shards};
use proptest::prelude::*;

/// Its sum shows its association.
pub fn contribution(seed: u64, n: u64, len: usize) -> Vec<f32> {
    let mut state = seed ^ (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_add(n);
        let unit = (state >> 40) as f32 / (1 << 24) as f32 - 0.5;
        unit * 10_f32.powi((state % 9) as i32)
    };
    (0..len).map(|_| next()).collect()
}

pub fn contributions(engine: &dyn Engine, seed: u64, count: u64, len: usize) -> Pairwise {
    let share = Share { count, world: engine.world(), rank: engine.rank() };
    let mut own = Pairwise::new(share, len);
    share.range().for_each(|n| _ = own.push(contribution(seed, n, len)).expect("one length"));
    own
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn sum_of_one(seed: u64, count: u64, len: usize) -> Vec<u32> {
    bits(&Exact::default().sum(&mut Alone, contributions(&Alone, seed, count, len)).expect("summed"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(suite::cases(64)))]

    #[test]
    fn an_exact_sum_has_the_same_bits_in_every_world(
        seed: u64, count in 0..40_u64, len in 0..60_usize, piece in 1..20_usize, world in 1..=5_usize,
    ) {
        let sums = threads::on_each(world, |mut engine| {
            let own = contributions(&engine, seed, count, len);
            bits(&Exact::in_pieces_of(piece).sum(&mut engine, own).expect("summed"))
        });
        let alone = sum_of_one(seed, count, len);
        prop_assert!(sums.iter().all(|sum| *sum == alone));
    }

    #[test]
    fn a_bucket_has_the_bits_of_its_sums_whoever_owns_them(
        seed: u64, count in 0..20_u64, piece in 1..20_usize, world in 1..=6_usize, on_host in 1..=3_usize,
        buffers in prop::collection::vec((0..30_usize, 0..6_usize), 1..6),
    ) {
        let owners: Vec<usize> = buffers.iter().map(|(_, owner)| owner % world).collect();
        let exact = Exact::in_pieces_of(piece).on_hosts_of(on_host);
        let sums = threads::on_each(world, |mut engine| {
            let mut all = |owners| {
                let own = buffers.iter().enumerate();
                let own = own.map(|(at, (len, _))| contributions(&engine, seed ^ at as u64, count, *len)).collect();
                exact.sum_all(&mut engine, own, owners).expect("summed")
            };
            [all(None), all(Some(&owners))].map(|sums| sums.iter().map(|sum| bits(sum)).collect::<Vec<_>>())
        });
        for (at, (len, _)) in buffers.iter().enumerate() {
            let alone = sum_of_one(seed ^ at as u64, count, *len);
            for (rank, [all, owned]) in sums.iter().enumerate() {
                prop_assert_eq!(&all[at], &alone);
                prop_assert_eq!(&owned[at], if owners[at] == rank { &alone } else { &[] as &[u32] });
            }
        }
    }

    #[test]
    fn owned_bytes_reach_every_rank(owned in prop::collection::vec(0..40_usize, 1..=6), on_host in 1..=3_usize) {
        let whole: Vec<u8> = (0..owned.iter().sum::<usize>()).map(|at| at as u8).collect();
        let gathered = threads::on_each(owned.len(), |mut engine| {
            let begin: usize = owned[..engine.rank()].iter().sum();
            let mut bytes = vec![0; whole.len()];
            bytes[begin..][..owned[engine.rank()]].copy_from_slice(&whole[begin..][..owned[engine.rank()]]);
            Exact::default().on_hosts_of(on_host).gather_owned(&mut engine, &mut bytes, &owned).expect("gathered");
            bytes
        });
        prop_assert!(gathered.iter().all(|bytes| *bytes == whole));
    }

    #[test]
    fn bf16_is_off_by_two_roundings_at_most(
        seed: u64, count in 1..20_u64, world in 1..=6_usize, buffers in prop::collection::vec((0..30_usize, 0..6_usize), 1..6),
    ) {
        let owners: Vec<usize> = buffers.iter().map(|(_, owner)| owner % world).collect();
        let sums = threads::on_each(world, |mut engine| {
            let mut all = |owners| {
                let own = buffers.iter().enumerate();
                let own = own.map(|(at, (len, _))| contributions(&engine, seed ^ at as u64, count, *len)).collect();
                Bf16.sum_all(&mut engine, own, owners).expect("summed")
            };
            [all(None), all(Some(&owners))]
        });
        for (at, (len, _)) in buffers.iter().enumerate() {
            let owned = &sums[owners[at]][1][at];
            prop_assert!(sums.iter().all(|[all, _]| bits(&all[at]) == bits(owned)));
            let magnitude = |element: usize| (0..count).map(|n| contribution(seed ^ at as u64, n, *len)[element].abs()).sum::<f32>();
            let exact = Exact::default().sum(&mut Alone, contributions(&Alone, seed ^ at as u64, count, *len)).expect("summed");
            for (element, (sum, exact)) in owned.iter().zip(exact).enumerate() {
                let margin = if world == 1 { 0.0 } else { magnitude(element) / 100.0 };
                prop_assert!((sum - exact).abs() <= margin, "{} for {}", sum, exact);
            }
        }
    }

    #[test]
    fn one_bit_has_the_same_bits_for_a_bucket_as_for_its_buffers_alone(
        seed: u64, lens in prop::collection::vec(0..5000_usize, 1..4), world in 1..=4_usize,
    ) {
        let of = |joined: bool| threads::on_each(world, |mut engine| {
            let mut buffers: Vec<OneBit> = lens.iter().map(|len| OneBit::new(*len, 1)).collect();
            let mut sums = Vec::new();
            for step in 0..4_u64 {
                let own = lens.iter().enumerate();
                let own = own.map(|(at, len)| contributions(&engine, seed ^ step << 8 ^ at as u64, world as u64, *len));
                let own: Vec<Pairwise> = own.collect();
                if joined {
                    let all = buffers.iter_mut().zip(own).collect();
                    sums.extend(OneBit::sum_all(&mut engine, all).expect("summed"));
                } else {
                    let single = buffers.iter_mut().zip(own).map(|(buffer, own)| buffer.sum(&mut engine, own));
                    sums.extend(single.collect::<Result<Vec<_>, _>>().expect("summed"));
                }
                let committed = engine.commit(true).expect("all live");
                for buffer in &mut buffers {
                    buffer.settle(committed);
                }
            }
            (sums.iter().map(|sum| bits(sum)).collect::<Vec<_>>(), buffers.iter().map(OneBit::residuals).collect::<Vec<_>>())
        });
        prop_assert_eq!(of(true), of(false));
    }

    #[test]
    fn gathered_parts_are_everybodys(parts in prop::collection::vec(0..30_usize, 1..=5)) {
        let whole: Vec<u8> = (0..parts.iter().sum::<usize>()).map(|at| at as u8).collect();
        let gathered = threads::on_each(parts.len(), |mut engine| {
            let begin: usize = parts[..engine.rank()].iter().sum();
            let mut bytes = vec![0; whole.len()];
            bytes[begin..][..parts[engine.rank()]].copy_from_slice(&whole[begin..][..parts[engine.rank()]]);
            all_gather(&mut engine, &mut bytes, &parts).expect("gathered");
            bytes
        });
        prop_assert!(gathered.iter().all(|bytes| *bytes == whole));
    }

    #[test]
    fn shards_are_balanced_to_the_largest_parameter(sizes in prop::collection::vec(0..1000_u64, 0..40), world in 1..=5_usize) {
        let owners = shards(&sizes, world);
        let mut loads = vec![0; world];
        owners.iter().zip(&sizes).for_each(|(owner, size)| loads[*owner] += size);
        let (least, most) = (loads.iter().min().copied(), loads.iter().max().copied());
        let largest = sizes.iter().max().copied().unwrap_or(0);
        prop_assert!(most.zip(least).is_some_and(|(most, least)| most - least <= largest), "{:?}", loads);
    }

    #[test]
    fn sent_and_residuals_are_the_gradients_over_many_steps(seed: u64, len in 1..5000_usize, world in 2..=4_usize) {
        const STEPS: u64 = 4;
        let ends = threads::on_each(world, |mut engine| {
            let mut one_bit = OneBit::new(len, 0);
            let mut sent = vec![0.0_f64; len];
            for step in 0..STEPS {
                let own = contributions(&engine, seed ^ step, world as u64, len);
                let sum = one_bit.sum(&mut engine, own).expect("summed");
                one_bit.settle(engine.commit(true).expect("all live"));
                sent.iter_mut().zip(sum).for_each(|(sent, sum)| *sent += f64::from(sum));
            }
            let owed = one_bit.residuals().expect("compressed");
            (sent, owed.own, owed.part)
        });
        let parts: Vec<f32> = ends.iter().flat_map(|(_, _, part)| part.clone()).collect();

        for at in 0..len {
            let given = |step: u64| (0..world as u64).map(move |n| f64::from(contribution(seed ^ step, n, len)[at]));
            prop_assert!(ends.iter().all(|end| end.0[at].to_bits() == ends[0].0[at].to_bits()));
            if at % 97 != 0 {
                continue;
            }
            let (given, magnitude) = (0..STEPS).flat_map(given).fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
            let owed: f64 = ends.iter().map(|(_, own, _)| f64::from(own[at])).sum::<f64>() + f64::from(parts[at]);
            // One f32 rounding per residual and step, bounded by a block's largest number.
            let bound = (magnitude + 1e9) * f64::from(f32::EPSILON) * 4.0;
            prop_assert!((ends[0].0[at] + owed - given).abs() <= bound, "{at}: {} {owed} {given}", ends[0].0[at]);
        }
    }
}

#[test]
fn one_bit_sends_at_most_a_thirtieth_of_the_bytes() {
    for (world, len) in [(2, 2048), (4, 4096), (3, 100_000), (2, 1_000_003)] {
        let costs = |warm_up| {
            let sent = threads::on_each(world, |engine| {
                let mut engine = Counted::new(engine);
                let own = contributions(&engine, 1, world as u64, len);
                OneBit::new(len, warm_up).sum(&mut engine, own).expect("summed");
                engine.costs().sent
            });
            sent.iter().sum::<u64>()
        };
        let (exact, one_bit) = (costs(1), costs(0));
        assert!(one_bit * 30 <= exact, "{world} ranks, {len} elements: {one_bit} of {exact} bytes");
        let bytes = 2 * (world - 1) * 4 * len;
        assert_eq!(exact, bytes as u64);
    }
}

#[test]
fn one_bit_is_exact_until_its_warm_up_is_committed() {
    let sums = threads::on_each(2, |mut engine| {
        let mut one_bit = OneBit::new(100, 2);
        let mut step = |committed| {
            let own = contributions(&engine, 5, 2, 100);
            let sum = bits(&one_bit.sum(&mut engine, own).expect("summed"));
            one_bit.settle(committed);
            sum
        };
        [step(true), step(false), step(true), step(true)]
    });
    let exact = sum_of_one(5, 2, 100);
    for steps in sums {
        assert_eq!(steps.iter().map(|sum| *sum == exact).collect::<Vec<_>>(), [true, true, true, false]);
    }
}

#[test]
fn a_step_that_is_done_again_finds_the_residuals_it_found_before() {
    let ends = threads::on_each(2, |mut engine| {
        let mut one_bit = OneBit::new(3000, 0);
        let mut step = |one_bit: &mut OneBit, seed, committed| {
            let own = contributions(&engine, seed, 4, 3000);
            let sum = bits(&one_bit.sum(&mut engine, own).expect("summed"));
            one_bit.settle(committed);
            sum
        };
        step(&mut one_bit, 1, true);
        let mut other = OneBit::new(3000, 0);
        other.restore(one_bit.residuals().expect("one step")).expect("the same place");
        let first = step(&mut one_bit, 2, false);
        let again = step(&mut one_bit, 2, true);
        let restored = step(&mut other, 2, true);
        (first == again, again == restored, one_bit.residuals() == other.residuals())
    });
    assert_eq!(ends, [(true, true, true); 2]);
}

#[test]
fn residuals_of_another_world_are_refused_until_they_are_dropped() {
    let one_bit = Mutex::new(OneBit::new(64, 0));
    let step = |mut engine: Threads| {
        let own = contributions(&engine, 1, 6, 64);
        if engine.rank() > 0 {
            return OneBit::new(64, 0).sum(&mut engine, own).map(|_| ());
        }
        one_bit.lock().expect("whole").sum(&mut engine, own).map(|_| ())
    };
    assert!(threads::on_each(3, step)[0].is_ok());
    let refused = threads::on_each(2, step)[0].clone().expect_err("made in a world of three").to_string();
    assert_eq!(refused, "a residual of one-bit exchange is for rank 0 of 3, and this is rank 0 of 2");
    one_bit.lock().expect("whole").drop_residuals();
    assert!(threads::on_each(2, step)[0].is_ok());
}

#[test]
fn a_gradient_that_is_not_finite_reaches_every_rank_and_no_residual() {
    let ends = threads::on_each(2, |mut engine| {
        let mut one_bit = OneBit::new(10, 0);
        let rank = engine.rank();
        let mut step = |bad: f32| {
            let mut own = Pairwise::new(Share { count: 2, world: 2, rank }, 10);
            own.push(vec![if rank == 1 { bad } else { 1.0 }; 10]).expect("ten");
            let sum = one_bit.sum(&mut engine, own).expect("summed");
            one_bit.settle(true);
            sum
        };
        (step(f32::INFINITY).iter().all(|sum| sum.is_nan()), step(2.0))
    });
    assert!(ends.iter().all(|(nan, sum)| *nan && *sum == [3.0; 10]), "{ends:?}");
}

#[test]
fn a_share_of_another_world_is_refused() {
    let own = Pairwise::new(Share { count: 8, world: 4, rank: 2 }, 10);
    let error = Exact::default().sum(&mut Alone, own).expect_err("a world of one").to_string();
    assert_eq!(error, "a share of the contributions is for rank 2 of 4, and this is rank 0 of 1");
    assert!(Exact::default().sum_all(&mut Alone, vec![contributions(&Alone, 1, 1, 10)], Some(&[1])).is_err());
}
