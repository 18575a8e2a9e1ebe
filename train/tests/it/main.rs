//! The verbs from a user's point of view.

mod batches;
mod budgets;
mod chat;
mod data;
mod divergence;
mod eight_bits;
mod evaluation;
mod exchange;
mod finetune;
mod freeze;
mod gguf;
mod host_optimizer;
mod index;
mod inspect;
mod known_weights;
mod longest_match;
mod lora;
mod packed;
mod panics;
mod plan;
mod prepare;
mod program;
mod reference;
mod refusals;
mod reports;
mod run;
mod sample;
mod timeline;
mod tiny;
mod together;
mod tokenizer_train;
mod toy;

#[cfg(all(target_os = "linux", feature = "cuda"))]
mod device;
#[cfg(unix)]
mod disk;
#[cfg(target_os = "linux")]
mod disk_states;
#[cfg(target_os = "linux")]
mod disk_tier;
#[cfg(all(target_os = "linux", feature = "cuda"))]
mod doctor;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod gpus;
#[cfg(unix)]
mod killed_ranks;
#[cfg(unix)]
mod kills;
#[cfg(target_os = "linux")]
mod narrow;
#[cfg(target_os = "linux")]
mod one_bit;
#[cfg(target_os = "linux")]
mod periodic;
#[cfg(target_os = "linux")]
mod pipeline;
#[cfg(target_os = "linux")]
mod ranks;
#[cfg(unix)]
mod resume;
#[cfg(target_os = "linux")]
mod sharded_weights;
#[cfg(unix)]
mod signals;
#[cfg(unix)]
mod speeds;
mod stand_in;
#[cfg(target_os = "linux")]
mod survivors;
