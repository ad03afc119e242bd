//! `tidekv run`: read a prompt, answer it, say where the memory went.

use crate::exit::{self, Ended};
use crate::files::{check_output, write_file};
use crate::flags::{CpuFlags, LogprobFlags, RunFlags, SampleFlags};
use crate::interrupt::Interrupt;
use crate::model;
use crate::output::{JsonTarget, Printer, counted, note, printable};
use crate::progress::{Extent, Watch};
use crate::prompt::{Prompt, PromptFlags, Source};
use crate::summary::{Bounds, answer_summary, batch_summary, crowded, summary, window_line};
use anyhow::Context;
use clap::builder::{OsStringValueParser, TypedValueParser};
use serde::Serialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tidekv::generate::GenerateConfig;
use tidekv::memory::Bytes;
use tidekv::report::{Facts, RetainedDump, RunReport, retained_dump};
use tidekv::sample::{Logprobs, PromptLogprobs};
use tidekv::{Engine, FinishReason, RunConfig, Session};
use tidekv_cpu::Cpu;

/// Read a prompt and answer it
///
/// The answer goes to stdout as it comes, everything else to stderr. Examples:
///
///   tidekv run smollm2-135m --prompt "Name three colours."
///   tidekv run model.gguf --prompt-file report.txt --question "Who signed the contract?"
///   cat report.txt | tidekv run model.gguf - --budget 1024 --json run.json
///   tidekv run model.gguf --prompt-file a.txt --prompt-file b.txt --question "Who signed?"
///
/// The model reads the prompt in chunks of C tokens (--chunk), one layer at a time. When a layer has
/// seen the whole prompt, the selector chooses the K positions per KV head (--budget) whose keys and
/// values are kept; the rest is dropped before the next layer. C decides how much memory the prompt
/// takes while it is read, K how much after, and what the answer can draw on. The default selector
/// keeps what the end of the prompt attends to, so put the question last (--question does).
///
/// Several prompt files are read together and answered one after the other, each under its name. The
/// answers are those that each file would get alone. --json then writes an array of reports, one per
/// file with its name as prompt_file, and --dump-retained an array too; in each report memory,
/// prefill_s and compress_s are of all prompts together, and ttft_s includes the answers before.
///
/// Memory is planned first: a run that would pass --memory-limit is refused with what would fit
/// (exit code 3), such as fewer prompts at a time. `tidekv plan` says the same without running.
///
/// Exit codes: 0 ok, 1 failed, 2 usage, 3 refused by the memory plan, 130 interrupted.
#[derive(clap::Args)]
#[command(
    verbatim_doc_comment,
    override_usage = "tidekv run [OPTIONS] <MODEL> <--prompt-file FILE... | --prompt TEXT | --prompt-ids IDS | ->"
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
    /// Write the run report, an array of them for several prompts; `-` puts it alone on stdout
    #[arg(long, value_name = "FILE|-", help_heading = "Output")]
    json: Option<JsonTarget>,
    #[command(flatten)]
    logprobs: LogprobFlags,
    /// Write the kept positions of every layer and head, an array for several prompts
    #[arg(long, value_name = "FILE", value_parser = OsStringValueParser::new().try_map(file_name), help_heading = "Output")]
    dump_retained: Option<PathBuf>,
}

/// A file's name; stdout has the answer or the report.
fn file_name(name: OsString) -> Result<PathBuf, &'static str> {
    match name.to_str() {
        Some("-") => Err("stdout has the answer or --json; give a file (./- for one of this name)"),
        Some("") => Err("give a file"),
        _ => Ok(PathBuf::from(name)),
    }
}

/// The run report of a prompt, and what happened to one that was too long.
#[derive(Serialize)]
struct Report {
    /// Where the prompt comes from; absent unless several were given.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_file: Option<String>,
    #[serde(flatten)]
    run: RunReport,
    /// Tokens of the document that `--overflow` dropped.
    dropped_tokens: usize,
    /// Tokens at the prompt's end that are the chat template's.
    template_tail_tokens: Option<usize>,
}

/// A prompt, with its file if there are several.
struct Named {
    file: Option<PathBuf>,
    prompt: Prompt,
}

