//! The plan: a run's memory, known before it starts.
//!
//! It folds over the steps the executor will follow ([`Schedule::steps`], of which
//! only a sequence's first chunk counts) and
//! over the size functions the executor allocates with, and keeps the largest
//! total *within* each step. It is deliberately not the executor run on a dry
//! backend: it is a second statement of what lives when, so that "plan equals
//! accountant" is a check and not a tautology. The price is that it must be kept
//! in step with `prefill`; the tests see to that.

use super::{Breakdown, Component, Moment, Peak, StepMemory, layout};
use crate::backend::Sizes;
use crate::config::{Outputs, RunConfig};
use crate::error::Error;
use crate::model::Shape;
use crate::schedule::{Step, longest};
use crate::select::{LayerContext, ScoreRows, ScoreSource, SelectionLayout};

/// Bytes of a model's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightBytes {
    /// Held in memory.
    pub held: u64,
    /// Mapped from the file.
    pub mapped: u64,
}

/// What a plan is made for.
#[derive(Clone, Copy)]
pub struct PlanInput<'a> {
    /// The model's dimensions.
    pub shape: &'a Shape,
    /// The model's weights.
    pub weights: WeightBytes,
    /// The backend's buffers.
    pub sizes: &'a dyn Sizes,
    /// The run's settings.
    pub config: &'a RunConfig,
    /// S of every prompt of the batch.
    pub n_tokens: &'a [usize],
}

/// Memory of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// B.
    pub n_prompts: usize,
    /// S, summed over the prompts.
    pub n_tokens: usize,
    /// The largest total, what makes it up and when it is reached.
    pub peak: Peak,
    /// The largest bytes of each component.
    pub max: Breakdown,
    /// Live bytes when prefill has ended and its workspace is gone.
    pub held: Breakdown,
}

impl Plan {
    /// Bytes at the peak.
    pub fn peak_bytes(&self) -> u64 {
        self.peak.bytes.total()
    }

    /// The peak minus what is still held after prefill.
    pub fn transient_bytes(&self) -> u64 {
        self.peak_bytes().saturating_sub(self.held.held())
    }

    /// Bytes of the compressed caches.
    pub fn retained_bytes(&self) -> u64 {
        self.held[Component::RetainedKv]
    }

    /// Bytes that the run allocates on top of the weights.
    pub fn run_bytes(&self) -> u64 {
        self.peak_bytes().saturating_sub(self.max[Component::Weights])
    }
}

/// Plans a run of a batch of prompts. [`crate::Engine::plan`] does so for a loaded model;
/// here the model need not exist:
///
/// ```
/// use std::num::NonZeroUsize;
/// use tidekv::RunConfig;
/// use tidekv::memory::{Component, PlanInput, WeightBytes, plan};
/// use tidekv::model::Shape;
/// use tidekv_cpu::{CpuConfig, CpuSizes};
///
/// let four_threads = CpuConfig { threads: NonZeroUsize::new(4), ..CpuConfig::default() };
/// let plan = plan(&PlanInput {
///     shape: &Shape::named("llama-3.1-8b").ok_or("no such shape")?,
///     weights: WeightBytes { held: 1 << 20, mapped: 5 << 30 },
///     sizes: &CpuSizes::new(&four_threads)?,
///     config: &RunConfig::default(),
///     n_tokens: &[131_072],
/// })?;
/// // Hidden states of the prompt between layers, and what is left of all K/V: bytes.
/// assert_eq!(plan.max[Component::Bridge], 1 << 30);
/// assert_eq!(plan.retained_bytes(), 512 << 20);
/// assert!(plan.peak_bytes() < 3 << 30);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::EmptyBatch`], [`Error::EmptyPrompt`], or a selector that cannot work on
/// a prompt; of several prompts the error says which ([`Error::OfPrompt`]).
pub fn plan(input: &PlanInput<'_>) -> Result<Plan, Error> {
    let PlanInput { shape, config, n_tokens, .. } = *input;
    // A layer's room is made for its first chunk and serves the others: their steps
    // find and leave what the first has left ([`Fold::step`]).
    fold(input, config.schedule.first_steps(shape.n_layers, n_tokens), |_| ())
}

/// Plans a run and hands the memory of every step to `each`. The plan is that of
/// [`plan`], and takes as long to make as there are steps.
///
/// # Errors
/// As [`plan`].
pub fn plan_steps(input: &PlanInput<'_>, each: impl FnMut(&StepMemory)) -> Result<Plan, Error> {
    let PlanInput { shape, config, n_tokens, .. } = *input;
    fold(input, config.schedule.steps(shape.n_layers, n_tokens), each)
}

