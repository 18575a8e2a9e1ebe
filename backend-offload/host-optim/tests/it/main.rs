//! The host optimizer through its public face: on slices, and on Burn modules.

mod burn_modules;
mod nothing;
#[cfg(target_os = "linux")]
mod on_disk;
mod rows;
mod slices;
mod updates;
mod velocity;
