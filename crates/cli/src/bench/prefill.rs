//! `tidekv bench prefill`: a model's prompts beside the machine's ceilings and the kernels' rates.

use super::{giga, percent, row, unless_interrupted};
use crate::exit;
use crate::flags::{CacheFlags, CpuFlags, positive};
use crate::interrupt::Interrupt;
use crate::model;
use crate::output::{JsonTarget, Printer, counted, printable, table};
use crate::progress::{Extent, Watch, seconds};
use crate::random::Random;
use anyhow::ensure;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;
use tidekv::memory::Bytes;
use tidekv::report::{Facts, MemoryReport, RunReport};
use tidekv::schedule::{Schedule, ScheduleKind, Work};
use tidekv::{Backend, Engine, RunConfig, Session};
use tidekv_cpu::bench::{self, Heads};
use tidekv_cpu::{Cpu, Phase};

/// Measure prefill and decoding of a model
///
/// Reads prompts of random tokens, for every length, chunk and schedule that is asked for, and says
/// how long the first token takes, how much of the machine's peak that is, what the kernels' own
/// rates predict, which phases the time goes to, what memory it takes, and how fast tokens are
/// generated after it. Several rounds take turns, so that a slow minute hits all alike.
///
///   tidekv bench prefill qwen2.5-coder-0.5b --tokens 2k,8k
///   tidekv bench prefill smollm2-135m --tokens 8k --chunk 512,1k,2k,4k
///   tidekv bench prefill model.gguf --tokens 8k --schedules tide,post-prefill,one-shot --rounds 3
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[arg(help = model::MODEL_HELP)]
    model: OsString,
    /// S, tokens of the prompts
    #[arg(long, value_name = "S,S,...", default_value = "2k", value_delimiter = ',')]
    #[arg(value_parser = positive)]
    tokens: Vec<NonZeroUsize>,
    /// C, chunk sizes; schedules of the whole prompt take no part
    #[arg(long, value_name = "C,C,...", default_value = "2k", value_delimiter = ',')]
    #[arg(value_parser = positive)]
    chunk: Vec<NonZeroUsize>,
    /// Schedules to compare
    #[arg(long, value_name = "NAME,NAME,...", default_value = "tide", value_delimiter = ',')]
    schedules: Vec<ScheduleKind>,
    /// Times that every prompt is read; the median counts
    #[arg(long, value_name = "N", default_value = "1", value_parser = positive)]
    rounds: NonZeroUsize,
    /// Tokens to generate after each prompt
    #[arg(long, value_name = "N", default_value = "32", value_parser = positive)]
    decode: NonZeroUsize,
    /// Seed of the prompts
    #[arg(long, value_name = "N", default_value = "0")]
    seed: u64,
    #[command(flatten)]
    cache: CacheFlags,
    #[command(flatten)]
    cpu: CpuFlags,
    /// Write all figures as JSON; `-` puts the object alone on stdout
    #[arg(long, value_name = "FILE|-", help_heading = "Output")]
    json: Option<JsonTarget>,
}

#[derive(Serialize)]
struct Report {
    model: String,
    isa: String,
    threads: usize,
    pack: &'static str,
    selector: String,
    budget: usize,
    /// f32 multiply-adds of all threads, floating-point operations per second.
    f32_peak_flops: f64,
    /// 16-bit products of all threads, operations per second.
    i16_peak_ops: f64,
    runs: Vec<Case>,
}

/// One combination of length, schedule and chunk.
#[derive(Serialize)]
struct Case {
    prompt_tokens: usize,
    schedule: String,
    chunk: usize,
    /// Floating-point operations that the model needs.
    flops: f64,
    /// Seconds by the rates of the kernels alone.
    predicted_s: f64,
    /// Seconds to the first token, of every round.
    ttft_s: Vec<f64>,
    /// Tokens per second after it, of every round; none behind a prompt that fills the context.
    decode_tokens_per_s: Vec<f64>,
    /// Seconds of every phase in the median round.
    phases_s: BTreeMap<&'static str, f64>,
    memory: Option<MemoryReport>,
    #[serde(skip)]
    config: RunConfig,
}

impl Case {
    fn median_s(&self) -> f64 {
        median(&self.ttft_s)
    }

    fn phase(&self, phase: Phase) -> f64 {
        self.phases_s.get(phase.name()).copied().unwrap_or(0.0)
    }

