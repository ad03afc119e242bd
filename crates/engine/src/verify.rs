//! Checks on the user's own model and machine: every order and chunk size gives
//! the same bits, and the ledger follows the plan.
//!
//! A [`Verifier`] runs one prompt through several schedules. Of each run it keeps
//! a hash per layer and row, not the numbers, so a check needs little more memory
//! than the run itself.

mod fingerprint;

use crate::backend::Backend;
use crate::config::{Outputs, RunConfig};
use crate::engine::Engine;
use crate::error::Error;
use crate::memory::{Accountant, Breakdown, Component, Plan, StepMemory};
use crate::observe::Observer;
use crate::report::PeakAt;
use crate::schedule::ScheduleKind;
use fingerprint::{Computed, Kept};
use serde::Serialize;
use std::fmt;
use std::num::NonZeroUsize;

/// One run to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Case {
    /// Order and eviction.
    #[serde(serialize_with = "by_name")]
    pub schedule: ScheduleKind,
    /// C, tokens; a whole-prompt schedule has no use for it.
    pub chunk: NonZeroUsize,
}

fn by_name<S: serde::Serializer>(kind: &ScheduleKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.name())
}

/// The runs that show that neither order nor chunks matter: `one-shot` and
/// `post-prefill` read the whole prompt of `n_tokens` tokens at once, then
/// `chunked`, `tide-noevict` and `tide` take each of `chunks`.
pub fn cases(n_tokens: usize, chunks: &[NonZeroUsize]) -> Vec<Case> {
    let whole = [ScheduleKind::OneShot, ScheduleKind::PostPrefill];
    let chunked = [ScheduleKind::Chunked, ScheduleKind::TideNoEvict, ScheduleKind::Tide];
    let each = |schedule| chunks.iter().map(move |&chunk| Case { schedule, chunk });
    let all = NonZeroUsize::new(n_tokens).unwrap_or(NonZeroUsize::MIN);
    let whole = whole.map(|schedule| Case { schedule, chunk: all });
    whole.into_iter().chain(chunked.into_iter().flat_map(each)).collect()
}

/// Runs one prompt through several schedules and compares them.
///
/// What is computed before eviction is compared with the first run checked; what
/// is kept, with the first run that evicts, or does not, as this one.
pub struct Verifier<'e, B: Backend> {
    engine: &'e Engine<B>,
    tokens: &'e [u32],
    config: &'e RunConfig,
    computed: Option<Computed>,
    evicted: Option<Kept>,
    whole: Option<Kept>,
}

impl<'e, B: Backend> Verifier<'e, B> {
    /// Checks runs of `tokens` under `config`; every case brings its own
    /// schedule.
    pub fn new(engine: &'e Engine<B>, tokens: &'e [u32], config: &'e RunConfig) -> Self {
        Verifier { engine, tokens, config, computed: None, evicted: None, whole: None }
    }

    /// Runs a case and compares it. `observer` sees the run and may cancel it.
    ///
    /// # Errors
    /// Whatever stops a run. A difference is not an error but a verdict.
    pub fn check(&mut self, case: Case, observer: &mut dyn Observer) -> Result<Verdict, Error> {
        let schedule = case.schedule.with_chunk(case.chunk);
        // Every row of the last layer is compared, so every row is computed.
        let config = RunConfig { schedule, outputs: Outputs::AllHidden, ..self.config.clone() };
        let run = fingerprint::take(self.engine, self.tokens, &config, observer)?;
        let kept = if schedule.evicts() { &mut self.evicted } else { &mut self.whole };
        let difference = self
            .computed
            .as_ref()
            .and_then(|first| first.first_difference(&run.computed))
            .or_else(|| kept.as_ref().and_then(|first| first.first_difference(&run.kept)));
        self.computed.get_or_insert(run.computed);
        kept.get_or_insert(run.kept);
        Ok(Verdict { case, difference, unplanned: run.unplanned })
    }
}

/// What a run did, compared with the runs before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The run.
    #[serde(flatten)]
    pub case: Case,
    /// The first number that differs, in the order of computation.
    pub difference: Option<Difference>,
    /// The first step whose memory is not the planned one.
    pub unplanned: Option<Unplanned>,
}

impl Verdict {
    /// Whether nothing differs.
    pub fn passed(&self) -> bool {
        self.difference.is_none() && self.unplanned.is_none()
    }
}

