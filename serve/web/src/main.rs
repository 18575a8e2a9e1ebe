//! `cargo run -p web`: the server with the echo behind it, for work on clients and the page.

use clap::Parser;
use web::{EchoArgs, ServerArgs};

#[derive(Parser)]
#[command(about = "An OpenAI-compatible server that repeats what it is told", version)]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    echo: EchoArgs,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    web::keep_a_log();
    let echo = args.echo.echo()?;
    web::run(args.server.settings()?, move |desk| {
        echo.answer(desk);
        Ok(())
    })
}
