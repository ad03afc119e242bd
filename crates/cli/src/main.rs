//! The `tidekv` command line.
#![forbid(unsafe_code)]

mod demo;
mod document;
mod exit;
mod flags;
mod interrupt;
mod model;
mod output;
mod plan;
mod progress;
mod prompt;
mod pull;
mod run;
mod verify;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: tidekv_alloc::Counting = tidekv_alloc::Counting;

/// Run very long prompts through local language models on machines with little memory.
///
/// TideKV drives one Transformer layer over all chunks of the prompt before the next, keeps full
/// K/V for that one layer only, selects what to keep when the layer has seen the whole prompt, and
/// answers from the small cache that remains.
#[derive(Parser)]
#[command(
    name = "tidekv",
    version,
    after_help = "Start with `tidekv demo`, then `tidekv run --help`."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Read a long document with a small model and find the fact hidden in it
    Demo(demo::Args),
    /// Read a prompt and answer it
    Run(Box<run::Args>),
    /// Say how much memory a prompt takes, before running it
    Plan(Box<plan::Args>),
    /// Check on your own model that chunking and layer order change no bit
    Verify(Box<verify::Args>),
    /// Fetch a model into the cache
    Pull(pull::Args),
}

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.command {
        Command::Demo(args) => demo::demo(&args),
        Command::Run(args) => run::run(&args),
        Command::Plan(args) => plan::plan(&args),
        Command::Verify(args) => verify::verify(&args),
        Command::Pull(args) => pull::pull(&args),
    };
    exit::report(outcome)
}
