//! Which link carries how many bytes.

use exchange::threads::{self, Threads};
use exchange::{Bf16, Engine, Exact, Result};

use super::numbers::contributions;

/// Bytes that a rank receives from each other one.
struct Routes {
    inner: Threads,
    received: Vec<usize>,
}

impl Routes {
    fn count<'a>(&mut self, parts: impl Iterator<Item = &'a usize>) {
        let rank = self.rank();
        for (peer, (received, bytes)) in self.received.iter_mut().zip(parts).enumerate() {
            *received += if peer == rank { 0 } else { *bytes };
        }
    }
}

impl Engine for Routes {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world(&self) -> usize {
        self.inner.world()
    }

    fn all_to_all(&mut self, send: &[&[u8]], receive: &mut [&mut [u8]]) -> Result<()> {
        let bytes: Vec<usize> = receive.iter().map(|part| part.len()).collect();
        self.count(bytes.iter());
        self.inner.all_to_all(send, receive)
    }

    fn all_gather(&mut self, parts: &mut [&mut [u8]]) -> Result<()> {
        let bytes: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        self.count(bytes.iter());
        self.inner.all_gather(parts)
    }

    fn barrier(&mut self) -> Result<()> {
        self.inner.barrier()
    }

    fn commit(&mut self, ok: bool) -> Result<bool> {
        self.inner.commit(ok)
    }

    fn shrink(&mut self) -> Result<()> {
        self.inner.shrink()
    }
}

fn routes(world: usize, work: impl Fn(&mut Routes) + Sync) -> Vec<Vec<usize>> {
    threads::on_each(world, |inner| {
        let mut routes = Routes { inner, received: vec![0; world] };
        work(&mut routes);
        routes.received
    })
}

const LEN: usize = 24_000;

#[test]
fn no_rank_receives_much_more_than_its_even_share() {
    for world in [3, 4, 8] {
        let even = 4 * LEN / world * (world - 1);
        let received = routes(world, |engine| {
            let own = vec![contributions(engine, 1, world as u64, LEN)];
            Exact::default().sum_all(engine, own, Some(&[1])).expect("summed");
        });
        for (rank, received) in received.iter().enumerate() {
            let bytes: usize = received.iter().sum();
            assert_eq!(bytes, even * if rank == 1 { 2 } else { 1 }, "rank {rank} of {world}");
        }
        let received = routes(world, |engine| {
            let mut owned = vec![0; world];
            owned[1] = 4 * LEN;
            Exact::default().gather_owned(engine, &mut vec![0; 4 * LEN], &owned).expect("gathered");
        });
        let sent = |rank: usize| received.iter().map(|received| received[rank]).sum::<usize>();
        assert_eq!((sent(0), sent(1)), (even, 2 * even), "{world} ranks");
    }
}

#[test]
fn two_ranks_exchange_what_each_owns_and_no_more() {
    let received = routes(2, |engine| {
        let own = vec![contributions(engine, 1, 2, LEN), contributions(engine, 2, 2, LEN / 4)];
        Exact::default().sum_all(engine, own, Some(&[1, 0])).expect("summed");
        Exact::default().gather_owned(engine, &mut vec![0; 5 * LEN], &[LEN, 4 * LEN]).expect("gathered");
    });
    assert_eq!(received, [[0, LEN + 4 * LEN], [4 * LEN + LEN, 0]]);
}

#[test]
fn owners_of_even_parts_receive_each_byte_once() {
    let received = routes(4, |engine| {
        let own = (0..4).map(|at| contributions(engine, at, 4, LEN / 4)).collect();
        Exact::default().sum_all(engine, own, Some(&[2, 0, 3, 1])).expect("summed");
        Exact::default().gather_owned(engine, &mut vec![0; 4 * LEN], &[LEN; 4]).expect("gathered");
    });
    for received in received {
        assert_eq!(received.iter().sum::<usize>(), 2 * 3 * LEN);
    }
}

#[test]
fn bf16_sends_half_of_the_exact_bytes() {
    let bytes = |narrow: bool| {
        let received = routes(3, |engine| {
            let own = vec![contributions(engine, 1, 3, LEN), contributions(engine, 2, 3, LEN)];
            let owners = Some(&[0, 2][..]);
            let sums = if narrow {
                Bf16.sum_all(engine, own, owners)
            } else {
                Exact::default().sum_all(engine, own, owners)
            };
            sums.expect("summed");
        });
        received.concat().iter().sum::<usize>()
    };
    assert_eq!(2 * bytes(true), bytes(false));
}

#[test]
fn hosts_send_each_sum_over_the_network_once() {
    let over_network = |on_host: usize| {
        let received = routes(8, |engine| {
            let own = vec![contributions(engine, 1, 8, LEN)];
            Exact::default().on_hosts_of(on_host).sum_all(engine, own, None).expect("summed");
        });
        let host = |rank: usize| rank / 4;
        let pairs = received.iter().enumerate().flat_map(|(rank, received)| {
            received.iter().enumerate().filter(move |(peer, _)| host(*peer) != host(rank))
        });
        pairs.map(|(_, bytes)| bytes).sum::<usize>()
    };
    // To each of two hosts: half of the other's sums, and half of the whole sum.
    assert_eq!(over_network(4), 2 * (LEN / 2 + LEN / 2) * 4);
    assert_eq!(over_network(1), 4 * over_network(4));
}
