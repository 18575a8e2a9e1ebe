//! The trainer's command line, and [`answering`] for programs that serve trained models.
//!
//! Compiled here for every runtime: callers need not compile Burn.

/// As the standard library's, which panics where nobody reads standard error or its disk is full: no reason to lose a run.
macro_rules! eprintln {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        _ = std::writeln!(std::io::stderr(), $($words)*);
    }};
}

/// As the standard library's, but a reader that ends early, as `head` does, is no error.
macro_rules! print {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        $crate::exit::allow_no_reader(std::write!(std::io::stdout(), $($words)*));
    }};
}

/// [`print`], and ends the line.
macro_rules! println {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        $crate::exit::allow_no_reader(std::writeln!(std::io::stdout(), $($words)*));
    }};
}

pub mod answering;
mod choices;
mod command_line;
mod data;
mod exit;
mod figures;
mod interrupt;
mod journal;
mod kv_room;
mod machine;
mod optimizer;
mod parameters;
mod plan;
mod progress;
mod ranks;
#[cfg(test)]
mod reference;
mod rehearsal;
mod report;
mod rule;
mod stages;
mod summary;
mod training;
mod verbs;

pub use command_line::main;
