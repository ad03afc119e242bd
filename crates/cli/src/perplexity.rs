//! `tidekv perplexity`: how well a model foresees a text.

use crate::exit::Ended;
use crate::flags::{CpuFlags, StorageFlags, at_least, positive};
use crate::interrupt::Interrupt;
use crate::model;
use crate::output::{JsonTarget, counted, note, print_report};
use crate::progress::{Extent, Watch};
use crate::prompt::read_text;
use anyhow::Context;
use serde::Serialize;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tidekv::memory::{Bytes, Refusal};
use tidekv::perplexity::{Likelihood, Perplexity, PerplexityConfig, SMALLEST_WINDOW, Windows};
use tidekv::text::Specials;
use tidekv::{Backend, Engine, Error};
use tidekv_cpu::Cpu;

/// Measure how well a model foresees a text
///
/// Perplexity is exp of the mean negative log-likelihood of the text's tokens. A text longer than
/// --context-size is read in windows that begin --stride tokens apart; every token is scored once,
/// in the first window that holds it, so each but those of the first window has at least
/// context size - stride tokens in front. Compare figures only between runs with the same two.
///
/// Where the model's prompts begin with a BOS token, so does every window, and it takes one of its
/// places; otherwise the text's first token has nothing in front and is not scored. Markers such as
/// <|im_end|> in the text are read as text. Rows of logits are not kept: memory is that of reading
/// one window. Nothing is evicted before a token is scored, so the figure is the model's own.
///
///   tidekv perplexity smollm2-135m book.txt
///   tidekv perplexity model.gguf book.txt --context-size 4096 --stride 512 --json -
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[arg(help = model::MODEL_HELP)]
    model: OsString,
    /// The text, UTF-8; `-` reads standard input
    #[arg(value_name = "FILE|-")]
    file: PathBuf,
    /// L, tokens of a window, BOS included [default: the model's context]
    #[arg(long, value_name = "L", value_parser = window)]
    context_size: Option<NonZeroUsize>,
    /// Tokens from the beginning of a window to that of the next [default: half a window]
    #[arg(long, value_name = "N", value_parser = positive)]
    stride: Option<NonZeroUsize>,
    /// C, tokens that pass through a layer at a time; changes no figure
    #[arg(long, default_value = "2048", value_name = "C", value_parser = positive)]
    chunk: NonZeroUsize,
    #[command(flatten)]
    storage: StorageFlags,
    #[command(flatten)]
    cpu: CpuFlags,
    /// Write the figures as JSON; `-` puts the object alone on stdout
    #[arg(long, value_name = "FILE|-", help_heading = "Output")]
    json: Option<JsonTarget>,
}

#[derive(Serialize)]
struct Report {
    model: String,
    file: String,
    /// Of the text, BOS not counted.
    tokens: usize,
    scored_tokens: usize,
    /// Nats per token.
    mean_nll: f64,
    perplexity: f64,
    windows: usize,
    /// Tokens of the longest window, BOS included.
    window_tokens: usize,
    stride: usize,
    bos: Option<u32>,
    kv_type: String,
    bridge_type: String,
    isa: String,
    threads: usize,
    planned_peak_bytes: u64,
    seconds: f64,
}

/// Runs the command.
///
/// # Errors
/// An unreadable or too short text, or whatever stops a run.
pub fn perplexity(args: &Args) -> anyhow::Result<()> {
    if let Some(json) = &args.json {
        json.check(&[Path::new(&args.model), &args.file])?;
    }
    let interrupt = Interrupt::install()?;
    let text = read_text(&args.file)?;
    let storage = &args.storage;
    let cpu = args.cpu.config(storage.precision);
    let engine = model::load(&args.model, storage.rope_scaling, cpu, &interrupt)?;
    let tokenizer = engine.tokenizer().context(
        "perplexity is of a text, which needs a tokenizer: give a file of the model that has a \
         supported one",
    )?;
    let tokens = tokenizer.encode_continuation(&text, Specials::AsText)?;
    drop(text);
    let config = args.config(tokenizer.prompt_bos());
    let measurement = Perplexity::new(&engine, &tokens, &config)?;
    let mut report = args.report(&engine, &measurement, tokens.len())?;
    let peak = Bytes(report.planned_peak_bytes);
    let _watched = interrupt.watch();
    note(&format!(
        "reading {} in {}; the plan's peak is {peak}",
        counted(report.tokens, "token"),
        report.lie()
    ));

    let started = Instant::now();
    let mut sum = Likelihood::default();
    for (index, window) in measurement.windows().iter().enumerate() {
        let number = format!("window {}/{}", index + 1, report.windows);
        let schedule = measurement.run_config().schedule;
        let n_layers = engine.model().spec.shape.n_layers;
        let extent = Extent::new(n_layers, schedule, &[measurement.n_read(&window)]);
        let mut watch = Watch::new(number.as_str(), extent, &interrupt);
        sum += measurement.score(&window, &mut watch)?;
        watch.clear();
        if report.windows > 1 {
            note(&format!("{number}: perplexity so far {:.4}", sum.perplexity()));
        }
    }
    report.seconds = started.elapsed().as_secs_f64();
    report.mean_nll = sum.mean_nll();
    report.perplexity = sum.perplexity();
    if let Some(json) = &args.json {
        json.write(&report)?;
    }
    if args.json != Some(JsonTarget::Stdout) {
        print_report(&report.text())?;
    }
    Ok(())
}

