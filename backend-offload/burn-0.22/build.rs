//! Refuses to build over a `cubecl` without providers of clients, and detects its release.

const PATCHED: &str = "DEP_CUBECL_CLIENT_PROVIDER_VERSION";

fn main() {
    println!("cargo::rerun-if-env-changed={PATCHED}");
    println!("cargo::rustc-check-cfg=cfg(cubecl_0_12)");
    match std::env::var(PATCHED) {
        Ok(version) if version.starts_with("0.12.") => println!("cargo::rustc-cfg=cubecl_0_12"),
        Ok(_) => {}
        Err(_) => {
            println!(
                "cargo::error=nothing would spill: this program's `cubecl` does not ask offload-burn-22 for its \
                 servers. Run `cargo xtask burn-0.22 --facade FOLDER` in Spillway's repository, and add these two \
                 lines to the Cargo.toml at the root of your workspace:"
            );
            println!("cargo::error=[patch.crates-io]");
            println!("cargo::error=cubecl = {{ path = \"FOLDER\" }}");
        }
    }
}
