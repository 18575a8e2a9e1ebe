//! Sums over the ranks of a training run: exact, compressed, or periodic; over Open MPI, or in one process for tests.
//!
//! An [`Engine`] carries bytes between ranks; an exchange sums them. This crate sees no tensor, model or device
//! (`ranks_exchange_bytes_without_burn_and_without_a_trainer`).
//!
//! ```
//! use exchange::{Engine, Exact, Pairwise, Share, threads};
//!
//! // Two ranks as threads; `exchange::Mpi::open()` in a process that `mpirun` has started.
//! let sums = threads::on_each(2, |mut engine| {
//!     let share = Share { count: 4, world: engine.world(), rank: engine.rank() };
//!     let mut gradient = Pairwise::new(share, 3);
//!     for micro_batch in share.range() {
//!         gradient.push(vec![micro_batch as f32; 3])?;
//!     }
//!     let sum = Exact::default().sum(&mut engine, gradient);
//!     // Weights may change only once every rank has said that it can go on.
//!     if engine.commit(sum.is_ok())? { sum } else { panic!("some rank withholds its update") }
//! });
//! assert_eq!(sums, [Ok(vec![6.0; 3]), Ok(vec![6.0; 3])]);
//! ```
//!
//! # A step that can be repeated
//! Exchange, [`commit`](Engine::commit), change weights. An error of `commit` reaches every living rank: they
//! [`shrink`](Engine::shrink) and repeat the step with new shares. [`OneBit::settle`] says whether a step counts. A
//! program that returns to a checkpoint after a failure needs no vote.
//!
//! # Which exchange
//!
//! | | bytes that each of `n` ranks sends for `b` bytes of gradients | result |
//! |---|---|---|
//! | [`Exact`] | `2 (n - 1) / n × b` each step; over the network `1 / k` of it with `k` ranks a host; more where a rank's items leave several sums | the bits of one rank, see [`Pairwise`] |
//! | [`Bf16`] | `(n - 1) / n × b` each step, over the network, too | two roundings from exact |
//! | [`OneBit`] | a 30th of `Exact`, after a warm-up | close to exact over many steps |
//! | [`Outer`] | as `Exact`, once a round of local steps | local steps and an outer optimizer, a round late |
//!
//! # Promises
//! - **The number of ranks changes no bit of an exact sum.**
//! - **No wrong sum and no endless wait for a lost rank**
//!   (`survivors_of_any_faults_commit_the_sums_of_an_undisturbed_run`). If a call fails while all ranks live, their vote
//!   refuses the step (`a_call_that_fails_where_all_live_is_refused_by_their_vote_and_they_go_on`). A [`Watchdog`] names
//!   a frozen rank.
//! - **Nothing is loaded or started before [`Mpi::open`].** A program without MPI runs with [`Alone`].
//!
//! All machines need the same byte order.

mod bucket;
mod counted;
mod engine;
mod error;
mod exact;
mod group;
pub mod launch;
#[cfg(unix)]
mod mpi;
mod narrow;
mod one_bit;
mod pairwise;
mod periodic;
mod share;
mod slices;
pub mod threads;
mod waiting;
mod watchdog;

pub use counted::{Costs, Counted};
pub use engine::{Alone, Engine, Message};
pub use error::{Call, Error, Result};
pub use exact::{Exact, all_gather};
pub use group::Group;
#[cfg(unix)]
pub use mpi::{Mpi, open_mpi_version};
pub use narrow::Bf16;
pub use one_bit::{BLOCK, OneBit, Residuals};
pub use pairwise::Pairwise;
pub use periodic::{Outer, OuterStep};
pub use share::{Share, even, groups, neighbours, range, shards};
pub use waiting::{Overdue, Waiting};
pub use watchdog::Watchdog;
