//! What a user sees while a prompt is read, and what is measured meanwhile.

use crate::interrupt::Interrupt;
use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use tidekv::memory::{Bytes, StepMemory, process_memory};
use tidekv::schedule::Step;
use tidekv::{Observer, Progress, Tap};

/// Shows progress on stderr, times prefill, watches the process's memory, and
/// cancels on Ctrl-C.
pub struct Watch<'a> {
    interrupt: &'a Interrupt,
    label: String,
    n_layers: usize,
    started: Instant,
    step_started: Instant,
    shown: Option<Instant>,
    style: Style,
    /// Time of layer-end compression.
    pub compress: Duration,
    /// Largest anonymous memory of the process seen, where the system tells.
    pub anon_peak: Option<u64>,
    chunk_number: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// One line, rewritten.
    Terminal,
    /// A line now and then.
    Log,
}

/// How often progress is shown.
const TERMINAL_EVERY: Duration = Duration::from_millis(100);
const LOG_EVERY: Duration = Duration::from_secs(10);

impl<'a> Watch<'a> {
    /// Starts the clock.
    pub fn new(label: impl Into<String>, n_layers: usize, interrupt: &'a Interrupt) -> Self {
        let now = Instant::now();
        tidekv_alloc::reset_peak();
        let terminal = std::io::stderr().is_terminal();
        Watch {
            interrupt,
            label: label.into(),
            n_layers,
            started: now,
            step_started: now,
            shown: None,
            style: if terminal { Style::Terminal } else { Style::Log },
            compress: Duration::ZERO,
            anon_peak: process_memory().anonymous,
            chunk_number: 0,
        }
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn show(&mut self, step: &Step, progress: &Progress, live: u64) {
        let now = Instant::now();
        let every = if self.style == Style::Terminal { TERMINAL_EVERY } else { LOG_EVERY };
        let since = self.shown.unwrap_or(self.started);
        if now - since < every && (self.shown.is_some() || self.style == Style::Log) {
            return;
        }
        self.shown = Some(now);
        let share = progress.done / progress.total;
        let spent = self.started.elapsed().as_secs_f64();
        let left = match share > 0.01 {
            true => format!("{} left · ", seconds(spent / share - spent)),
            false => String::new(),
        };
        let place = match step {
            Step::Layer { layer, .. } => {
                format!("layer {}/{} · chunk {}", layer + 1, self.n_layers, self.chunk_number)
            }
            Step::Evict { layer, .. } => {
                format!("layer {}/{} · compress", layer + 1, self.n_layers)
            }
            Step::Embed { .. } | Step::Head { .. } => step.name().to_owned(),
        };
        let line = format!(
            "{} · {place} · {:.0} % · {left}memory {}",
            self.label,
            100.0 * share,
            Bytes(live)
        );
        let mut stderr = std::io::stderr().lock();
        // Progress that cannot be shown is no reason to stop.
        let _ = match self.style {
            Style::Terminal => write!(stderr, "\r\x1b[2K{line}"),
            Style::Log => writeln!(stderr, "{line}"),
        };
        let _ = stderr.flush();
    }

    /// Removes the progress line.
    pub fn clear(&mut self) {
        if self.style == Style::Terminal && self.shown.take().is_some() {
            eprint!("\r\x1b[2K");
        }
    }
}

impl Observer for Watch<'_> {
    fn before(&mut self, step: &Step, progress: &Progress, _: &dyn Tap) -> ControlFlow<()> {
        if self.interrupt.is_set() {
            self.clear();
            return ControlFlow::Break(());
        }
        if let Step::Layer { chunk, .. } = step {
            self.chunk_number = if chunk.start == 0 { 1 } else { self.chunk_number + 1 };
        }
        let live = tidekv_alloc::stats().live_bytes;
        self.show(step, progress, live);
        self.step_started = Instant::now();
        ControlFlow::Continue(())
    }

    fn after(&mut self, step: &Step, _: &StepMemory, _: &dyn Tap) {
        if matches!(step, Step::Evict { .. }) {
            self.compress += self.step_started.elapsed();
        }
        self.anon_peak = self.anon_peak.max(process_memory().anonymous);
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Seconds for people: `45s`, `2m10s`.
pub fn seconds(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..60 => format!("{whole}s"),
        _ => format!("{}m{:02}s", whole / 60, whole % 60),
    }
}