    /// Share of layer-end compression in the time to the first token.
    fn compression(&self) -> f64 {
        (self.phase(Phase::Score) + self.phase(Phase::Gather)) / self.median_s()
    }

    fn name(&self) -> String {
        format!("{} {} C {}", self.prompt_tokens, self.schedule, self.chunk)
    }
}

/// The middle one; of an even number the lower.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() - 1) / 2).copied().unwrap_or(f64::NAN)
}

/// Runs the command.
///
/// # Errors
/// A prompt that the model cannot take, or whatever stops a run.
pub fn prefill(args: &Args, interrupt: &Interrupt) -> anyhow::Result<()> {
    if let Some(json) = &args.json {
        json.check(&[Path::new(&args.model)])?;
    }
    let storage = &args.cache.storage;
    let cpu = args.cpu.config(storage.precision);
    let engine = model::load(&args.model, storage.rope_scaling, cpu, interrupt)?;
    let mut printer = Printer::beside(args.json.as_ref(), &[]);
    let peaks = bench::peaks(engine.backend(), cpu.isa()?);
    let config = args.config();
    let mut report = Report {
        model: args.model.to_string_lossy().into_owned(),
        isa: engine.backend().name(),
        threads: engine.backend().threads(),
        pack: args.cpu.pack.name(),
        selector: config.selector.to_string(),
        budget: config.budget,
        f32_peak_flops: peaks.f32_flops,
        i16_peak_ops: peaks.i16_ops,
        runs: args.cases(&engine)?,
    };
    let _watched = interrupt.watch();
    for _ in 0..args.rounds.get() {
        for case in &mut report.runs {
            args.run(case, &engine, interrupt)?;
        }
    }
    printer.print(&report.text())?;
    let written = args.json.as_ref().map_or(Ok(()), |json| json.write(&report));
    exit::all([written, printer.finish()])
}

impl Args {
    fn config(&self) -> RunConfig {
        RunConfig { max_new_tokens: self.decode.get() + 1, ..self.cache.config() }
    }

    /// What is to be run; refused as a whole before any of it starts.
    fn cases(&self, engine: &Engine<Cpu>) -> anyhow::Result<Vec<Case>> {
        let shape = &engine.model().spec.shape;
        let mut cases = Vec::new();
        for tokens in self.tokens.iter().map(|tokens| tokens.get()) {
            ensure!(
                tokens <= shape.context,
                "--tokens {tokens} is more than the model's context of {} tokens; stretch it with \
                 --rope-scaling",
                shape.context
            );
            let work = Work::of_prompts(shape, &[tokens]);
            for kind in &self.schedules {
                let mut schedules: Vec<Schedule> =
                    self.chunk.iter().map(|&chunk| kind.with_chunk(chunk)).collect();
                // One whole prompt is like another, whatever the chunk.
                schedules.dedup_by_key(|schedule| schedule.chunk().rows(tokens));
                for schedule in schedules {
                    let config = RunConfig { schedule, ..self.config() };
                    engine.plan(&config, tokens)?;
                    let chunk = schedule.chunk().rows(tokens);
                    cases.push(Case {
                        prompt_tokens: tokens,
                        schedule: kind.to_string(),
                        chunk,
                        flops: work.total(),
                        predicted_s: predicted(engine, &work, &config, tokens)?,
                        ttft_s: Vec::new(),
                        decode_tokens_per_s: Vec::new(),
                        phases_s: BTreeMap::new(),
                        memory: None,
                        config,
                    });
                }
            }
        }
        Ok(cases)
    }

    fn run(
        &self,
        case: &mut Case,
        engine: &Engine<Cpu>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let shape = &engine.model().spec.shape;
        let mut random = Random(self.seed);
        let mut token = || random.below(shape.vocab) as u32;
        let tokens: Vec<u32> = (0..case.prompt_tokens).map(|_| token()).collect();
        let extent = Extent::new(shape.n_layers, case.config.schedule, &[tokens.len()]);
        let mut watch = Watch::new(case.name(), extent, interrupt);
        let before = engine.backend().phase_times();
        let mut session = engine.prefill(&tokens, &case.config, &mut watch)?;
        drop(session.logits());
        let ttft_s = watch.elapsed().as_secs_f64();
        watch.clear();
        let times = engine.backend().phase_times().since(&before);
        case.ttft_s.push(ttft_s);
        if case.median_s() == ttft_s {
            case.phases_s =
                Phase::ALL.map(|phase| (phase.name(), times.of(phase).as_secs_f64())).into();
        }
        case.decode_tokens_per_s.extend(decode_rate(&mut session, self.decode.get(), token)?);
        unless_interrupted(interrupt)?;
        let facts =
            Facts { process_peak_anon_bytes: watch.anonymous.bytes(), ttft_s, ..Facts::default() };
        let facts = Facts { allocator_peak_bytes: Some(tidekv_alloc::stats().peak_bytes), ..facts };
        case.memory = Some(RunReport::new(&session, facts).memory);
        Ok(())
    }
}

