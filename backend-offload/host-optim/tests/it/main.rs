//! The host optimizer's public API, on slices and on Burn modules.

mod burn_modules;
mod dry_run;
#[cfg(target_os = "linux")]
mod on_disk;
mod rows;
mod slices;
mod updates;
mod velocity;
