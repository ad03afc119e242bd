//! Memory before a run: the largest chunk whose plan fits a limit, then the run,
//! and what the ledger says of it.
//!
//! ```sh
//! cargo run --release -p tidekv --example plan -- MODEL DOCUMENT MEBIBYTES
//! ```
//!
//! A plan is made from the model's dimensions and the backend's sizes; no weight is
//! read and nothing large allocated, so that a hundred plans cost no more than a
//! moment. A run that starts stays within its plan, to the byte.

use std::error::Error;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use tidekv::memory::Bytes;
use tidekv::schedule::ScheduleKind;
use tidekv::text::Specials;
use tidekv::{Engine, Model, RunConfig, Unobserved};
use tidekv_cpu::{Cpu, CpuConfig};

/// Chunks that are tried, in tokens. Large ones read the weights less often; small
/// ones need less memory.
const LARGEST: usize = 2048;
const SMALLEST: usize = 32;

/// Settings with the largest chunk whose plan fits.
fn choose(
    engine: &Engine<Cpu>,
    n_tokens: usize,
    (limit, out): (u64, &mut dyn Write),
) -> Result<RunConfig, Box<dyn Error>> {
    let mut size = LARGEST;
    loop {
        let chunk = NonZeroUsize::new(size).ok_or("a chunk of nothing")?;
        let config = RunConfig {
            schedule: ScheduleKind::Tide.with_chunk(chunk),
            budget: 1024,
            memory_limit: Some(limit),
            ..RunConfig::default()
        };
        match engine.plan(&config, n_tokens) {
            Ok(plan) => {
                writeln!(out, "chunks of {size}: {} fit", Bytes(plan.peak_bytes()))?;
                return Ok(config);
            }
            Err(tidekv::Error::Refused(refusal)) if size > SMALLEST => {
                let needed = refusal.plan.peak_bytes();
                writeln!(out, "chunks of {size}: {} are too much", Bytes(needed))?;
                size /= 2;
            }
            // The last refusal says what else could be changed.
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads a document within `limit` bytes and compares plan and ledger.
pub fn fit(
    model: &Path,
    document: &str,
    (limit, out): (u64, &mut dyn Write),
) -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(Model::open(model, None)?, Cpu::new(CpuConfig::default())?)?;
    let prompt = engine.tokenizer()?.encode(document, Specials::AsText)?;
    writeln!(out, "{} tokens, limit {}", prompt.len(), Bytes(limit))?;
    let config = choose(&engine, prompt.len(), (limit, out))?;

    let session = engine.prefill(&prompt, &config, &mut Unobserved)?;
    let peak = session.accountant().peak();
    let planned = session.plan().peak_bytes();
    writeln!(out, "planned {planned} bytes, used {} bytes:", peak.bytes.total())?;
    for (component, bytes) in peak.bytes.iter().filter(|(_, bytes)| *bytes > 0) {
        writeln!(out, "  {:14} {:>11}", component.name(), Bytes(bytes))?;
    }
    Ok(())
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, document, mebibytes] = &arguments[..] else {
        return Err("usage: plan MODEL DOCUMENT MEBIBYTES".into());
    };
    let limit = mebibytes.parse::<u64>()?.checked_mul(1 << 20).ok_or("that many do not exist")?;
    let document = std::fs::read_to_string(document)?;
    fit(model.as_ref(), &document, (limit, &mut std::io::stdout()))
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
