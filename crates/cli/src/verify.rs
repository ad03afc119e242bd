//! `tidekv verify`: the promises, on the user's own model.

use crate::demo::prose;
use crate::exit;
use crate::flags::{CacheFlags, CpuFlags, positive};
use crate::interrupt::Interrupt;
use crate::model;
use crate::output::{JsonTarget, Printer, counted, printable};
use crate::progress::{Extent, Watch};
use crate::prompt::read_file;
use anyhow::{Context, ensure};
use serde::Serialize;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use tidekv::text::Specials;
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
    model: OsString,
    /// S, tokens of the prompt [default: 600, or the model's context if that is shorter]
    #[arg(long, value_name = "S", value_parser = positive)]
    tokens: Option<NonZeroUsize>,
    /// Read the prompt from a file, of which the first S tokens are taken [default: a made-up text, or ids where the model's text cannot be read]
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

/// Why a prompt of text is refused.
const NEEDS_TEXT: &str =
    "--prompt-file needs the model's tokenizer; without the flag made-up ids are read";

/// Tokens of the prompt where nobody asks for another number.
const TOKENS: usize = 600;

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
        json.check(&[Path::new(&args.model)])?;
    }
    let interrupt = Interrupt::install()?;
    let storage = &args.cache.storage;
    let cpu = args.cpu.config(storage.precision);
    let engine = model::load(&args.model, storage.rope_scaling, cpu, &interrupt)?;
    let tokens = args.prompt(&engine)?;
    let asked = args.cache.config();
    let config = evicting(asked.clone(), &engine, tokens.len());
    let mut report = Report {
        model: args.model.to_string_lossy().into_owned(),
        prompt_tokens: tokens.len(),
        selector: config.selector.to_string(),
        budget: config.budget,
        isa: engine.backend().name(),
        threads: engine.backend().threads(),
        passed: true,
        runs: Vec::new(),
    };
    let _watched = interrupt.watch();
    let mut printer = Printer::beside(args.json.as_ref(), &[]);
    printer.print(&report.heading(asked.budget))?;

    let mut verifier = Verifier::new(&engine, &tokens, &config);
    for case in cases(tokens.len(), &args.chunk_sizes(tokens.len())) {
        let label = format!("{} C = {}", case.schedule, case.chunk);
        let schedule = case.schedule.with_chunk(case.chunk);
        let n_layers = engine.model().spec.shape.n_layers;
        let extent = Extent::new(n_layers, schedule, &[tokens.len()]);
        let mut watch = Watch::new(label, extent, &interrupt);
        let verdict = verifier.check(case, &mut watch)?;
        watch.clear();
        printer.print(&format!("  {verdict}\n"))?;
        report.runs.push(verdict);
    }
    report.passed = report.runs.iter().all(Verdict::passed);
    let written = args.json.as_ref().map_or(Ok(()), |json| json.write(&report));
    let concluded = conclusion(&report.runs).and_then(|text| printer.print(&text));
    exit::all([concluded, written, printer.finish()])
}

impl Args {
    /// The first tokens of the file or of a made-up text.
    fn prompt(&self, engine: &Engine<Cpu>) -> anyhow::Result<Vec<u32>> {
        let context = engine.model().spec.shape.context;
        let n_tokens = match self.tokens {
            Some(tokens) => tokens.get(),
            None => TOKENS.min(context),
        };
        ensure!(
            n_tokens <= context,
            "--tokens {n_tokens} is more than the model's context of {}",
            counted(context, "token")
        );
        let tokenizer = engine.tokenizer();
        let text = match (&self.prompt_file, &tokenizer) {
            (Some(path), _) => read_file(path)?,
            // A sentence has at least eight words, and a word is at least a token.
            (None, Ok(_)) => prose(0, n_tokens.div_ceil(8)),
            // Without text, ids far apart do as well.
            (None, Err(_)) => {
                let vocab = engine.model().spec.shape.vocab;
                return Ok((0..n_tokens).map(|n| (n * 7919 % vocab) as u32).collect());
            }
        };
        let mut tokens = tokenizer.context(NEEDS_TEXT)?.encode(&text, Specials::AsText)?;
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
    /// What is checked; `asked` is the budget before it was lowered.
    fn heading(&self, asked: usize) -> String {
        let Report { model, prompt_tokens, selector, budget, isa, threads, .. } = self;
        let lowered = match *budget < asked {
            true => format!(
                "\n(half the prompt instead of {asked}, so that there is something to choose)"
            ),
            false => String::new(),
        };
        format!(
            "{}: {}, {isa}, {}\n\
             {selector} keeps {} where a schedule evicts{lowered}\n\n",
            printable(model),
            counted(*prompt_tokens, "token"),
            counted(*threads, "thread"),
            counted(*budget, "position")
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
