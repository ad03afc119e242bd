//! `tidekv run`: read a prompt, answer it, say where the memory went.

use crate::exit::{self, Ended};
use crate::files::{check_writable, write_file};
use crate::flags::{CpuFlags, LogprobFlags, RunFlags, SampleFlags};
use crate::interrupt::Interrupt;
use crate::model;
use crate::output::{JsonTarget, Printer, counted, note};
use crate::progress::{Extent, Watch};
use crate::prompt::{Prompt, PromptFlags};
use crate::summary::{Bounds, crowded, summary, window_line};
use anyhow::Context;
use serde::Serialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tidekv::generate::GenerateConfig;
use tidekv::memory::Bytes;
use tidekv::report::{Facts, RetainedDump, RunReport, retained_dump};
use tidekv::sample::{Logprobs, PromptLogprobs};
use tidekv::{Engine, FinishReason, Outputs, RunConfig, Session};
use tidekv_cpu::Cpu;

/// Read a prompt and answer it
///
/// The answer goes to stdout as it comes, everything else to stderr. Examples:
///
///   tidekv run smollm2-135m --prompt "Name three colours."
///   tidekv run model.gguf --prompt-file report.txt --question "Who signed the contract?"
///   cat report.txt | tidekv run model.gguf - --budget 1024 --json run.json
///
/// The model reads the prompt in chunks of C tokens (--chunk), one layer at a time. When a layer has
/// seen the whole prompt, the selector chooses the K positions per KV head (--budget) whose keys and
/// values are kept; the rest is dropped before the next layer. C decides how much memory the prompt
/// takes while it is read, K how much after, and what the answer can draw on. The default selector
/// keeps what the end of the prompt attends to, so put the question last (--question does).
///
/// Memory is planned first: a run that would pass --memory-limit is refused with what would fit
/// (exit code 3). `tidekv plan` says the same without running.
///
/// Exit codes: 0 ok, 1 failed, 2 usage, 3 refused by the memory plan, 130 interrupted.
#[derive(clap::Args)]
#[command(
    verbatim_doc_comment,
    override_usage = "tidekv run [OPTIONS] <MODEL> <--prompt-file FILE | --prompt TEXT | --prompt-ids IDS | ->"
)]
pub struct Args {
    #[arg(help = model::MODEL_HELP)]
    model: OsString,
    #[command(flatten)]
    prompt: PromptFlags,
    #[command(flatten)]
    run: RunFlags,
    #[command(flatten)]
    sample: SampleFlags,
    #[command(flatten)]
    cpu: CpuFlags,
    /// Write the run report; `-` puts the object alone on stdout
    #[arg(long, value_name = "FILE|-", help_heading = "Output")]
    json: Option<JsonTarget>,
    #[command(flatten)]
    logprobs: LogprobFlags,
    /// Write the kept positions of every layer and head
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    dump_retained: Option<PathBuf>,
}

/// The run report, and what happened to an overlong prompt.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    run: RunReport,
    /// Tokens of the document that `--overflow` dropped.
    dropped_tokens: usize,
    /// Tokens at the prompt's end that are the chat template's.
    template_tail_tokens: Option<usize>,
}

/// Runs the command.
///
/// # Errors
/// Anything that keeps the answer from being complete.
pub fn run(args: &Args) -> anyhow::Result<()> {
    args.check_outputs()?;
    let interrupt = Interrupt::install()?;
    let source = args.prompt.read()?;
    let storage = &args.run.cache.storage;
    let cpu = args.cpu.config(storage.precision);
    let engine = model::load(&args.model, storage.rope_scaling, cpu, &interrupt)?;
    let context = engine.model().spec.shape.context;
    let config = args.run.config();
    let prompt = args.prompt.tokens(source, &engine, config.max_new_tokens)?;
    if prompt.dropped > 0 {
        note(&format!(
            "the prompt was longer than the context of {context} tokens: {} of the document \
             dropped, {} left with question and template\n",
            counted(prompt.dropped, "token"),
            counted(prompt.ids.len(), "token")
        ));
    }
    let model = args.model.to_string_lossy();
    let request = Request {
        tokens: &prompt.ids,
        config: &config,
        sample: &args.sample,
        logprobs: args.logprobs,
        model: &model,
        schedule: args.run.schedule.name(),
    };
    let vocab = engine.model().spec.shape.vocab;
    request.settings(&interrupt).validate(vocab).context("--logit-bias")?;
    let _watched = interrupt.watch();
    announce(&engine, &config, &prompt.ids)?;
    let files: Vec<&Path> = args.dump_retained.iter().map(PathBuf::as_path).collect();
    let mut printer = Printer::beside(args.json.as_ref(), &files);
    let answer = request.answer(&engine, &interrupt, &mut |text| printer.print(text))?;
    let ended = printer.print("\n");
    note(&summary(&answer.report, Bounds { context, max_tokens: config.max_new_tokens }));
    if let (Some(window), Some(tail)) = (answer.window, prompt.tail) {
        note(&window_line(engine.tokenizer(), &prompt.ids, window, tail));
    }
    exit::all([args.write(answer, &prompt), printer.finish(), ended])
}

impl Args {
    /// Checks that the files can be written, and are two.
    fn check_outputs(&self) -> anyhow::Result<()> {
        if let (Some(json), Some(path)) = (&self.json, &self.dump_retained) {
            json.check_distinct("--dump-retained", path)?;
        }
        if let Some(json) = &self.json {
            json.check()?;
        }
        self.dump_retained.as_deref().map_or(Ok(()), check_writable)
    }

