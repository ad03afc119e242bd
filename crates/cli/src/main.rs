//! The `tidekv` command line.
#![forbid(unsafe_code)]

mod answers;
mod bench;
mod completions;
mod demo;
mod exit;
mod files;
mod flags;
mod inspect;
mod interrupt;
mod model;
mod output;
mod perplexity;
mod plan;
mod progress;
mod prompt;
mod pull;
mod random;
mod run;
mod summary;
mod verify;

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;

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
    /// Fetch nothing: a model that is not on this machine is an error (also TIDEKV_OFFLINE=1 or
    /// HF_HUB_OFFLINE=1)
    #[arg(long, global = true)]
    offline: bool,
    #[command(subcommand)]
    command: Command,
}

/// What there is to do; the help of each is the doc of its arguments.
#[derive(Subcommand)]
enum Command {
    Demo(demo::Args),
    Run(Box<run::Args>),
    Plan(Box<plan::Args>),
    Inspect(inspect::Args),
    Verify(Box<verify::Args>),
    Perplexity(Box<perplexity::Args>),
    Bench(bench::Args),
    Pull(pull::Args),
    Completions(completions::Args),
    Man(completions::ManArgs),
}

fn main() -> std::process::ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let cli = parsed(args.clone())
        .unwrap_or_else(|error| exit::usage(error, &args, |args| parsed(args).err()));
    if cli.offline {
        model::go_offline();
    }
    exit::report(obey(cli.command))
}

fn parsed(args: Vec<OsString>) -> Result<Cli, clap::Error> {
    // However the program is called, one name is in its usage lines, help and pages.
    let matches = numeric(Cli::command().bin_name("tidekv")).try_get_matches_from(args)?;
    Cli::from_arg_matches(&matches)
}

/// The command line, where `-1` after a flag is the flag's value: what the value may be is the
/// flag's business, and its message is better than "unexpected argument".
fn numeric(command: clap::Command) -> clap::Command {
    command
        .mut_args(|arg| match arg.get_action().takes_values() && !arg.is_positional() {
            true => arg.allow_negative_numbers(true),
            false => arg,
        })
        .mut_subcommands(numeric)
}

fn obey(command: Command) -> anyhow::Result<()> {
    tidekv_format::exit_when_truncated().context("cannot watch the model file")?;
    match command {
        Command::Demo(args) => demo::demo(&args),
        Command::Run(args) => run::run(&args),
        Command::Plan(args) => plan::plan(&args),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Verify(args) => verify::verify(&args),
        Command::Perplexity(args) => perplexity::perplexity(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Pull(args) => pull::pull(&args),
        Command::Completions(args) => completions::completions(&args, Cli::command()),
        Command::Man(args) => completions::man(&args, Cli::command()),
    }
}