/// Runs the command.
///
/// # Errors
/// Anything that keeps an answer from being complete.
pub fn run(args: &Args) -> anyhow::Result<()> {
    args.check_outputs()?;
    let interrupt = Interrupt::install()?;
    let sources = args.prompt.read()?;
    let storage = &args.run.cache.storage;
    let cpu = args.cpu.config(storage.precision);
    let engine = model::load(&args.model, storage.rope_scaling, cpu, &interrupt)?;
    let config = RunConfig { outputs: args.logprobs.outputs(), ..args.run.config() };
    let named = args.prompts(sources, &engine)?;
    args.check_text(&engine)?;
    let prompts: Vec<&[u32]> = named.iter().map(|named| named.prompt.ids.as_slice()).collect();
    let model = args.model.to_string_lossy();
    let request = Request {
        prompts: &prompts,
        config: &config,
        sample: &args.sample,
        logprobs: args.logprobs,
        model: &model,
        schedule: args.run.schedule.name(),
    };
    let vocab = engine.model().spec.shape.vocab;
    request.settings(&interrupt).validate(vocab).context("--logit-bias")?;
    let _watched = interrupt.watch();
    let read =
        announce(&engine, &config, &prompts).and_then(|()| request.read(&engine, &interrupt));
    let reading = read.map_err(|error| with_file(error, &named))?;
    args.answer(reading, &named, &interrupt)
}

/// The error with the file of the prompt that it is about.
fn with_file(error: anyhow::Error, named: &[Named]) -> anyhow::Error {
    let about = match error.downcast_ref() {
        Some(tidekv::Error::OfPrompt { index, .. }) => named.get(*index),
        _ => None,
    };
    match about {
        Some(named) => named.error(error),
        None => error,
    }
}

impl Named {
    /// The file's name, if there are several.
    fn name(&self) -> Option<String> {
        Some(printable(&self.file.as_ref()?.to_string_lossy()))
    }

    /// What is wrong with the prompt, with its file's name.
    fn error(&self, error: anyhow::Error) -> anyhow::Error {
        match self.name() {
            Some(name) => error.context(name),
            None => error,
        }
    }
}

impl Args {
    /// Checks that the files can be written, are two, and none that is read.
    fn check_outputs(&self) -> anyhow::Result<()> {
        if let (Some(json), Some(path)) = (&self.json, &self.dump_retained) {
            json.check_distinct("--dump-retained", path)?;
        }
        let mut inputs = vec![Path::new(&self.model)];
        inputs.extend(self.prompt.prompt_file.iter().map(PathBuf::as_path));
        if let Some(json) = &self.json {
            json.check(&inputs)?;
        }
        self.dump_retained.as_deref().map_or(Ok(()), |path| check_output(path, &inputs))
    }

    /// Says that the answer will be token ids where the model's text cannot be read.
    ///
    /// # Errors
    /// Stop strings, which need text.
    fn check_text(&self, engine: &Engine<Cpu>) -> anyhow::Result<()> {
        let Err(error) = engine.tokenizer() else { return Ok(()) };
        if !self.sample.stop.is_empty() {
            return Err(error).context("--stop looks for text in the answer");
        }
        note(&format!("the answer is token ids, up to --max-tokens of them: {error}\n"));
        Ok(())
    }

    /// The prompts as token ids. Says where one was cut.
    fn prompts(&self, sources: Vec<Source>, engine: &Engine<Cpu>) -> anyhow::Result<Vec<Named>> {
        let context = engine.model().spec.shape.context;
        let several = sources.len() > 1;
        let mut files = self.prompt.prompt_file.iter().filter(|_| several).cloned();
        let named = |source| {
            let nothing = Prompt { ids: Vec::new(), dropped: 0, tail: None };
            let named = Named { file: files.next(), prompt: nothing };
            let prompt = self.prompt.tokens(source, engine, self.run.max_tokens);
            let prompt = prompt.map_err(|error| named.error(error))?;
            if prompt.dropped > 0 {
                note(&format!(
                    "{} was longer than the context of {}: {} of the document dropped, {} left \
                     with question and template\n",
                    named.name().unwrap_or_else(|| "the prompt".to_owned()),
                    counted(context, "token"),
                    counted(prompt.dropped, "token"),
                    counted(prompt.ids.len(), "token")
                ));
            }
            Ok(Named { prompt, ..named })
        };
        sources.into_iter().map(named).collect()
    }

    /// Answers the prompts, one after the other. One that fails does not cost the
    /// reports of those before it.
    fn answer(
        &self,
        mut reading: Reading<'_, '_>,
        named: &[Named],
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let files: Vec<&Path> = self.dump_retained.iter().map(PathBuf::as_path).collect();
        let mut printer = Printer::beside(self.json.as_ref(), &files);
        let mut answers = Vec::with_capacity(named.len());
        let mut failed = Ok(());
        for (index, named) in named.iter().enumerate() {
            // After an interruption the rest is reported as such, and nothing said.
            let silent = index > 0 && interrupt.is_set();
            let said = match (named.name(), silent) {
                (Some(name), false) if index == 0 => printer.print(&format!("==> {name} <==\n")),
                (Some(name), false) => printer.print(&format!("\n==> {name} <==\n")),
                _ => Ok(()),
            };
            let answer = said.and_then(|()| reading.next_answer(&mut |text| printer.print(text)));
            match answer {
                Ok(None) => break,
                Ok(Some(answer)) => {
                    if !silent {
                        failed = printer.print("\n");
                        note(&self.summary(&answer, named, &reading));
                    }
                    answers.push(answer);
                }
                Err(error) => failed = Err(named.error(error)),
            }
            if failed.is_err() {
                break;
            }
        }
        if let (true, Some(last)) = (named.len() > 1, answers.last()) {
            let n_tokens = named.iter().map(|named| named.prompt.ids.len()).sum();
            note(&batch_summary(named.len(), n_tokens, &last.report));
        }
        exit::all([failed, self.write(answers, named), printer.finish()])
    }

