//! `tidekv bench`: what this machine does, beside what it could.

mod kernels;
mod machine;
mod prefill;

pub use machine::{Kept, Machine};

use crate::interrupt::Interrupt;

/// Measure this machine, the kernels on it, and prefill of a model
///
/// Every figure stands beside a ceiling that was measured on the same machine. Use it when nothing
/// else runs: other programs' time shows in every number.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Machine(machine::Args),
    Kernels(kernels::Args),
    Prefill(Box<prefill::Args>),
}

/// Runs the command.
///
/// # Errors
/// Whatever stops a measurement.
pub fn bench(args: &Args) -> anyhow::Result<()> {
    let interrupt = Interrupt::install()?;
    match &args.command {
        Command::Machine(args) => machine::machine(args, &interrupt),
        Command::Kernels(args) => kernels::kernels(args, &interrupt),
        Command::Prefill(args) => prefill::prefill(args, &interrupt),
    }
}

/// Ends a measurement on Ctrl-C.
fn unless_interrupted(interrupt: &Interrupt) -> anyhow::Result<()> {
    match interrupt.is_set() {
        true => Err(crate::exit::Ended::Interrupted.into()),
        false => Ok(()),
    }
}

/// `12.3`, in 10^9.
fn giga(rate: f64) -> String {
    format!("{:.1}", rate / 1e9)
}

/// `85 %`.
fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// Cells of a table's row.
fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}
