//! `cargo run -p web`: the server with the echo engine.

use clap::Parser;
use web::{EchoArgs, ServerArgs};

#[derive(Parser)]
#[command(about = "An OpenAI-compatible server that repeats its prompts", version)]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    echo: EchoArgs,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    web::init_logging();
    let echo = args.echo.echo()?;
    web::run(args.server.settings()?, move |worker| {
        echo.answer(worker);
        Ok(())
    })
}
