//! A timeline of a prefill, which stops at a deadline.
//!
//! ```sh
//! cargo run --release -p tidekv --example observer -- MODEL DOCUMENT SECONDS
//! ```
//!
//! The engine itself neither times nor prints: it tells an `Observer` before and
//! after every step. Progress bars, timings, memory timelines and cancellation are
//! observers, and so is whatever else a program wants to know. A step is one chunk
//! through one layer, or the eviction at a layer's end: a cancelled run stops within
//! one of them and holds no memory afterwards.

use std::error::Error;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidekv::memory::{Bytes, StepMemory};
use tidekv::schedule::Step;
use tidekv::text::Specials;
use tidekv::{Engine, Model, Observer, Progress, RunConfig, Tap};
use tidekv_cpu::{Cpu, CpuConfig};

/// Writes a line for every step and cancels at the deadline.
struct Timeline<'a> {
    out: &'a mut dyn Write,
    started: Instant,
    deadline: Duration,
    step_began: Instant,
    written: io::Result<()>,
}

impl Observer for Timeline<'_> {
    fn before(&mut self, _: &Step, _: &Progress, _: &dyn Tap) -> ControlFlow<()> {
        self.step_began = Instant::now();
        match self.started.elapsed() < self.deadline && self.written.is_ok() {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }

    fn after(&mut self, step: &Step, memory: &StepMemory, _: &dyn Tap) {
        let what = match *step {
            Step::Layer { layer, chunk, .. } => {
                format!("layer {layer}, tokens {}..{}", chunk.start, chunk.end())
            }
            Step::Evict { layer, .. } => format!("evict layer {layer}"),
            _ => step.name().to_owned(),
        };
        self.written = writeln!(
            self.out,
            "{:8.3} s {what:28} {:8.3} s, up to {:>10}, then {:>10}",
            self.started.elapsed().as_secs_f64(),
            self.step_began.elapsed().as_secs_f64(),
            Bytes(memory.high_water.total()),
            Bytes(memory.after.total()),
        );
    }
}

/// Reads a document and writes the timeline, to its end or to the deadline.
pub fn timeline(
    model: &Path,
    document: &str,
    (deadline, out): (Duration, &mut dyn Write),
) -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(Model::open(model, None)?, Cpu::new(CpuConfig::default())?)?;
    let prompt = engine.tokenizer()?.encode(document, Specials::AsText)?;
    let now = Instant::now();
    let mut timeline = Timeline { out, started: now, deadline, step_began: now, written: Ok(()) };
    let read = engine.prefill(&prompt, &RunConfig::default(), &mut timeline);
    timeline.written?;
    let out = timeline.out;
    match read {
        Ok(session) => {
            let peak = session.accountant().peak();
            writeln!(out, "read; the peak was {} ({:?})", Bytes(peak.bytes.total()), peak.at)?;
        }
        // Not a failure: it is what the deadline is for.
        Err(tidekv::Error::Cancelled) => writeln!(out, "cancelled: {deadline:?} are over")?,
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, document, seconds] = &arguments[..] else {
        return Err("usage: observer MODEL DOCUMENT SECONDS".into());
    };
    let deadline = Duration::try_from_secs_f64(seconds.parse()?)?;
    let document = std::fs::read_to_string(document)?;
    timeline(model.as_ref(), &document, (deadline, &mut std::io::stdout()))
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
