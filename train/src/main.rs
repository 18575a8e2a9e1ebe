//! The trainer's command line. Will hold: `run`, `prepare`, `sample`, `chat` and their siblings over one JSON
//! configuration. Nothing of it is built yet, and it says so.

fn main() -> std::process::ExitCode {
    eprintln!("train: nothing is built here yet; see the README for what works");
    std::process::ExitCode::from(2)
}