    /// What is said of an answer when it has ended.
    fn summary(&self, answer: &Answer, named: &Named, reading: &Reading<'_, '_>) -> String {
        let bounds = Bounds {
            context: reading.engine.model().spec.shape.context,
            max_tokens: self.run.max_tokens,
        };
        let mut text = match named.name() {
            Some(name) => answer_summary(&name, &answer.report, bounds),
            None => summary(&answer.report, bounds),
        };
        let Prompt { ids, tail, .. } = &named.prompt;
        if let (Some(window), Some(tail)) = (answer.window, *tail) {
            // A prompt that has a tail was text.
            if let Ok(tokenizer) = reading.engine.tokenizer() {
                text += &window_line(tokenizer, ids, window, tail);
            }
        }
        text
    }

    /// Writes the files that were asked for. One that fails does not cost the
    /// other.
    fn write(&self, answers: Vec<Answer>, named: &[Named]) -> anyhow::Result<()> {
        if answers.is_empty() {
            return Ok(());
        }
        let is_cancelled =
            |answer: &Answer| answer.report.finish_reason == FinishReason::Cancelled.name();
        let cancelled = answers.iter().any(is_cancelled);
        let (mut reports, mut kept) = (Vec::new(), Vec::new());
        for (answer, named) in answers.into_iter().zip(named) {
            kept.push(answer.retained);
            reports.push(Report {
                prompt_file: named.file.as_ref().map(|file| file.to_string_lossy().into_owned()),
                run: answer.report,
                dropped_tokens: named.prompt.dropped,
                template_tail_tokens: named.prompt.tail,
            });
        }
        let dumped = match &self.dump_retained {
            Some(path) => {
                let text = serde_json::to_string(&OneOrAll::new(&kept, named.len()))?;
                write_file(path, text.as_bytes())
            }
            None => Ok(()),
        };
        let reports = OneOrAll::new(&reports, named.len());
        let reported = self.json.as_ref().map_or(Ok(()), |json| json.write(&reports));
        let ended = if cancelled { Err(Ended::Interrupted.into()) } else { Ok(()) };
        exit::all([ended, dumped, reported])
    }
}

/// What is written of one prompt as it is, of several as an array.
#[derive(Serialize)]
#[serde(untagged)]
enum OneOrAll<'a, T> {
    One(&'a T),
    All(&'a [T]),
}

impl<'a, T> OneOrAll<'a, T> {
    /// What there is of `n_prompts` prompts; it may be less than was asked for.
    fn new(all: &'a [T], n_prompts: usize) -> Self {
        match all {
            [one] if n_prompts == 1 => OneOrAll::One(one),
            _ => OneOrAll::All(all),
        }
    }
}

/// Prompts to be read together and answered one after the other.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Ids of every prompt.
    pub prompts: &'a [&'a [u32]],
    /// Settings of the run.
    pub config: &'a RunConfig,
    /// Settings of the answers.
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

/// Log-probabilities of the tokens of every prompt.
type PerPrompt = Vec<Vec<Logprobs>>;

/// Prompts that have been read, and whose answers are still to come.
pub struct Reading<'r, 'e> {
    request: Request<'r>,
    engine: &'e Engine<Cpu>,
    interrupt: &'r Interrupt,
    watch: Watch<'r>,
    prefill_s: f64,
    sessions: std::vec::IntoIter<Session<'e, Cpu>>,
    /// Of every prompt, where they were asked for.
    prompt_logprobs: Option<std::vec::IntoIter<Vec<Logprobs>>>,
}

