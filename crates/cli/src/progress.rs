//! What a user sees while a prompt is read, and what is measured meanwhile.

use crate::interrupt::Interrupt;
use crate::output::{note, rewrite_line};
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use tidekv::memory::{AnonymousPeak, Bytes, StepMemory};
use tidekv::schedule::{Schedule, Step};
use tidekv::{Observer, Progress, Tap};

/// Shows progress on stderr, times prefill, watches the process's memory, and
/// cancels on Ctrl-C.
pub struct Watch<'a> {
    interrupt: &'a Interrupt,
    label: String,
    extent: Extent,
    started: Instant,
    step_started: Instant,
    shown: Option<Instant>,
    style: Style,
    /// Planned buffers alive after the last step; `None` before the first.
    live: Option<u64>,
    /// Time of layer-end compression.
    pub compress: Duration,
    /// Largest anonymous memory of the process meanwhile.
    pub anonymous: AnonymousPeak,
}

/// How much there is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    n_layers: usize,
    schedule: Schedule,
    /// S of every prompt.
    n_tokens: Vec<usize>,
}

impl Extent {
    /// Prompts of `n_tokens` tokens each through `n_layers` layers.
    pub fn new(n_layers: usize, schedule: Schedule, n_tokens: &[usize]) -> Self {
        Extent { n_layers, schedule, n_tokens: n_tokens.to_vec() }
    }

    /// Where a step is, for people.
    fn place(&self, step: &Step) -> String {
        let n_layers = self.n_layers;
        let layer_number = step.layer().map_or(0, |layer| layer + 1);
        let prompt = match self.n_tokens.len() {
            1 => String::new(),
            n => format!(" · prompt {}/{n}", step.seq() + 1),
        };
        match step {
            Step::Layer { seq, chunk: rows, .. } => {
                let n_tokens = self.n_tokens[*seq];
                let chunk = self.schedule.chunk().rows(n_tokens).max(1);
                let (number, n_chunks) = (rows.start / chunk + 1, n_tokens.div_ceil(chunk));
                format!("layer {layer_number}/{n_layers}{prompt} · chunk {number}/{n_chunks}")
            }
            Step::Evict { .. } => format!("layer {layer_number}/{n_layers}{prompt} · compress"),
            _ => format!("{}{prompt}", step.name()),
        }
    }
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
    pub fn new(label: impl Into<String>, extent: Extent, interrupt: &'a Interrupt) -> Self {
        let now = Instant::now();
        tidekv_alloc::reset_peak();
        let terminal = std::io::stderr().is_terminal();
        Watch {
            interrupt,
            label: label.into(),
            extent,
            started: now,
            step_started: now,
            shown: None,
            style: if terminal { Style::Terminal } else { Style::Log },
            live: None,
            compress: Duration::ZERO,
            anonymous: AnonymousPeak::start(),
        }
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn show(&mut self, step: &Step, progress: &Progress) {
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
            true => format!(" · {} left", seconds(spent / share - spent)),
            false => String::new(),
        };
        let memory = self.live.map_or(String::new(), |live| format!(" · memory {}", Bytes(live)));
        let line = format!(
            "{} · {} · {:.0} %{left}{memory}",
            self.label,
            self.extent.place(step),
            100.0 * share
        );
        match self.style {
            Style::Terminal => rewrite_line(&line),
            Style::Log => note(&line),
        }
    }

    /// Removes the progress line.
    pub fn clear(&mut self) {
        if self.style == Style::Terminal && self.shown.take().is_some() {
            rewrite_line("");
        }
    }
}

impl Observer for Watch<'_> {
    fn before(&mut self, step: &Step, progress: &Progress, _: &dyn Tap) -> ControlFlow<()> {
        if self.interrupt.is_set() {
            self.clear();
            return ControlFlow::Break(());
        }
        self.show(step, progress);
        self.step_started = Instant::now();
        ControlFlow::Continue(())
    }

    fn after(&mut self, step: &Step, memory: &StepMemory, _: &dyn Tap) {
        self.live = Some(memory.after.total());
        if matches!(step, Step::Evict { .. }) {
            self.compress += self.step_started.elapsed();
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Seconds for people: `4.5s`, `45s`, `2m10s`.
pub fn seconds(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..10 => format!("{:.1}s", seconds.max(0.0)),
        10..60 => format!("{whole}s"),
        _ => format!("{}m{:02}s", whole / 60, whole % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;
    use tidekv::schedule::ScheduleKind;

    #[test]
    fn seconds_are_short() {
        let shown = [0.04, 4.46, 45.2, 59.7, 130.0, -1.0, f64::NAN].map(seconds);
        assert_eq!(shown, ["0.0s", "4.5s", "45s", "1m00s", "2m10s", "0.0s", "0.0s"]);
    }

    #[test]
    fn places_count_from_one_in_every_order() {
        for kind in [ScheduleKind::Tide, ScheduleKind::Chunked] {
            let schedule = kind.with_chunk(NonZeroUsize::new(4).unwrap());
            let places = |n_tokens: &[usize]| -> Vec<String> {
                let extent = Extent::new(2, schedule, n_tokens);
                let layers = schedule.steps(2, n_tokens);
                let layers = layers.filter(|step| matches!(step, Step::Layer { .. }));
                layers.map(|step| extent.place(&step)).collect()
            };
            let one = places(&[9]);
            assert_eq!(one[0], "layer 1/2 · chunk 1/3");
            assert_eq!(one[5], "layer 2/2 · chunk 3/3");
            let two = places(&[9, 2]);
            assert_eq!(two[0], "layer 1/2 · prompt 1/2 · chunk 1/3");
            assert_eq!(two[7], "layer 2/2 · prompt 2/2 · chunk 1/1");
        }
    }
}
