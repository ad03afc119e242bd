//! `tidekv run`: read a prompt, answer it, say where the memory went.

use crate::exit::Ended;
use crate::flags::{CpuFlags, RunFlags, SampleFlags};
use crate::interrupt::Interrupt;
use crate::model;
use crate::output::{JsonTarget, check_writable, print_text, write_file};
use crate::progress::{Watch, seconds};
use crate::prompt::PromptFlags;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;
use tidekv::generate::GenerateConfig;
use tidekv::memory::{Bytes, system_memory};
use tidekv::report::{Facts, RetainedDump, RunReport, retained_dump};
use tidekv::{Engine, FinishReason, RunConfig, Session};
use tidekv_cpu::Cpu;

/// Read a prompt and answer it.
///
/// The answer goes to stdout, everything else to stderr.
///
///   tidekv run smollm2-135m --prompt "Name three colours."
///   tidekv run model.gguf --prompt-file report.txt --question "Who signed the contract?"
///   cat report.txt | tidekv run model.gguf - --budget 1024 --json run.json
///
/// Memory: `--chunk` decides how much the prompt takes while it is read, `--budget` how much of it
/// is kept for the answer. The default selector keeps what the end of the prompt attends to, so put
/// the question last.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[arg(help = model::MODEL_HELP)]
    model: String,
    #[command(flatten)]
    prompt: PromptFlags,
    #[command(flatten)]
    run: RunFlags,
    #[command(flatten)]
    sample: SampleFlags,
    #[command(flatten)]
    cpu: CpuFlags,
    /// Write the run report; `-` puts the object alone on stdout
    #[arg(long, value_name = "FILE|-")]
    json: Option<JsonTarget>,
    /// Write the kept positions of every layer and head
    #[arg(long, value_name = "FILE")]
    dump_retained: Option<PathBuf>,
}

/// The run report, and what happened to an overlong prompt.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    run: RunReport,
    /// Tokens of the document that `--overflow` dropped.
    dropped_tokens: usize,
}

/// Runs the command.
///
/// # Errors
/// Anything that keeps the answer from being complete.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(json) = &args.json {
        json.check()?;
    }
    if let Some(path) = &args.dump_retained {
        check_writable(path)?;
    }
    args.sample.config().validate()?;
    let interrupt = Interrupt::install()?;
    let engine = model::load(&args.model, args.run.rope_scaling, args.cpu, &interrupt)?;
    let context = engine.model().spec.shape.context;
    let config = args.run.config();
    let room = context.saturating_sub(config.max_new_tokens).max(1);
    let prompt = args.prompt.build(&engine, room)?;
    if prompt.dropped > 0 {
        eprintln!(
            "the prompt was longer than the context of {context} tokens: {} tokens of the document were dropped",
            prompt.dropped
        );
    }
    warn_if_machine_is_small(&engine, &config, prompt.ids.len())?;

    let quiet = args.json == Some(JsonTarget::Stdout);
    let request = Request {
        tokens: &prompt.ids,
        config: &config,
        sample: &args.sample,
        model: &args.model,
        schedule: args.run.schedule.name(),
    };
    let answer = request.answer(&engine, &interrupt, &mut |text| match quiet {
        true => Ok(()),
        false => print_text(text),
    })?;
    if !quiet {
        print_text("\n")?;
    }
    eprint!("{}", summary(&answer.report));
    if let Some(tail) = &answer.window {
        eprintln!("  the observation window ends with: {tail}");
    }
    if let Some(path) = &args.dump_retained {
        write_file(path, serde_json::to_string(&answer.retained)?.as_bytes())?;
    }
    let cancelled = answer.report.finish_reason == FinishReason::Cancelled.name();
    if let Some(json) = &args.json {
        json.write(&Report { run: answer.report, dropped_tokens: prompt.dropped })?;
    }
    if cancelled { Err(Ended::Interrupted.into()) } else { Ok(()) }
}

/// One prompt to be answered.
pub struct Request<'a> {
    /// Prompt ids.
    pub tokens: &'a [u32],
    /// Settings of the run.
    pub config: &'a RunConfig,
    /// Settings of the answer.
    pub sample: &'a SampleFlags,
    /// The model as named.
    pub model: &'a str,
    /// The schedule as named.
    pub schedule: &'a str,
}

/// An answer and what is known about the run.
pub struct Answer {
    /// The report.
    pub report: RunReport,
    /// Kept positions.
    pub retained: RetainedDump,
    /// Text of the last tokens that the observation window holds.
    pub window: Option<String>,
}

