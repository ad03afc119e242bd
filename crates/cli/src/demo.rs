//! `tidekv demo`: the main job, on a small model and a made-up document.

use crate::document::{ANSWER_PREFIX, Document, QUESTION};
use crate::flags::{CpuFlags, SampleFlags, count};
use crate::interrupt::Interrupt;
use crate::model;
use crate::output::{JsonTarget, print_text, table};
use crate::progress::seconds;
use crate::prompt::PromptFlags;
use crate::run::{Answer, Request};
use anyhow::ensure;
use std::num::NonZeroUsize;
use tidekv::memory::Bytes;
use tidekv::report::RunReport;
use tidekv::schedule::ScheduleKind;
use tidekv::{Engine, RunConfig};
use tidekv_cpu::Cpu;

/// Read a long document with a small model and find the fact hidden in it.
///
/// Fetches SmolLM2-135M-Instruct if it is absent, writes a document of about 5,500 tokens with one
/// access code hidden in it, and asks for the code: once through ordinary layer-end compression
/// (post-prefill), once through TideKV. Both keep the same few positions and give the same answer;
/// the table shows what each needed to get there. No flags needed.
#[derive(clap::Args)]
pub struct Args {
    /// The model
    #[arg(long, default_value = MODEL, help = model::MODEL_HELP)]
    model: String,
    /// K, positions kept per KV head and layer
    #[arg(long, default_value = "1024", value_name = "K", value_parser = count)]
    budget: usize,
    /// C, tokens that pass through a layer at a time
    #[arg(long, default_value = "512", value_name = "C", value_parser = crate::flags::positive)]
    chunk: NonZeroUsize,
    /// Seed of the document
    #[arg(long, default_value_t = SEED, value_name = "N")]
    seed: u64,
    /// Where the fact is hidden, in percent of the document
    #[arg(long, default_value_t = DEPTH, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(0..100))]
    depth: u64,
    #[command(flatten)]
    cpu: CpuFlags,
    /// Write both run reports as JSON; `-` puts the list alone on stdout
    #[arg(long, value_name = "FILE|-")]
    json: Option<JsonTarget>,
}

const MODEL: &str = "smollm2-135m";
const SEED: u64 = 1;
const DEPTH: u64 = 40;
const SENTENCES: usize = 330;
const ANSWER_TOKENS: usize = 8;

/// Runs the command.
///
/// # Errors
/// A wrong answer, schedules that disagree, or whatever stops a run.
pub fn demo(args: &Args) -> anyhow::Result<()> {
    if let Some(json) = &args.json {
        json.check()?;
    }
    let quiet = args.json == Some(JsonTarget::Stdout);
    let say = |text: &str| if quiet { Ok(()) } else { print_text(text) };
    let interrupt = Interrupt::install()?;
    let engine = model::load(&args.model, None, args.cpu, &interrupt)?;
    let document = Document::new(args.seed, SENTENCES, args.depth as usize);
    let prompt = PromptFlags {
        prompt: Some(document.text.clone()),
        question: Some(QUESTION.to_owned()),
        answer_prefix: Some(ANSWER_PREFIX.to_owned()),
        ..PromptFlags::default()
    };
    let tokens = prompt.build(&engine, usize::MAX)?.ids;
    say(&format!(
        "{} reads a document of {} tokens with an access code hidden {} % into it.\nQuestion: {QUESTION}\n\n",
        args.model,
        tokens.len(),
        args.depth
    ))?;

    let mut answers = Vec::new();
    for kind in [ScheduleKind::PostPrefill, ScheduleKind::Tide] {
        let answer = args.answer(&engine, &tokens, kind, &interrupt)?;
        let right = answer.report.output_text.contains(&document.code);
        let text = answer.report.output_text.trim();
        let verdict = if right { "right" } else { "WRONG" };
        say(&format!("{:<13} {ANSWER_PREFIX} {text}   ({verdict})\n", kind.name()))?;
        answers.push((answer, right));
    }
    let [(ordinary, ordinary_right), (tide, tide_right)] = &answers[..] else {
        unreachable!("two schedules were run")
    };
    say(&comparison(&ordinary.report, &tide.report))?;
    if let Some(json) = &args.json {
        json.write(&[&ordinary.report, &tide.report])?;
    }
    ensure!(ordinary.retained == tide.retained, "the schedules kept different positions");
    ensure!(
        ordinary.report.output_token_ids == tide.report.output_token_ids,
        "the schedules gave different answers"
    );
    ensure!(*ordinary_right && *tide_right, "the answer is wrong: the code was {}", document.code);
    Ok(())
}

impl Args {
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
        let sample = SampleFlags {
            temperature: 0.0,
            top_k: None,
            top_p: 1.0,
            seed: 0,
            stop: vec![".".to_owned(), "\n".to_owned()],
        };
        let request = Request {
            tokens,
            config: &config,
            sample: &sample,
            model: &self.model,
            schedule: kind.name(),
        };
        request.answer(engine, interrupt, &mut |_| Ok(()))
    }
}

/// Both runs side by side.
fn comparison(ordinary: &RunReport, tide: &RunReport) -> String {
    let reports = [ordinary, tide];
    let row = |name: &str, cell: &dyn Fn(&RunReport) -> String| {
        std::iter::once(name.to_owned()).chain(reports.map(cell)).collect::<Vec<_>>()
    };
    let mut rows = vec![row("", &|report| report.schedule.clone())];
    for name in ordinary.memory.components_at_peak.keys().filter(|name| **name != "weights_mapped")
    {
        let bytes = |report: &RunReport| report.memory.components_at_peak[name];
        rows.push(row(name, &|report| Bytes(bytes(report)).to_string()));
    }
    rows.push(row("peak", &|report| Bytes(report.memory.accounted_peak_bytes).to_string()));
    rows.push(row("  planned", &|report| Bytes(report.memory.planned_peak_bytes).to_string()));
    rows.push(row("  transient", &|r| Bytes(r.memory.transient_peak_bytes).to_string()));
    rows.push(row("kept per head", &|report| {
        let kept = report.kept.first().and_then(|layer| layer.per_head.first()).copied();
        format!("{} of {}", kept.unwrap_or(0), report.prompt_tokens)
    }));
    rows.push(row("first token after", &|report| seconds(report.ttft_s)));
    let [before, after] = reports.map(|report| report.memory.transient_peak_bytes as f64);
    format!(
        "\nmemory at the peak\n{}\nThe same cache and the same answer, with {:.0} % less memory on the way.\n",
        table(&rows),
        100.0 * (1.0 - after / before)
    )
}