fn fold(
    input: &PlanInput<'_>,
    steps: impl Iterator<Item = Step>,
    mut each: impl FnMut(&StepMemory),
) -> Result<Plan, Error> {
    let PlanInput { shape, config, n_tokens, .. } = *input;
    let selections = config.batch_selections(shape, n_tokens)?;
    let mut fold = Fold::new(before_steps(input, &selections));
    for step in steps {
        let memory = fold.step(input, &selections, step);
        each(&memory);
    }
    let held = fold.end_prefill(input);
    Ok(Plan {
        n_prompts: n_tokens.len(),
        n_tokens: n_tokens.iter().copied().fold(0, usize::saturating_add),
        peak: fold.peak,
        max: fold.max,
        held,
    })
}

/// Uncompressed K/V of one layer of a prompt of `n_tokens` tokens.
fn active_layer(input: &PlanInput<'_>, n_tokens: usize) -> u64 {
    input.sizes.active_half(input.shape, input.config.kv, n_tokens).saturating_mul(2)
}

/// W of the observation window: the largest any layer asks for.
pub(crate) fn window(selections: &[SelectionLayout]) -> usize {
    selections.iter().map(SelectionLayout::window).max().unwrap_or(0)
}

/// The longest observation window of a batch, which its prompts use in turn.
pub(crate) fn longest_window(selections: &[Vec<SelectionLayout>]) -> usize {
    selections.iter().map(|layers| window(layers)).max().unwrap_or(0)
}

/// What is live when the first step begins.
fn before_steps(input: &PlanInput<'_>, selections: &[Vec<SelectionLayout>]) -> Breakdown {
    let PlanInput { shape, weights, sizes, config, n_tokens } = *input;
    let window = longest_window(selections);
    let rows = config.schedule.chunk().rows(longest(n_tokens));
    let n_prompts = n_tokens.len() as u64;
    let tail = layout::tail_half(shape, config.kv, config.tail_rows(shape));
    let mut live = Breakdown::default();
    live[Component::Weights] = weights.held;
    live[Component::WeightsMapped] = weights.mapped;
    live[Component::Tokens] =
        n_tokens.iter().fold(0, |sum, &n| u64::saturating_add(sum, layout::tokens(n)));
    live[Component::Bridge] =
        layout::bridge(shape, config.bridge, config.schedule.bridge_rows(n_tokens));
    live[Component::Activation] = sizes.activation(shape, rows);
    live[Component::Scratch] = sizes.scratch(shape, window);
    live[Component::Observation] = layout::observation(shape, window)
        .saturating_mul(config.schedule.active_layers(shape.n_layers) as u64);
    live[Component::DecodeTail] =
        tail.saturating_mul(2 * shape.n_layers as u64).saturating_mul(n_prompts);
    live[Component::Logits] = session_logits(input);
    if config.outputs == Outputs::AllLogits {
        let stream = layout::logit_stream(shape, rows);
        live[Component::Logits] = live[Component::Logits].saturating_add(stream);
    }
    live
}

/// The row of logits that every session has.
fn session_logits(input: &PlanInput<'_>) -> u64 {
    layout::logits(input.shape, 1).saturating_mul(input.n_tokens.len() as u64)
}

struct Fold {
    live: Breakdown,
    max: Breakdown,
    peak: Peak,
}

impl Fold {
    fn new(live: Breakdown) -> Self {
        Fold { live, max: live, peak: Peak { bytes: live, at: Moment::Setup } }
    }

    fn step(
        &mut self,
        input: &PlanInput<'_>,
        selections: &[Vec<SelectionLayout>],
        step: Step,
    ) -> StepMemory {
        let mut high_water = self.live;
        match step {
            Step::Layer { seq, layer, chunk } if chunk.start == 0 => {
                self.open(input, (seq, layer));
                high_water = self.live;
            }
            Step::Layer { .. } | Step::Embed { .. } | Step::Head { .. } => {}
            Step::Evict { seq, layer } => {
                high_water = self.evict(input, &selections[seq][layer], (seq, layer));
            }
        }
        self.note(high_water, Moment::Step(step));
        StepMemory { moment: Moment::Step(step), high_water, after: self.live }
    }

