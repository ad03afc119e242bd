//! `tidekv demo`: the main job, on a small model and a made-up document.

mod document;
mod table;

pub use document::prose;

use crate::answers::{Answer, Request};
use crate::exit;
use crate::flags::{CpuFlags, LogprobFlags, Precision, SampleFlags, count, positive};
use crate::interrupt::Interrupt;
use crate::model;
use crate::output::{JsonTarget, Printer, counted, printable, printable_path};
use crate::progress::seconds;
use crate::prompt::{PromptFlags, Source};
use anyhow::{Context, ensure};
use document::{ANSWER_PREFIX, Document, QUESTION, Recipe};
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::Path;
use tidekv::report::RunReport;
use tidekv::schedule::ScheduleKind;
use tidekv::{Backend, Engine, RunConfig};
use tidekv_cpu::Cpu;

/// Read a long document with a small model and find the fact hidden in it
///
/// Fetches SmolLM2-135M-Instruct if it is absent, writes a document of about 5,500 tokens with one
/// access code hidden in it, and asks for the code: once through ordinary layer-end compression
/// (post-prefill), once through TideKV. Both keep the same few positions and give the same answer;
/// the table shows what each needed on the way. Needs no flags; exits with 1 if an answer is wrong
/// or the two disagree.
///
/// The flags are for playing: a smaller budget forgets, a smaller chunk needs less memory, another
/// seed writes another document.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The model
    #[arg(long, default_value = MODEL, long_help = model::MODEL_HELP)]
    model: OsString,
    /// K, positions kept per KV head and layer
    #[arg(long, default_value_t = BUDGET, value_name = "K", value_parser = count)]
    budget: usize,
    /// C, tokens that pass through a layer at a time
    #[arg(long, default_value_t = CHUNK, value_name = "C", value_parser = positive)]
    chunk: NonZeroUsize,
    /// Seed of the document
    #[arg(long, default_value_t = SEED, value_name = "N")]
    seed: u64,
    /// Sentences of the document, about 16 tokens each
    #[arg(long, default_value_t = SENTENCES, value_name = "N", value_parser = positive)]
    sentences: NonZeroUsize,
    /// Where the fact is hidden, in percent of the document
    #[arg(long, default_value_t = DEPTH, value_name = "PERCENT")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    depth: u8,
    #[command(flatten)]
    cpu: CpuFlags,
    /// Write both run reports as JSON; `-` puts the list alone on stdout
    #[arg(long, value_name = "FILE|-", help_heading = "Output")]
    json: Option<JsonTarget>,
}

const MODEL: &str = "smollm2-135m";
const BUDGET: usize = 1024;
const CHUNK: NonZeroUsize = NonZeroUsize::new(512).unwrap();
const SEED: u64 = 1;
const SENTENCES: NonZeroUsize = NonZeroUsize::new(335).unwrap();
const DEPTH: u8 = 50;
/// A code of four digits, the full stop, and room for a wrong answer to show.
const ANSWER_TOKENS: usize = 8;
/// Columns of running text.
const WIDTH: usize = 78;

/// Runs the command.
///
/// # Errors
/// A wrong answer, schedules that disagree, or whatever stops a run.
pub fn demo(args: &Args) -> anyhow::Result<()> {
    if let Some(json) = &args.json {
        json.check(&[Path::new(&args.model)])?;
    }
    let mut printer = Printer::beside(args.json.as_ref(), &[]);
    let interrupt = Interrupt::install()?;
    let cpu = args.cpu.config(Precision::Auto);
    let engine = model::load(&args.model, None, cpu, &interrupt)?;
    let document = args.document();
    let tokens = prompt(&engine, &document)?;
    printer.print(&args.introduction(&engine, &document, tokens.len()))?;

    let _watched = interrupt.watch();
    let mut read = |kind: ScheduleKind| -> anyhow::Result<Answer> {
        let answer = args.answer(&engine, &tokens, kind, &interrupt)?;
        printer.print(&answer_line(&answer.report, &document))?;
        Ok(answer)
    };
    let (ordinary, tide) = (read(ScheduleKind::PostPrefill)?, read(ScheduleKind::Tide)?);
    let reports = [&ordinary.report, &tide.report];
    let written = args.json.as_ref().map_or(Ok(()), |json| json.write(&reports));
    printer.print(&format!("\n{}\n", table::comparison(reports)))?;
    let concluded = conclusion([&ordinary, &tide], &document).and_then(|text| printer.print(&text));
    exit::all([concluded, written, printer.finish()])
}

