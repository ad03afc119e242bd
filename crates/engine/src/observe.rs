//! Observers: what a caller can see and stop while a prompt is read.
//!
//! The executor itself neither times nor prints. It tells an observer before
//! and after every step; progress bars, timings, the memory timeline, fidelity
//! checks and cancellation are observers.

use crate::memory::StepMemory;
use crate::schedule::{Cost, Step};
use std::ops::ControlFlow;

/// How far a prefill is: with all the prompts of its batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Operations done before the step.
    pub done: Cost,
    /// Operations of the step.
    pub step: Cost,
    /// Operations of the whole prefill.
    pub total: Cost,
}

/// Access to the numbers of a run between two steps. Reading costs time and is
/// meant for tests and checks.
pub trait Tap {
    /// Hidden states that the last step wrote, `[rows, d_model]`, with the
    /// position of the first row in the step's sequence: after an embed or layer
    /// step.
    fn hidden(&self) -> Option<(usize, Vec<f32>)>;

    /// Keys and values `[Hkv, S, D]` of the sequence and layer that the coming
    /// step compresses: before an evict step.
    fn active_kv(&self) -> Option<(Vec<f32>, Vec<f32>)>;
}

/// Sees every step of a prefill.
///
/// ```
/// use std::ops::ControlFlow;
/// use tidekv::schedule::Step;
/// use tidekv::{Engine, Error, Model, Observer, Progress, RunConfig, Tap};
///
/// /// Stops a prefill half-way.
/// struct Half;
///
/// impl Observer for Half {
///     fn before(&mut self, _: &Step, progress: &Progress, _: &dyn Tap) -> ControlFlow<()> {
///         match progress.done < progress.total / 2.0 {
///             true => ControlFlow::Continue(()),
///             false => ControlFlow::Break(()),
///         }
///     }
/// }
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.gguf");
/// # tidekv_testkit::tiny_llama(1).write_to(&path)?;
/// # let cpu = tidekv_cpu::Cpu::new(tidekv_cpu::CpuConfig::default())?;
/// # let engine = Engine::new(Model::open(&path, None)?, cpu)?;
/// let run = engine.prefill(&[1, 2, 3], &RunConfig::default(), &mut Half);
/// assert!(matches!(run, Err(Error::Cancelled)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Observer {
    /// Called before a step. `Break` cancels the run: its memory is released
    /// and the caller gets [`crate::Error::Cancelled`].
    fn before(&mut self, step: &Step, progress: &Progress, tap: &dyn Tap) -> ControlFlow<()> {
        let _ = (step, progress, tap);
        ControlFlow::Continue(())
    }

    /// Called after a step with the memory it used, that of the whole batch.
    fn after(&mut self, step: &Step, memory: &StepMemory, tap: &dyn Tap) {
        let _ = (step, memory, tap);
    }

    /// Rows of logits, where [`crate::Outputs`] asks for all of them: `[vocab]`,
    /// one row at a time, with its sequence of the batch and its position there.
    fn logits_row(&mut self, seq: usize, position: usize, logits: &[f32]) {
        let _ = (seq, position, logits);
    }
}

/// An observer that sees nothing and never cancels.
#[derive(Debug, Default, Clone, Copy)]
pub struct Unobserved;

impl Observer for Unobserved {}