impl Request<'_> {
    /// Reads the prompt and generates the answer; `each` gets its text as it
    /// comes.
    ///
    /// # Errors
    /// Whatever stops the run.
    pub fn answer(
        &self,
        engine: &Engine<Cpu>,
        interrupt: &Interrupt,
        each: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<Answer> {
        let n_layers = engine.model().spec.shape.n_layers;
        let mut watch = Watch::new(self.schedule, n_layers, interrupt);
        let mut session = engine.prefill(self.tokens, self.config, &mut watch)?;
        let prefill_s = watch.elapsed().as_secs_f64();
        watch.clear();
        let mut facts = Facts {
            model: self.model.to_owned(),
            schedule: self.schedule.to_owned(),
            prefill_s,
            ttft_s: prefill_s,
            compress_s: watch.compress.as_secs_f64(),
            seed: self.sample.seed,
            process_peak_anon_bytes: watch.anon_peak,
            ..Facts::default()
        };
        self.generate(&mut session, &mut facts, (&watch, interrupt), each)?;
        facts.allocator_peak_bytes = Some(tidekv_alloc::stats().peak_bytes);
        Ok(Answer {
            window: window_text(engine, &session),
            retained: retained_dump(&session),
            report: RunReport::new(&session, facts),
        })
    }

    fn generate(
        &self,
        session: &mut Session<'_, Cpu>,
        facts: &mut Facts,
        (watch, interrupt): (&Watch<'_>, &Interrupt),
        each: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut answer = session.generate(GenerateConfig {
            sample: self.sample.config(),
            stop: self.sample.stop.clone(),
            cancel: interrupt.flag(),
        })?;
        let mut first: Option<Instant> = None;
        for piece in answer.by_ref() {
            let piece = piece?;
            if first.is_none() {
                facts.ttft_s = watch.elapsed().as_secs_f64();
                first = Some(Instant::now());
            }
            facts.output_token_ids.extend(piece.token);
            facts.output_text.push_str(&piece.text);
            each(&piece.text)?;
        }
        facts.decode_s = first.map_or(0.0, |first| first.elapsed().as_secs_f64());
        facts.finish_reason = answer.finish_reason().map_or("length", FinishReason::name);
        Ok(())
    }
}

/// The last tokens that selection looked from, if the selector observes any.
fn window_text(engine: &Engine<Cpu>, session: &Session<'_, Cpu>) -> Option<String> {
    const SHOWN: usize = 8;
    let shape = &engine.model().spec.shape;
    let selections = session.config().selections(shape, session.prompt().len()).ok()?;
    let window = selections.iter().map(|selection| selection.window()).max().filter(|&w| w > 0)?;
    let tokens = session.prompt();
    let tail = &tokens[tokens.len() - window.min(SHOWN).min(tokens.len())..];
    let names = tail.iter().map(|&id| {
        let text = engine.tokenizer().decode(&[id]).unwrap_or_default();
        let shown =
            if text.is_empty() { engine.tokenizer().token(id).ok()?.to_owned() } else { text };
        Some(format!("{shown:?}"))
    });
    Some(names.collect::<Option<Vec<_>>>()?.join(" "))
}

/// Mapped weights do not count against the limit, but a machine that cannot hold
/// them beside the run will read them from disk again and again.
fn warn_if_machine_is_small(
    engine: &Engine<Cpu>,
    config: &RunConfig,
    n_tokens: usize,
) -> anyhow::Result<()> {
    if n_tokens == 0 || n_tokens > engine.model().spec.shape.context {
        return Ok(());
    }
    let plan = engine.plan(config, n_tokens)?;
    let mapped = engine.model().weight_bytes().mapped;
    let together = plan.peak_bytes().saturating_add(mapped);
    if let Some(installed) = system_memory().installed().filter(|&installed| together > installed) {
        eprintln!(
            "warning: weights ({}) and run ({}) together exceed the machine's {}; the weights will be read from disk repeatedly",
            Bytes(mapped),
            Bytes(plan.peak_bytes()),
            Bytes(installed)
        );
    }
    Ok(())
}

/// What a person wants to know about a run, on a few lines.
fn summary(report: &RunReport) -> String {
    let memory = &report.memory;
    let at = match memory.peak_at.layer {
        Some(layer) => format!("{} of layer {layer}", memory.peak_at.step),
        None => memory.peak_at.step.to_owned(),
    };
    let kept = report.kept.first().and_then(|layer| layer.per_head.first()).copied().unwrap_or(0);
    let parts: Vec<String> = memory
        .components_at_peak
        .iter()
        .filter(|(name, bytes)| **bytes >= 1 << 20 && **name != "weights_mapped")
        .map(|(name, bytes)| format!("{name} {}", Bytes(*bytes)))
        .collect();
    format!(
        "\n  {} tokens read in {} ({:.0} tokens/s), {} generated at {:.1} tokens/s, ended by {}\n  \
         peak {} (planned {}) during {at}: {}\n  transient {}, retained cache {}, {kept} of {} positions per head\n",
        report.prompt_tokens,
        seconds(report.ttft_s),
        report.prompt_tokens as f64 / report.prefill_s.max(1e-9),
        report.generated_tokens,
        report.decode_tokens_per_s,
        report.finish_reason,
        Bytes(memory.accounted_peak_bytes),
        Bytes(memory.planned_peak_bytes),
        parts.join(", "),
        Bytes(memory.transient_peak_bytes),
        Bytes(memory.retained_bytes),
        report.prompt_tokens,
    )
}
