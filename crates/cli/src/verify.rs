//! `tidekv verify`: the promises, on the user's own model.

use crate::flags::{CpuFlags, RunFlags, count};
use crate::interrupt::Interrupt;
use crate::model;
use crate::output::{JsonTarget, print_text};
use crate::progress::Watch;
use anyhow::{Context, ensure};
use std::num::NonZeroUsize;
use tidekv::verify::{Verifier, cases};

/// Check on your own model that chunking and layer order change no bit.
///
/// Reads a prompt of seeded random tokens as a whole and then in chunks, layer by layer and chunk
/// by chunk, and compares hidden states of every layer, keys and values before eviction, and logits
/// bit for bit; and every step's memory with the plan. Exits with 1 on any difference.
#[derive(clap::Args)]
pub struct Args {
    #[arg(help = model::MODEL_HELP)]
    model: String,
    /// Tokens of the prompt
    #[arg(long, default_value = "600", value_name = "S", value_parser = count)]
    tokens: usize,
    /// Chunk sizes; S is the prompt's length [default: 64, 512, S-1, S, S+1]
    #[arg(long = "chunks", value_name = "C,C,...", value_delimiter = ',', value_parser = crate::flags::positive)]
    chunks: Vec<NonZeroUsize>,
    #[command(flatten)]
    run: RunFlags,
    #[command(flatten)]
    cpu: CpuFlags,
    /// Write the verdicts as JSON; `-` puts the list alone on stdout
    #[arg(long, value_name = "FILE|-")]
    json: Option<JsonTarget>,
}

/// Runs the command.
///
/// # Errors
/// A difference, or whatever stops a run.
pub fn verify(args: &Args) -> anyhow::Result<()> {
    if let Some(json) = &args.json {
        json.check()?;
    }
    ensure!(args.tokens >= 2, "--tokens must be at least 2");
    let interrupt = Interrupt::install()?;
    let engine = model::load(&args.model, args.run.rope_scaling, args.cpu, &interrupt)?;
    let tokens = random_tokens(args.tokens, engine.model().spec.shape.vocab);
    let config = args.run.config();
    let around = [64, 512, args.tokens - 1, args.tokens, args.tokens + 1];
    let default: Vec<_> = around.into_iter().filter_map(NonZeroUsize::new).collect();
    let chunks = if args.chunks.is_empty() { &default } else { &args.chunks };

    let quiet = args.json == Some(JsonTarget::Stdout);
    let n_layers = engine.model().spec.shape.n_layers;
    let mut verifier = Verifier::new(&engine, &tokens, &config);
    let mut verdicts = Vec::new();
    let n_tokens = NonZeroUsize::new(args.tokens).context("--tokens must be at least 1")?;
    for case in cases(n_tokens, chunks) {
        let mut watch = Watch::new(case.schedule.name(), n_layers, &interrupt);
        let verdict = verifier.check(case, &mut watch)?;
        watch.clear();
        if !quiet {
            print_text(&format!("{verdict}\n"))?;
        }
        verdicts.push(verdict);
    }
    if let Some(json) = &args.json {
        json.write(&verdicts)?;
    }
    let failed = verdicts.iter().filter(|verdict| !verdict.passed()).count();
    ensure!(failed == 0, "{failed} of {} runs differ", verdicts.len());
    if !quiet {
        print_text(&format!(
            "all {} runs of {} tokens agree bit for bit, and their memory with the plan\n",
            verdicts.len(),
            tokens.len()
        ))?;
    }
    Ok(())
}

/// Token ids from a linear congruential sequence (multiplier of Knuth's MMIX):
/// the same on every machine.
fn random_tokens(n_tokens: usize, vocab: usize) -> Vec<u32> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((state >> 33) % vocab as u64) as u32
    };
    (0..n_tokens).map(|_| next()).collect()
}