/// One line of a table.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { schedule, chunk } = self.case;
        write!(f, "{:<13} C = {chunk:<7}", schedule.name())?;
        match &self.difference {
            None => f.write_str("same bits")?,
            Some(difference) => write!(f, "DIFFERS first in {difference}")?,
        }
        match &self.unplanned {
            None => f.write_str("   memory as planned"),
            Some(unplanned) => write!(f, "   MEMORY NOT AS PLANNED: {unplanned}"),
        }
    }
}

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Numbers {
    /// Embeddings or a layer's output, `[S, d_model]`.
    Hidden,
    /// Keys before eviction, `[S, Hkv, D]`.
    Keys,
    /// Values before eviction, `[S, Hkv, D]`.
    Values,
    /// Logits of the last token, `[vocab]`.
    Logits,
    /// Positions kept by a KV head.
    KeptPositions,
    /// Keys kept by a KV head.
    KeptKeys,
    /// Values kept by a KV head.
    KeptValues,
}

/// Where two runs differ first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// What differs.
    pub numbers: Numbers,
    /// The layer; `None` for embeddings and logits.
    pub layer: Option<usize>,
    /// The KV head, for what is kept.
    pub head: Option<usize>,
    /// Absolute position of the first differing row.
    pub position: usize,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.numbers, self.layer) {
            (Numbers::Hidden, None) => "the embedding",
            (Numbers::Hidden, Some(_)) => "the output",
            (Numbers::Keys, _) => "the keys",
            (Numbers::Values, _) => "the values",
            (Numbers::Logits, _) => "the logits",
            (Numbers::KeptPositions, _) => "the kept positions",
            (Numbers::KeptKeys, _) => "the kept keys",
            (Numbers::KeptValues, _) => "the kept values",
        })?;
        if let Some(layer) = self.layer {
            write!(f, " of layer {layer}")?;
        }
        if let Some(head) = self.head {
            write!(f, ", head {head},")?;
        }
        write!(f, " at position {}", self.position)
    }
}

/// When a figure was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// At the largest total inside a step.
    HighWater,
    /// When a step had ended.
    After,
    /// The largest total of the run.
    Peak,
    /// The largest bytes of the component in the run.
    Max,
    /// When prefill had ended.
    Held,
}

/// A figure of the ledger that is not the planned one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unplanned {
    /// Which figure.
    pub mark: Mark,
    /// Step of the figure.
    pub at: PeakAt,
    /// Component, as in reports.
    pub component: &'static str,
    /// Bytes planned.
    pub planned_bytes: u64,
    /// Bytes accounted.
    pub accounted_bytes: u64,
}

impl fmt::Display for Unplanned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unplanned { mark, at, component, planned_bytes, accounted_bytes } = self;
        f.write_str(component)?;
        f.write_str(match mark {
            Mark::HighWater => " within",
            Mark::After => " after",
            Mark::Peak => " at the peak, in",
            Mark::Max => " at most, by",
            Mark::Held => " held, by",
        })?;
        write!(f, " {}", at.step)?;
        if let Some(layer) = at.layer {
            write!(f, " of layer {layer}")?;
        }
        write!(f, ": planned {planned_bytes} bytes, accounted {accounted_bytes}")
    }
}

/// The first component of a figure that is not as planned.
fn deviation(
    mark: Mark,
    at: PeakAt,
    planned: &Breakdown,
    accounted: &Breakdown,
) -> Option<Unplanned> {
    let component = Component::ALL.into_iter().find(|&c| planned[c] != accounted[c])?;
    Some(Unplanned {
        mark,
        at,
        component: component.name(),
        planned_bytes: planned[component],
        accounted_bytes: accounted[component],
    })
}

/// The first component in which a step's memory is not as planned.
fn step_deviation(planned: &StepMemory, accounted: &StepMemory) -> Option<Unplanned> {
    assert_eq!(planned.moment, accounted.moment, "plan and executor follow the same steps");
    let at = || PeakAt::from(planned.moment);
    deviation(Mark::HighWater, at(), &planned.high_water, &accounted.high_water)
        .or_else(|| deviation(Mark::After, at(), &planned.after, &accounted.after))
}

/// The first of a finished prefill's figures that is not as planned.
fn run_deviation(plan: &Plan, ledger: &Accountant) -> Option<Unplanned> {
    let (peak, end) = (ledger.peak(), || PeakAt::from(crate::memory::Moment::Decode));
    deviation(Mark::Peak, peak.at.into(), &plan.peak.bytes, &peak.bytes)
        .or_else(|| deviation(Mark::Max, end(), &plan.max, &ledger.max()))
        .or_else(|| deviation(Mark::Held, end(), &plan.held, &ledger.live()))
}
