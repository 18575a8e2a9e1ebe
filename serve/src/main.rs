//! `cargo run -p serve`: serves the newest run, or trains the toy model first.

use std::path::PathBuf;
use std::process::ExitCode;

use backend_offload::Budget;
use clap::Parser;
use runs::checkpoint::Which;
use runs::device::DeviceChoice;
use serve::ServeOptions;
use train::answering::Batching;
use web::{EchoArgs, ServerArgs};

#[derive(Parser)]
#[command(about = "A trained model, in the browser and behind an OpenAI-compatible API", version)]
struct Args {
    /// A checkpoint, or a run's directory for its latest checkpoint. By default the newest run in `runs/`; if there is
    /// none, the toy model is trained first.
    #[arg(long, value_name = "PATH")]
    from: Option<PathBuf>,
    /// Name of the model for clients; by default the name of its run's folder.
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    alias: Option<String>,
    /// The checkpoint with the lowest validation loss instead of the latest.
    #[arg(long, conflicts_with = "step")]
    best: bool,
    /// The checkpoint of this step instead of the latest.
    #[arg(long)]
    step: Option<u64>,
    /// A folder of low-rank adapters in PEFT's layout, which are added to the weights.
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// auto, cuda, cuda:N, vulkan or cpu.
    #[arg(long, default_value_t)]
    device: DeviceChoice,
    /// Changes one value of the run's configuration, such as `memory.device_budget=6GiB`; may be repeated.
    #[arg(long, value_name = "section.key=value")]
    set: Vec<String>,
    /// Answers at once; further ones wait. Each takes memory for keys and values.
    #[arg(long, value_name = "N", default_value_t = Batching::default().slots)]
    slots: usize,
    /// Memory for keys and values of all answers, such as 2GiB or 30% of what the weights leave; by default half of that.
    #[arg(long, value_name = "SIZE")]
    kv_budget: Option<Budget>,
    /// Prompt tokens read between two tokens of the running answers.
    #[arg(long, value_name = "N", default_value_t = Batching::default().prompt_piece)]
    prompt_piece: usize,
    #[command(flatten)]
    server: ServerArgs,
    /// Answer without a model: repeat the prompt, or lines of a script. For work on clients and the page.
    #[arg(long)]
    echo: bool,
    #[command(flatten)]
    echoing: EchoArgs,
}

fn main() -> ExitCode {
    web::init_logging();
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    let settings = args.server.settings()?;
    if args.echo {
        let echo = args.echoing.echo()?;
        return web::run(settings, move |worker| {
            echo.answer(worker);
            Ok(())
        });
    }
    let which = if args.best { Some(Which::Best) } else { args.step.map(Which::Step) };
    let batching = Batching {
        slots: args.slots.max(1),
        prompt_piece: args.prompt_piece.max(1),
        kv_budget: args.kv_budget,
    };
    let options = ServeOptions {
        from: args.from,
        alias: args.alias,
        which,
        adapter: args.adapter,
        set: args.set,
        device: args.device,
        batching,
    };
    web::run(settings, move |worker| serve::serve(worker, options))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn option_names_are_unique() {
        Args::command().debug_assert();
    }
}