/// The last line, or the error that makes the command fail.
fn conclusion([ordinary, tide]: [&Answer; 2], document: &Document) -> anyhow::Result<String> {
    ensure!(ordinary.retained == tide.retained, "the schedules kept different positions");
    ensure!(
        ordinary.report.output_token_ids == tide.report.output_token_ids,
        "the schedules gave different answers"
    );
    ensure!(
        is_right(&tide.report.output_text, document),
        "the answer is wrong: the code was {}",
        document.code
    );
    Ok(format!(
        "The same positions kept, the same answer, with {:.0} % less transient memory.\n",
        table::saving([&ordinary.report, &tide.report])
    ))
}

/// The document with its question, in the model's chat format.
fn prompt(engine: &Engine<Cpu>, document: &Document) -> anyhow::Result<Vec<u32>> {
    let prompt = PromptFlags {
        question: Some(QUESTION.to_owned()),
        answer_prefix: Some(ANSWER_PREFIX.to_owned()),
        ..PromptFlags::default()
    };
    Ok(prompt.tokens(Source::Document(document.text()), engine, ANSWER_TOKENS)?.ids)
}

/// Whether an answer begins with the whole code and nothing but the code.
fn is_right(answer: &str, document: &Document) -> bool {
    let rest = answer.trim_start().strip_prefix(&document.code);
    rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric()))
}

fn answer_line(report: &RunReport, document: &Document) -> String {
    let answer = printable(report.output_text.trim());
    let verdict = if is_right(&answer, document) { "right" } else { "WRONG" };
    let time = seconds(report.ttft_s);
    format!("  {:<13} {ANSWER_PREFIX} {answer}   {verdict}, after {time}\n", report.schedule)
}

impl Args {
    fn document(&self) -> Document {
        let sentences = self.sentences.get();
        Document::new(Recipe { seed: self.seed, sentences, depth: usize::from(self.depth) })
    }

    fn introduction(&self, engine: &Engine<Cpu>, document: &Document, n_tokens: usize) -> String {
        let Args { model, depth, budget, chunk, .. } = self;
        let backend = engine.backend();
        format!(
            "{} reads {} on {} ({}). {depth} % into them it says:\n\n\
             {}\n\n  Asked at the end: {QUESTION}\n  Kept of each layer and head: {}. \
             Chunks of tide: {}.\n\n",
            printable_path(model),
            counted(n_tokens, "token"),
            counted(backend.threads(), "thread"),
            backend.name(),
            indented(&format!("... {} ...", document.excerpt()), WIDTH),
            counted(*budget, "position"),
            counted(chunk.get(), "token"),
        )
    }

    fn answer(
        &self,
        engine: &Engine<Cpu>,
        tokens: &[u32],
        kind: ScheduleKind,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Answer> {
        let config = RunConfig {
            schedule: kind.with_chunk(self.chunk),
            budget: self.budget,
            max_new_tokens: ANSWER_TOKENS,
            memory_limit: tidekv::memory::default_limit(),
            ..RunConfig::default()
        };
        let stop = vec![".".to_owned(), "\n".to_owned()];
        let sample = SampleFlags { stop, ..SampleFlags::default() };
        let request = Request {
            prompts: &[tokens],
            config: &config,
            sample: &sample,
            logprobs: LogprobFlags::default(),
            model: &self.model.to_string_lossy(),
            schedule: kind.name(),
        };
        let mut reading = request.read(engine, interrupt)?;
        let answer = reading.answers()?.next_answer(&mut |_| Ok(()))?;
        Ok(answer.context("no prompt was read")??)
    }
}

/// Text broken at spaces into lines of at most `width` columns, indented by two.
fn indented(text: &str, width: usize) -> String {
    let mut lines = vec![String::from(" ")];
    for word in text.split_whitespace() {
        if let Some(line) = lines.last_mut() {
            if line.chars().count() + 1 + word.chars().count() <= width {
                line.push(' ');
                line.push_str(word);
            } else {
                lines.push(format!("  {word}"));
            }
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_code_is_right() {
        let document = Document::new(Recipe { seed: 1, sentences: 3, depth: 50 });
        let code = document.code.clone();
        for answer in [code.clone(), format!(" {code}. It"), format!("{code}\n")] {
            assert!(is_right(&answer, &document), "{answer}");
        }
        for answer in ["", &code[..3], &format!("{code}5"), &format!("not {code}")] {
            assert!(!is_right(answer, &document), "{answer}");
        }
    }

    #[test]
    fn lines_end_at_the_width() {
        assert_eq!(indented("one two  three", 9), "  one two\n  three");
        assert_eq!(indented("", 9), " ");
    }
}
