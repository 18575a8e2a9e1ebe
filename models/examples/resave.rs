//! Reads a Hugging Face directory and writes it again: `cargo run -p models --example resave -- FROM TO`.

use std::path::Path;
use std::process::ExitCode;

use burn_flex::{Flex, FlexDevice};
use models::weights::{Stored, load_pretrained, save_pretrained};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = arguments.as_slice() else {
        eprintln!("usage: resave FROM TO, two directories, of which TO exists");
        return ExitCode::from(2);
    };
    let resaved = load_pretrained::<Flex>(Path::new(from), &FlexDevice)
        .and_then(|model| save_pretrained(&model, Path::new(to), Stored::F32));
    match resaved {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