    /// A layer becomes active. Where one is at a time, the first of the first
    /// sequence makes room for the longest prompt and all others reuse it; elsewhere
    /// each makes its own.
    fn open(&mut self, input: &PlanInput<'_>, (seq, layer): (usize, usize)) {
        let PlanInput { shape, config, n_tokens, .. } = *input;
        let one = config.schedule.active_layers(shape.n_layers) == 1;
        let active = &mut self.live[Component::ActiveKv];
        match one {
            true if (seq, layer) == (0, 0) => *active = active_layer(input, longest(n_tokens)),
            true => {}
            false => *active = active.saturating_add(active_layer(input, n_tokens[seq])),
        }
    }

    /// An active layer has ended: its room goes, unless another is to take it.
    fn close(&mut self, input: &PlanInput<'_>, (seq, layer): (usize, usize)) {
        let PlanInput { shape, config, n_tokens, .. } = *input;
        let one = config.schedule.active_layers(shape.n_layers) == 1;
        let active = &mut self.live[Component::ActiveKv];
        match one {
            true if (seq + 1, layer + 1) == (n_tokens.len(), shape.n_layers) => *active = 0,
            true => {}
            false => *active = active.saturating_sub(active_layer(input, n_tokens[seq])),
        }
    }

    /// Selection scratch comes and goes, positions and retained rows come, the
    /// active layer goes. Returns the high-water mark.
    fn evict(
        &mut self,
        input: &PlanInput<'_>,
        selection: &SelectionLayout,
        at: (usize, usize),
    ) -> Breakdown {
        let PlanInput { shape, config, .. } = *input;
        let mut scoring = self.live;
        let add = |live: &mut Breakdown, component, bytes| {
            live[component] = u64::saturating_add(live[component], bytes);
        };
        let (_, layer) = at;
        let scores = score_block_bytes((shape, layer), config, selection);
        let scratch = selection.bytes().saturating_add(scores);
        add(&mut scoring, Component::Scratch, scratch);
        add(&mut scoring, Component::Positions, selection.positions_bytes());

        let rows = shape.n_kv_heads.saturating_mul(selection.kept());
        let half = layout::retained_half(shape, config.kv, rows);
        add(&mut self.live, Component::Positions, selection.positions_bytes());
        add(&mut self.live, Component::RetainedKv, half.saturating_mul(2));
        let gathering = self.live;

        self.close(input, at);
        self.max.raise_to(&scoring);
        self.max.raise_to(&gathering);
        if gathering.total() > scoring.total() { gathering } else { scoring }
    }

    fn note(&mut self, high_water: Breakdown, at: Moment) {
        self.max.raise_to(&high_water);
        if high_water.total() > self.peak.bytes.total() {
            self.peak = Peak { bytes: high_water, at };
        }
    }

    /// Prefill's workspace goes, decoding's comes: one for each session.
    fn end_prefill(&mut self, input: &PlanInput<'_>) -> Breakdown {
        let n_prompts = input.n_tokens.len() as u64;
        let mut live = self.live;
        live[Component::Bridge] = 0;
        live[Component::ActiveKv] = 0;
        live[Component::Observation] = 0;
        live[Component::Logits] = session_logits(input);
        live[Component::Activation] =
            input.sizes.activation(input.shape, 1).saturating_mul(n_prompts);
        live[Component::Scratch] =
            input.sizes.decode_scratch(input.shape).saturating_mul(n_prompts);
        self.note(live, Moment::Decode);
        live
    }
}

/// Bytes of what one layer's selection reads: a score block `[rows, bs]` f32, or,
/// for a scorer of keys and values, a block of all three and what the scorer
/// holds.
pub(crate) fn score_block_bytes(
    (shape, layer): (&Shape, usize),
    config: &RunConfig,
    selection: &SelectionLayout,
) -> u64 {
    let keys = selection.scored_keys().len().min(config.score_block.get());
    let rows = match selection.score_source() {
        None => 0,
        Some(ScoreSource::Window(ScoreRows::Grouped(_))) => shape.n_kv_heads,
        Some(ScoreSource::Window(ScoreRows::PerQueryHead)) => shape.n_heads,
        Some(ScoreSource::Keys) => {
            let n_tokens = selection.n_tokens();
            let layer = LayerContext::new(shape, layer, n_tokens);
            let held = config.selector.scorer.key_scorer().map_or(0, |s| s.layer_bytes(&layer));
            let block = layout::key_block(shape, n_tokens.min(config.score_block.get()));
            return block.saturating_add(held);
        }
    };
    layout::product(&[rows, keys, size_of::<f32>()])
}
