//! Work for `cargo xtask instructions`, which counts instructions within [`metered`]. Prints the number of operations.

use pager::{Arena, BlockId, Limit, Oversized, Pager, Policy, Recording, Step};
use pager_replay::{Machine, Replay};
use std::hint::black_box;
use std::path::Path;

/// Rounds to learn the program, and the steady one.
const ROUNDS: usize = 8;

const MACHINE: Machine = Machine { link: 25e9, memory: 1e12, ..Machine::INSTANT };

#[inline(never)]
fn metered<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

/// Arguments: `resident` (with `planned`, under a sufficient budget); or a recorded step, a share of its peak in
/// percent or a size (`16MiB`), and `ahead` for moves ahead.
fn main() {
    let asked = std::env::args().nth(1).expect("a piece of work");
    let operations = match asked.split(' ').collect::<Vec<_>>()[..] {
        ["resident"] => resident(Limit::NONE),
        ["resident", "planned"] => resident(Limit::bytes(1 << 30)),
        [step, share] => replayed(step, share, false),
        [step, share, "ahead"] => replayed(step, share, true),
        _ => panic!("`{asked}` is no piece of work"),
    };
    println!("{operations}");
}

/// Operations over resident blocks of a learned program.
fn resident(budget: Limit) -> u64 {
    let mut pager = Pager::new(budget, Policy::Planned, Oversized::Refuse);
    let blocks: Vec<BlockId> = (0..50).map(|n| pager.insert(100 + n, Arena::UNPOOLED)).collect();
    let mut step = || {
        for pair in blocks.windows(2) {
            if !pager.begin(pair).expect("it fits") {
                for block in pair {
                    if !pager.get(*block).expect("it lives").is_on_device() {
                        let token =
                            pager.started(Step::Bring { block: *block, from: None }).expect("nowhere yet");
                        pager.ended(token, true).expect("under way");
                    }
                }
            }
            pager.wrote(pair[1]).expect("on the device");
        }
        pager.mark_step();
    };
    (0..30).for_each(|_| step());
    metered(|| (0..10).for_each(|_| step()));
    10 * (blocks.len() as u64 - 1)
}

fn replayed(step: &str, share: &str, ahead: bool) -> u64 {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces").join(step).with_extension("trace");
    let recording = Recording::from_bytes(&std::fs::read(file).expect("a committed step")).expect("a step");
    let free = Replay::new(&recording, Limit::NONE, Policy::Planned).run(2).expect("it fits");
    let budget = match share.strip_suffix("MiB") {
        Some(size) => size.parse::<u64>().expect("mebibytes") << 20,
        None => free.pager().ledger().resident_peak() * share.parse::<u64>().expect("percent") / 100,
    };
    let budget = Limit::bytes(budget);
    let replay = Replay::new(&recording, budget, Policy::Planned);
    let replay = if ahead { replay.on(MACHINE) } else { replay };
    metered(|| replay.run(ROUNDS)).expect("every operation fits").pager().counters().operations
}