    /// Writes the files that were asked for. One that fails does not cost the
    /// other.
    fn write(&self, answer: Answer, prompt: &Prompt) -> anyhow::Result<()> {
        let cancelled = answer.report.finish_reason == FinishReason::Cancelled.name();
        let dumped = match &self.dump_retained {
            Some(path) => write_file(path, serde_json::to_string(&answer.retained)?.as_bytes()),
            None => Ok(()),
        };
        let report = Report {
            run: answer.report,
            dropped_tokens: prompt.dropped,
            template_tail_tokens: prompt.tail,
        };
        let reported = self.json.as_ref().map_or(Ok(()), |json| json.write(&report));
        let ended = if cancelled { Err(Ended::Interrupted.into()) } else { Ok(()) };
        exit::all([ended, dumped, reported])
    }
}

/// One prompt to be answered.
pub struct Request<'a> {
    /// Prompt ids.
    pub tokens: &'a [u32],
    /// Settings of the run.
    pub config: &'a RunConfig,
    /// Settings of the answer.
    pub sample: &'a SampleFlags,
    /// What is reported of tokens.
    pub logprobs: LogprobFlags,
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
    /// W of the observation window, if the selector looks from one.
    pub window: Option<usize>,
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
        let extent = Extent::new(n_layers, self.config.schedule, self.tokens.len());
        let mut watch = Watch::new(self.schedule, extent, interrupt);
        let (mut session, prompt_logprobs) = self.prefill(engine, &mut watch)?;
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
            prompt_logprobs,
            logprobs: self.logprobs.logprobs.map(|_| Vec::new()),
            ..Facts::default()
        };
        self.generate(&mut session, &mut facts, (&watch, interrupt), each)?;
        facts.allocator_peak_bytes = Some(tidekv_alloc::stats().peak_bytes);
        Ok(Answer {
            window: window(&session),
            retained: retained_dump(&session),
            report: RunReport::new(&session, facts),
        })
    }

    /// Settings of the answer.
    fn settings(&self, interrupt: &Interrupt) -> GenerateConfig {
        GenerateConfig {
            sample: self.sample.config(),
            stop: self.sample.stop.clone(),
            logprobs: self.logprobs.logprobs,
            cancel: interrupt.flag(),
        }
    }

    /// Reads the prompt, and the log-probabilities of its tokens if they were asked
    /// for.
    fn prefill<'e>(
        &self,
        engine: &'e Engine<Cpu>,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<(Session<'e, Cpu>, Option<Vec<Logprobs>>)> {
        let Some(n_top) = self.logprobs.prompt_logprobs else {
            return Ok((engine.prefill(self.tokens, self.config, watch)?, None));
        };
        let config = RunConfig { outputs: Outputs::AllLogits, ..self.config.clone() };
        let mut all = Vec::with_capacity(self.tokens.len().saturating_sub(1));
        let mut observer = PromptLogprobs {
            prompts: &[self.tokens],
            n_top,
            inner: watch,
            each: &mut |_, _, logprobs| all.push(logprobs),
        };
        let session = engine.prefill(self.tokens, &config, &mut observer)?;
        Ok((session, Some(all)))
    }

    fn generate(
        &self,
        session: &mut Session<'_, Cpu>,
        facts: &mut Facts,
        (watch, interrupt): (&Watch<'_>, &Interrupt),
        each: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut answer = session.generate(self.settings(interrupt))?;
        let mut first: Option<Instant> = None;
        for piece in answer.by_ref() {
            let piece = piece?;
            if first.is_none() {
                facts.ttft_s = watch.elapsed().as_secs_f64();
                first = Some(Instant::now());
            }
            facts.output_token_ids.extend(piece.token);
            facts.output_text.push_str(&piece.text);
            if let Some(all) = &mut facts.logprobs {
                all.extend(piece.logprobs);
            }
            each(&piece.text)?;
        }
        facts.decode_s = first.map_or(0.0, |first| first.elapsed().as_secs_f64());
        facts.finish_reason = answer.finish_reason().map_or("length", FinishReason::name);
        Ok(())
    }
}

/// W of the observation window, if the selector looks from one.
fn window(session: &Session<'_, Cpu>) -> Option<usize> {
    let shape = &session.engine().model().spec.shape;
    let selections = session.config().selections(shape, session.prompt().len()).ok()?;
    selections.iter().map(|selection| selection.window()).max().filter(|&window| window > 0)
}

/// Says what the plan foresees, before the wait.
fn announce(engine: &Engine<Cpu>, config: &RunConfig, tokens: &[u32]) -> anyhow::Result<()> {
    config.check_prompt(&engine.model().spec.shape, tokens)?;
    let plan = engine.plan(config, tokens.len())?;
    let limit = match config.memory_limit {
        Some(limit) => format!(", the limit is {}", Bytes(limit)),
        None => String::new(),
    };
    let peak = plan.peak_bytes();
    let tokens = counted(tokens.len(), "token");
    note(&format!("reading {tokens}; the plan's peak is {}{limit}\n", Bytes(peak)));
    if let Some(warning) = crowded(engine.model().weight_bytes().mapped, peak) {
        note(&warning);
    }
    Ok(())
}