impl Args {
    fn config(&self, bos: Option<u32>) -> PerplexityConfig {
        PerplexityConfig {
            context: self.context_size,
            stride: self.stride,
            bos,
            chunk: self.chunk,
            kv: self.storage.kv(),
            bridge: self.storage.bridge(),
            memory_limit: self.storage.memory_limit(),
        }
    }

    /// The flags of the largest windows that fit, if any do.
    fn smaller_window(
        &self,
        refusal: &Refusal,
        measurement: &Perplexity<'_, Cpu>,
        n_tokens: usize,
    ) -> Option<String> {
        let size = refusal.largest_prompt;
        let lie = |stride| Windows::new(n_tokens, size, stride, measurement.bos());
        lie(None).ok()?;
        let stride = match lie(self.stride) {
            Ok(_) => String::new(),
            Err(_) => format!(" --stride {}", size / 2),
        };
        Some(format!("use --context-size {size}{stride}"))
    }

    /// What is known before the first window has been read.
    fn report(
        &self,
        engine: &Engine<Cpu>,
        measurement: &Perplexity<'_, Cpu>,
        n_tokens: usize,
    ) -> anyhow::Result<Report> {
        let windows = measurement.windows();
        let config = measurement.run_config();
        let window_tokens = windows.iter().map(|window| measurement.n_read(&window)).max();
        let window_tokens = window_tokens.unwrap_or(0);
        let plan = engine.plan(config, window_tokens).map_err(|error| match error {
            Error::Refused(refusal) => {
                let smaller = self.smaller_window(&refusal, measurement, n_tokens);
                Ended::Refused(refused(&refusal, smaller)).into()
            }
            other => anyhow::Error::from(other),
        })?;
        Ok(Report {
            model: self.model.to_string_lossy().into_owned(),
            file: self.file.display().to_string(),
            tokens: n_tokens,
            scored_tokens: windows.n_scored(),
            mean_nll: f64::NAN,
            perplexity: f64::NAN,
            windows: windows.count(),
            window_tokens,
            stride: windows.stride(),
            bos: measurement.bos(),
            kv_type: config.kv.to_string(),
            bridge_type: config.bridge.to_string(),
            isa: engine.backend().name(),
            threads: engine.backend().threads(),
            planned_peak_bytes: plan.peak_bytes(),
            seconds: 0.0,
        })
    }
}

/// A number of tokens that a window can have.
fn window(text: &str) -> Result<NonZeroUsize, String> {
    at_least(text, SMALLEST_WINDOW)
}

/// Why the windows are not read, and what can be done.
fn refused(refusal: &Refusal, smaller_window: Option<String>) -> String {
    let (peak, limit) = Bytes::told_apart(refusal.plan.peak_bytes(), refusal.limit);
    // The floor of these settings says little where a smaller window fits.
    let mut advice = match smaller_window.is_none() || !refusal.suggestions.is_empty() {
        true => refusal.changes(),
        false => Vec::new(),
    };
    let another = |window| format!("{window}, which is another measure: less lies before a token");
    advice.extend(smaller_window.map(another));
    format!(
        "a window of {} needs {peak}, the limit is {limit}; {}",
        counted(refusal.plan.n_tokens, "token"),
        advice.join("; ")
    )
}

impl Report {
    /// How the windows lie.
    fn lie(&self) -> String {
        match self.windows {
            1 => "one window".to_owned(),
            n => format!("{n} windows of {} tokens, {} apart", self.window_tokens, self.stride),
        }
    }

    fn text(&self) -> String {
        let bos = match self.bos {
            Some(id) => format!(", each after BOS (token {id})"),
            None => String::new(),
        };
        format!(
            "perplexity {:.4}\n  mean negative log-likelihood {:.5} nats over {} of {}, {}{bos}\n",
            self.perplexity,
            self.mean_nll,
            self.scored_tokens,
            counted(self.tokens, "token"),
            self.lie()
        )
    }
}