/// Seconds that the kernels take by themselves, at the rates they have with this chunk.
fn predicted(
    engine: &Engine<Cpu>,
    work: &Work,
    config: &RunConfig,
    n_tokens: usize,
) -> anyhow::Result<f64> {
    /// More rows or keys change no rate, and take long to measure.
    const MOST_ROWS: usize = 2048;
    const MOST_KEYS: usize = 8192;
    let (cpu, shape) = (engine.backend(), &engine.model().spec.shape);
    let rows = config.schedule.chunk().rows(n_tokens).min(MOST_ROWS);
    let products = bench::layer_products(cpu, engine.weights()?, shape.n_layers / 2, rows);
    let heads = Heads::of(shape, config.kv);
    let attention = bench::attention(cpu, &heads, rows, n_tokens.min(MOST_KEYS));
    Ok(work.seconds(products.rate(), attention.rate()))
}

/// Tokens per second of feeding `n` tokens one after the other; `None` behind a prompt that fills the
/// model's context.
fn decode_rate(
    session: &mut Session<'_, Cpu>,
    n: usize,
    mut token: impl FnMut() -> u32,
) -> anyhow::Result<Option<f64>> {
    let n = n.min(session.room());
    if n == 0 {
        return Ok(None);
    }
    let start = Instant::now();
    for _ in 0..n {
        session.feed(token())?;
    }
    Ok(Some(n as f64 / start.elapsed().as_secs_f64()))
}

impl Report {
    fn text(&self) -> String {
        let mut main = vec![row([
            "tokens schedule",
            "first token",
            "tokens/s",
            "GFLOP/s",
            "of f32 peak",
            "predicted",
            "compression",
            "decode/s",
            "peak",
            "transient",
        ])];
        let phases: Vec<Phase> = Phase::ALL
            .into_iter()
            .filter(|&phase| self.runs.iter().any(|run| run.phase(phase) > 0.0))
            .filter(|&phase| phase != Phase::Decode)
            .collect();
        let names = phases.iter().map(|phase| phase.name().to_owned());
        let mut parts = vec![[vec!["seconds".to_owned()], names.collect()].concat()];
        for run in &self.runs {
            let (time, memory) = (run.median_s(), run.memory.as_ref());
            let bytes = |bytes: Option<u64>| bytes.map_or(String::new(), |b| Bytes(b).to_string());
            main.push(row([
                &run.name(),
                &seconds(time),
                &format!("{:.0}", run.prompt_tokens as f64 / time),
                &giga(run.flops / time),
                &percent(run.flops / time / self.f32_peak_flops),
                &seconds(run.predicted_s),
                &format!("{:.1} %", 100.0 * run.compression()),
                &match run.decode_tokens_per_s.as_slice() {
                    [] => "no room".to_owned(),
                    rates => format!("{:.1}", median(rates)),
                },
                &bytes(memory.map(|memory| memory.accounted_peak_bytes)),
                &bytes(memory.map(|memory| memory.transient_peak_bytes)),
            ]));
            let times = phases.iter().map(|&phase| format!("{:.2}", run.phase(phase)));
            parts.push([vec![run.name()], times.collect()].concat());
        }
        format!(
            "{} on {} ({}), {} keeps {}; f32 multiply-adds {} GFLOP/s\n\n{}\n{}",
            printable(&self.model),
            counted(self.threads, "thread"),
            self.isa,
            self.selector,
            self.budget,
            giga(self.f32_peak_flops),
            table(&main),
            table(&parts)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_one_of_the_values() {
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[3.0, 1.0]), 1.0);
        assert_eq!(median(&[9.0, 1.0, 3.0]), 3.0);
    }
}
