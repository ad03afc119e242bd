//! `tidekv verify`: the promises, on the user's own model.

use crate::demo::prose;
use crate::flags::{CacheFlags, CpuFlags, positive};
use crate::interrupt::Interrupt;
use crate::model;
use crate::output::{JsonTarget, print_text};
use crate::progress::{Extent, Watch};
use anyhow::{Context, ensure};
use serde::Serialize;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use tidekv::text::{Specials, text_from_bytes};
use tidekv::verify::{Verdict, Verifier, cases};
use tidekv::{Backend, Engine, RunConfig};
use tidekv_cpu::Cpu;

/// Check on your own model that neither chunks nor order change a bit
///
/// Reads a prompt at once (one-shot, post-prefill) and in chunks of several sizes, chunk by chunk
/// (chunked) and layer by layer (tide-noevict, tide). Compares, bit for bit, the hidden states after
/// every layer, all keys and values, the logits, and what is kept; and the memory of every step with
/// the plan. The first difference of each run is named. Exits with 1 if there is any.
///
///   tidekv verify smollm2-135m
///   tidekv verify model.gguf --tokens 2000 --chunks 100,1000 --selector streaming
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[arg(help = model::MODEL_HELP)]
    model: String,
    /// S, tokens of the prompt
    #[arg(long, default_value = "600", value_name = "S", value_parser = positive)]
    tokens: NonZeroUsize,
    /// Read the prompt from a file, of which the first S tokens are taken [default: a made-up text]
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// Chunk sizes to check [default: 64, 512, S-1, S, S+1]
    #[arg(long, value_name = "C,C,...", value_delimiter = ',', value_parser = positive)]
    chunks: Vec<NonZeroUsize>,
    #[command(flatten)]
    cache: CacheFlags,
    #[command(flatten)]
    cpu: CpuFlags,
    /// Write the verdicts as JSON; `-` puts the object alone on stdout
    #[arg(long, value_name = "FILE|-")]
    json: Option<JsonTarget>,
}

/// All verdicts.
#[derive(Serialize)]
struct Report {
    model: String,
    prompt_tokens: usize,
    selector: String,
    budget: usize,
    isa: String,
    threads: usize,
    passed: bool,
    runs: Vec<Verdict>,
}

/// Runs the command.
///
/// # Errors
/// A difference, or whatever stops a run.
pub fn verify(args: &Args) -> anyhow::Result<()> {
    if let Some(json) = &args.json {
        json.check()?;
    }
    let interrupt = Interrupt::install()?;
    let engine = model::load(&args.model, args.cache.storage.rope_scaling, args.cpu, &interrupt)?;
    let tokens = args.prompt(&engine)?;
    let config = evicting(args.cache.config(), &engine, tokens.len());
    let mut report = Report {
        model: args.model.clone(),
        prompt_tokens: tokens.len(),
        selector: config.selector.to_string(),
        budget: config.budget,
        isa: engine.backend().name(),
        threads: engine.backend().threads(),
        passed: true,
        runs: Vec::new(),
    };
    let quiet = args.json == Some(JsonTarget::Stdout);
    let say = |text: String| if quiet { Ok(()) } else { print_text(&text) };
    say(report.heading())?;

    let mut verifier = Verifier::new(&engine, &tokens, &config);
    for case in cases(tokens.len(), &args.chunk_sizes(tokens.len())) {
        let label = format!("{} C = {}", case.schedule, case.chunk);
        let schedule = case.schedule.with_chunk(case.chunk);
        let n_layers = engine.model().spec.shape.n_layers;
        let extent = Extent::new(n_layers, schedule, tokens.len());
        let mut watch = Watch::new(label, extent, &interrupt);
        let verdict = verifier.check(case, &mut watch)?;
        watch.clear();
        say(format!("  {verdict}\n"))?;
        report.runs.push(verdict);
    }
    report.passed = report.runs.iter().all(Verdict::passed);
    if let Some(json) = &args.json {
        json.write(&report)?;
    }
    say(conclusion(&report.runs)?)
}

impl Args {
    /// The first tokens of the file or of a made-up text.
    fn prompt(&self, engine: &Engine<Cpu>) -> anyhow::Result<Vec<u32>> {
        let n_tokens = self.tokens.get();
        let text = match &self.prompt_file {
            Some(path) => {
                let name = || path.display().to_string();
                let bytes = std::fs::read(path).with_context(name)?;
                text_from_bytes(&bytes).with_context(name)?.to_owned()
            }
            // A sentence has at least eight words, and a word is at least a token.
            None => prose(0, n_tokens.div_ceil(8)),
        };
        let mut tokens = engine.tokenizer().encode(&text, Specials::AsText)?;
        tokens.truncate(n_tokens);
        Ok(tokens)
    }

    /// Chunk sizes to check. What is interesting is near the prompt's length.
    fn chunk_sizes(&self, n_tokens: usize) -> Vec<NonZeroUsize> {
        if !self.chunks.is_empty() {
            return self.chunks.clone();
        }
        let mut sizes = vec![64, 512, n_tokens.saturating_sub(1), n_tokens, n_tokens + 1];
        sizes.retain(|&size| size <= n_tokens + 1);
        sizes.sort_unstable();
        sizes.dedup();
        sizes.into_iter().filter_map(NonZeroUsize::new).collect()
    }
}

/// The settings with a budget that makes the selector choose: at most half of
/// the prompt, where the selector can work with so little.
fn evicting<B: Backend>(config: RunConfig, engine: &Engine<B>, n_tokens: usize) -> RunConfig {
    let lowered = RunConfig { budget: config.budget.min(n_tokens / 2), ..config.clone() };
    match lowered.selections(&engine.model().spec.shape, n_tokens) {
        Ok(_) => lowered,
        Err(_) => config,
    }
}

impl Report {
    fn heading(&self) -> String {
        let Report { model, prompt_tokens, selector, budget, isa, threads, .. } = self;
        format!(
            "{model}: {prompt_tokens} tokens, {isa}, {threads} threads\n\
             {selector} keeps {budget} positions where a schedule evicts\n\n"
        )
    }
}

/// The last line, or the error that makes the command fail.
fn conclusion(runs: &[Verdict]) -> anyhow::Result<String> {
    let failed = runs.iter().filter(|verdict| !verdict.passed()).count();
    ensure!(
        failed == 0,
        "{failed} of {} runs differ from the whole prompt at once or from their memory plan",
        runs.len()
    );
    Ok(format!(
        "\nAll {} runs computed and kept the same bits, in the memory that was planned.\n",
        runs.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidekv::schedule::ScheduleKind;
    use tidekv::verify::{Case, Difference, Numbers};

    #[test]
    fn one_difference_makes_the_command_fail() {
        let case = Case { schedule: ScheduleKind::Tide, chunk: NonZeroUsize::MIN };
        let sound = Verdict { case, difference: None, unplanned: None };
        assert!(conclusion(std::slice::from_ref(&sound)).is_ok());
        let at = Difference { numbers: Numbers::Logits, layer: None, head: None, position: 9 };
        let wrong = Verdict { difference: Some(at), ..sound.clone() };
        let error = conclusion(&[sound.clone(), wrong, sound]).unwrap_err();
        assert!(error.to_string().starts_with("1 of 3 runs differ"), "{error}");
    }
}
