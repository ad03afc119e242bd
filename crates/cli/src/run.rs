//! `tidekv run`: read a prompt, answer it, say where the memory went.

use crate::answers::{Answer, Reading, Request};
use crate::exit::{self, Ended};
use crate::files::{check_output, write_file};
use crate::flags::{ChosenChunk, CpuFlags, LogprobFlags, RunFlags, SampleFlags};
use crate::interrupt::Interrupt;
use crate::model;
use crate::output::{JsonTarget, Printer, counted, note, note_lines, printable_path};
use crate::prompt::{Prompt, PromptFlags, Source};
use crate::summary::{Bounds, answer_summary, batch_summary, crowded, summary, window_line};
use anyhow::Context;
use clap::builder::{OsStringValueParser, TypedValueParser};
use serde::Serialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use tidekv::memory::Bytes;
use tidekv::report::RunReport;
use tidekv::{Engine, FinishReason, RunConfig};
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
/// Several prompt files are read together and answered together, which reads the model's weights once
/// for all. The answers are those that each file would get alone; they are printed in order, each
/// under its name. --json then writes an array of reports, one per file with its name as prompt_file,
/// and --dump-retained an array too; in each report memory, prefill_s and compress_s are of all
/// prompts together, and decode_tokens_per_s is the pace of that answer beside the others.
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
    /// Why `--chunk auto` chose the chunk; absent where it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk_reason: Option<String>,
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
    let mut config = RunConfig { outputs: args.logprobs.outputs(), ..args.run.config() };
    let named = args.prompts(sources, &engine)?;
    args.check_text(&engine)?;
    let prompts: Vec<&[u32]> = named.iter().map(|named| named.prompt.ids.as_slice()).collect();
    let chosen = args.choose_chunk(&engine, &mut config, &prompts)?;
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
    args.answer(reading, &named, chosen)
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
        Some(printable_path(self.file.as_ref()?))
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
        note(&format!("the answer is token ids, up to --max-tokens of them: {error}"));
        Ok(())
    }

    /// Puts what `--chunk auto` chooses for the prompts into the settings, and says it.
    fn choose_chunk(
        &self,
        engine: &Engine<Cpu>,
        config: &mut RunConfig,
        prompts: &[&[u32]],
    ) -> anyhow::Result<Option<ChosenChunk>> {
        let n_tokens: Vec<usize> = prompts.iter().map(|tokens| tokens.len()).collect();
        let kind = self.run.schedule;
        let choose = |rates| engine.choose_chunk((config, kind), &n_tokens, rates);
        let rates = || {
            let kept = self.cpu.kept(self.run.cache.storage.precision)?;
            if let Some(other) = kept.said() {
                note(&other);
            }
            Ok(kept.chunk_rates(self.cpu.pack))
        };
        let chosen = self.run.chosen_chunk(rates, choose)?;
        if let Some(chosen) = &chosen {
            config.schedule = kind.with_chunk(chosen.chunk);
            note(&chosen.to_string());
        }
        Ok(chosen)
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
                     with question and template",
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

    /// Prints the answers, one after the other. One that fails costs neither the
    /// others nor their reports.
    fn answer(
        &self,
        mut reading: Reading<'_, '_>,
        named: &[Named],
        chosen: Option<ChosenChunk>,
    ) -> anyhow::Result<()> {
        let files: Vec<&Path> = self.dump_retained.iter().map(PathBuf::as_path).collect();
        let mut printer = Printer::beside(self.json.as_ref(), &files);
        let engine = reading.engine();
        let mut answers = reading.answers()?;
        let (mut ended, mut failed) = (Vec::with_capacity(named.len()), Vec::new());
        for (index, named) in named.iter().enumerate() {
            let gap = if index == 0 { "" } else { "\n" };
            let said = match named.name() {
                Some(name) => printer.print(&format!("{gap}==> {name} <==\n")),
                None => Ok(()),
            };
            let answer = said.and_then(|()| answers.next_answer(&mut |text| printer.print(text)));
            let printed = match answer {
                Ok(None) => break,
                Ok(Some(Ok(answer))) => {
                    let printed = printer.print("\n");
                    note_lines(&self.summary(&answer, named, engine));
                    ended.push((answer, named));
                    printed
                }
                Ok(Some(Err(error))) => {
                    failed.push(Err(named.error(error.into())));
                    Ok(())
                }
                Err(error) => Err(error),
            };
            if printed.is_err() {
                failed.push(printed);
                break;
            }
        }
        if let (true, Some((last, _))) = (named.len() > 1, ended.last()) {
            let n_tokens = named.iter().map(|named| named.prompt.ids.len()).sum();
            note_lines(&batch_summary(named.len(), n_tokens, &last.report, answers.decoded()));
        }
        failed.extend([self.write(ended, named.len(), chosen), printer.finish()]);
        exit::all(failed)
    }

    /// What is said of an answer when it has ended.
    fn summary(&self, answer: &Answer, named: &Named, engine: &Engine<Cpu>) -> String {
        let bounds =
            Bounds { context: engine.model().spec.shape.context, max_tokens: self.run.max_tokens };
        let mut text = match named.name() {
            Some(name) => answer_summary(&name, &answer.report, bounds),
            None => summary(&answer.report, bounds),
        };
        let Prompt { ids, tail, .. } = &named.prompt;
        if let (Some(window), Some(tail)) = (answer.window, *tail) {
            // A prompt that has a tail was text.
            if let Ok(tokenizer) = engine.tokenizer() {
                text += &window_line(tokenizer, ids, window, tail);
            }
        }
        text
    }

    /// Writes the files that were asked for. One that fails does not cost the
    /// other.
    fn write(
        &self,
        answers: Vec<(Answer, &Named)>,
        n_prompts: usize,
        chosen: Option<ChosenChunk>,
    ) -> anyhow::Result<()> {
        if answers.is_empty() {
            return Ok(());
        }
        let is_cancelled = |(answer, _): &(Answer, &Named)| {
            answer.report.finish_reason == FinishReason::Cancelled.name()
        };
        let cancelled = answers.iter().any(is_cancelled);
        let (mut reports, mut kept) = (Vec::new(), Vec::new());
        for (answer, named) in answers {
            kept.push(answer.retained);
            reports.push(Report {
                prompt_file: named.file.as_ref().map(|file| file.to_string_lossy().into_owned()),
                run: answer.report,
                dropped_tokens: named.prompt.dropped,
                template_tail_tokens: named.prompt.tail,
                chunk_reason: chosen.as_ref().map(|chosen| chosen.reason.clone()),
            });
        }
        let dumped = match &self.dump_retained {
            Some(path) => {
                let text = serde_json::to_string(&OneOrAll::new(&kept, n_prompts))?;
                write_file(path, text.as_bytes())
            }
            None => Ok(()),
        };
        let reports = OneOrAll::new(&reports, n_prompts);
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
    note(&format!("reading {what}; the plan's peak is {}{limit}", Bytes(peak)));
    if let Some(warning) = crowded(engine.model().weight_bytes().mapped, peak) {
        note(&warning);
    }
    Ok(())
}
