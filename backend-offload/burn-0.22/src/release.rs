//! Names that CubeCL 0.11 and 0.12 keep in different modules.

#[cfg(not(cubecl_0_12))]
pub use cubecl_runtime::dry_run::LaunchMode;
#[cfg(cubecl_0_12)]
pub use cubecl_runtime::execution::LaunchMode;
