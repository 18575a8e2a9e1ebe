//! `cargo run -p train`.

use std::process::ExitCode;

fn main() -> ExitCode {
    train::main()
}