impl<'r> Request<'r> {
    /// Reads the prompts.
    ///
    /// # Errors
    /// Whatever stops the run.
    pub fn read<'e>(
        &self,
        engine: &'e Engine<Cpu>,
        interrupt: &'r Interrupt,
    ) -> anyhow::Result<Reading<'r, 'e>> {
        let n_layers = engine.model().spec.shape.n_layers;
        let n_tokens: Vec<usize> = self.prompts.iter().map(|tokens| tokens.len()).collect();
        let extent = Extent::new(n_layers, self.config.schedule, &n_tokens);
        let mut watch = Watch::new(self.schedule, extent, interrupt);
        let (sessions, prompt_logprobs) = self.prefill(engine, &mut watch)?;
        let prefill_s = watch.elapsed().as_secs_f64();
        watch.clear();
        Ok(Reading {
            request: *self,
            engine,
            interrupt,
            watch,
            prefill_s,
            sessions: sessions.into_iter(),
            prompt_logprobs: prompt_logprobs.map(Vec::into_iter),
        })
    }

    /// Settings of an answer.
    fn settings(&self, interrupt: &Interrupt) -> GenerateConfig {
        GenerateConfig {
            sample: self.sample.config(),
            stop: self.sample.stop.clone(),
            logprobs: self.logprobs.logprobs,
            cancel: interrupt.flag(),
        }
    }

    /// Reads the prompts, and the log-probabilities of their tokens if they were
    /// asked for.
    fn prefill<'e>(
        &self,
        engine: &'e Engine<Cpu>,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<(Vec<Session<'e, Cpu>>, Option<PerPrompt>)> {
        let Some(n_top) = self.logprobs.prompt_logprobs else {
            return Ok((engine.prefill_batch(self.prompts, self.config, watch)?, None));
        };
        let mut all = vec![Vec::new(); self.prompts.len()];
        let mut observer = PromptLogprobs {
            prompts: self.prompts,
            n_top,
            inner: watch,
            each: &mut |seq, _, logprobs| all[seq].push(logprobs),
        };
        let sessions = engine.prefill_batch(self.prompts, self.config, &mut observer)?;
        Ok((sessions, Some(all)))
    }
}

impl Reading<'_, '_> {
    /// Generates the answer to the next prompt and lets go of its cache; `each` gets
    /// the text as it comes, or the ids where the model's text cannot be read. `None` after the last.
    ///
    /// # Errors
    /// Whatever stops the run.
    pub fn next_answer(
        &mut self,
        each: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<Option<Answer>> {
        let Some(mut session) = self.sessions.next() else { return Ok(None) };
        let request = self.request;
        let mut facts = Facts {
            model: request.model.to_owned(),
            schedule: request.schedule.to_owned(),
            prefill_s: self.prefill_s,
            ttft_s: self.watch.elapsed().as_secs_f64(),
            compress_s: self.watch.compress.as_secs_f64(),
            seed: request.sample.seed,
            process_peak_anon_bytes: self.watch.anonymous.bytes(),
            prompt_logprobs: self.prompt_logprobs.as_mut().and_then(Iterator::next),
            logprobs: request.logprobs.logprobs.map(|_| Vec::new()),
            ..Facts::default()
        };
        self.generate(&mut session, &mut facts, each)?;
        facts.allocator_peak_bytes = Some(tidekv_alloc::stats().peak_bytes);
        Ok(Some(Answer {
            window: window(&session),
            retained: retained_dump(&session),
            report: RunReport::new(&session, facts),
        }))
    }

    fn generate(
        &self,
        session: &mut Session<'_, Cpu>,
        facts: &mut Facts,
        each: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut answer = session.generate(self.request.settings(self.interrupt))?;
        let has_text = self.engine.tokenizer().is_ok();
        let mut first: Option<Instant> = None;
        for piece in answer.by_ref() {
            let piece = piece?;
            if first.is_none() {
                facts.ttft_s = self.watch.elapsed().as_secs_f64();
                first = Some(Instant::now());
            }
            facts.output_token_ids.extend(piece.token);
            facts.output_text.push_str(&piece.text);
            if let Some(all) = &mut facts.logprobs {
                all.extend(piece.logprobs);
            }
            match piece.token {
                Some(id) if !has_text => each(&format!("{id} "))?,
                _ => each(&piece.text)?,
            }
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
fn announce(engine: &Engine<Cpu>, config: &RunConfig, prompts: &[&[u32]]) -> anyhow::Result<()> {
    config.check_prompts(&engine.model().spec.shape, prompts)?;
    let n_tokens: Vec<usize> = prompts.iter().map(|tokens| tokens.len()).collect();
    let plan = engine.plan_batch(config, &n_tokens)?;
    let limit = match config.memory_limit {
        Some(limit) => format!(", the limit is {}", Bytes(limit)),
        None => String::new(),
    };
    let peak = plan.peak_bytes();
    let tokens = counted(plan.n_tokens, "token");
    let what = match plan.n_prompts {
        1 => tokens,
        n => format!("{n} prompts with {tokens} in all"),
    };
    note(&format!("reading {what}; the plan's peak is {}{limit}\n", Bytes(peak)));
    if let Some(warning) = crowded(engine.model().weight_bytes().mapped, peak) {
        note(&warning);
    }
    Ok(())
}
