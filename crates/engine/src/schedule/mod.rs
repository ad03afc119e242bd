//! Schedules: in which order prefill visits layers and chunks, and when it
//! evicts.
//!
//! A schedule is a value. Every control of the paper is one of these values run
//! by the one executor (`prefill`), which only follows
//! [`Schedule::steps`]. Next hop of a prompt: `prefill`.

mod cost;
mod steps;

pub use cost::{Cost, Work, step_cost};
pub use steps::{Span, Step};

/// Tokens of the longest sequence of a batch: what buffers that the sequences
/// use in turn are sized for.
pub(crate) fn longest(n_tokens: &[usize]) -> usize {
    n_tokens.iter().copied().max().unwrap_or(0)
}

use std::fmt;
use std::num::NonZeroUsize;

/// How many prompt tokens pass through a layer at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunk {
    /// The whole prompt at once.
    Whole,
    /// C tokens; the last chunk may be shorter.
    Tokens(NonZeroUsize),
}

impl Chunk {
    /// Rows of the largest chunk of a prompt of `n_tokens` tokens.
    pub fn rows(self, n_tokens: usize) -> usize {
        match self {
            Chunk::Whole => n_tokens,
            Chunk::Tokens(c) => c.get().min(n_tokens),
        }
    }
}

/// When a layer-major schedule evicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerEvict {
    /// Every row is retained.
    Never,
    /// When the layer has seen the whole prompt (the paper's delayed eviction).
    LayerEnd,
}

/// When a chunk-major schedule evicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChunkEvict {
    /// Every row is retained.
    Never,
    /// When the whole prompt has passed through all layers.
    PromptEnd,
}

/// Order, chunking and eviction of one prefill. Only legal forms can be
/// written.
///
/// ```
/// use std::num::NonZeroUsize;
/// use tidekv::schedule::ScheduleKind;
///
/// let chunk = NonZeroUsize::new(3).ok_or("a chunk of nothing")?;
/// // Two layers, one prompt of five tokens: chunks of 3 and 2.
/// let steps = |kind: ScheduleKind| {
///     let steps = kind.with_chunk(chunk).steps(2, &[5]);
///     steps.map(|step| step.name()).collect::<Vec<_>>().join(" ")
/// };
/// // Layers outermost, each compressed before the next is begun: one is active.
/// let tide = "embed embed layer layer evict layer layer evict head";
/// assert_eq!(steps(ScheduleKind::Tide), tide);
/// assert_eq!(ScheduleKind::Tide.with_chunk(chunk).active_layers(2), 1);
/// // Chunks outermost: every layer has to stay active to the end.
/// let chunked = "embed layer layer embed layer layer evict evict head";
/// assert_eq!(steps(ScheduleKind::ChunkedPost), chunked);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Schedule {
    /// One layer over all chunks before the next layer (Algorithm 1).
    LayerMajor {
        /// Chunking inside a layer.
        chunk: Chunk,
        /// When the layer is compressed.
        evict: LayerEvict,
    },
    /// One chunk through all layers before the next chunk.
    ChunkMajor {
        /// Chunking of the prompt.
        chunk: Chunk,
        /// When the layers are compressed.
        evict: ChunkEvict,
    },
}

/// A named schedule, still without its chunk size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScheduleKind {
    /// Whole prompt, nothing evicted: the fidelity reference.
    OneShot,
    /// Whole prompt through a layer, evicted at its end: the selector-matched
    /// baseline, as selectors are published.
    PostPrefill,
    /// Ordinary chunked prefill, nothing evicted.
    Chunked,
    /// Chunked prefill, then compression: what other engines can do.
    ChunkedPost,
    /// Layer-major chunks, nothing evicted: isolates the order.
    TideNoEvict,
    /// Layer-major chunks, evicted at layer end: the system.
    Tide,
}

impl ScheduleKind {
    /// Every named schedule.
    pub const ALL: [ScheduleKind; 6] = [
        ScheduleKind::OneShot,
        ScheduleKind::PostPrefill,
        ScheduleKind::Chunked,
        ScheduleKind::ChunkedPost,
        ScheduleKind::TideNoEvict,
        ScheduleKind::Tide,
    ];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            ScheduleKind::OneShot => "one-shot",
            ScheduleKind::PostPrefill => "post-prefill",
            ScheduleKind::Chunked => "chunked",
            ScheduleKind::ChunkedPost => "chunked-post",
            ScheduleKind::TideNoEvict => "tide-noevict",
            ScheduleKind::Tide => "tide",
        }
    }

    /// The schedule with chunks of `chunk` tokens. Whole-prompt schedules have
    /// no use for it.
    pub fn with_chunk(self, chunk: NonZeroUsize) -> Schedule {
        let tokens = Chunk::Tokens(chunk);
        match self {
            ScheduleKind::OneShot => {
                Schedule::LayerMajor { chunk: Chunk::Whole, evict: LayerEvict::Never }
            }
            ScheduleKind::PostPrefill => {
                Schedule::LayerMajor { chunk: Chunk::Whole, evict: LayerEvict::LayerEnd }
            }
            ScheduleKind::Chunked => {
                Schedule::ChunkMajor { chunk: tokens, evict: ChunkEvict::Never }
            }
            ScheduleKind::ChunkedPost => {
                Schedule::ChunkMajor { chunk: tokens, evict: ChunkEvict::PromptEnd }
            }
            ScheduleKind::TideNoEvict => {
                Schedule::LayerMajor { chunk: tokens, evict: LayerEvict::Never }
            }
            ScheduleKind::Tide => {
                Schedule::LayerMajor { chunk: tokens, evict: LayerEvict::LayerEnd }
            }
        }
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A schedule name that is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown schedule `{0}`; known: one-shot, post-prefill, chunked, chunked-post, tide-noevict, tide"
)]
pub struct UnknownSchedule(pub String);

impl std::str::FromStr for ScheduleKind {
    type Err = UnknownSchedule;

    fn from_str(text: &str) -> Result<Self, UnknownSchedule> {
        ScheduleKind::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| UnknownSchedule(text.to_owned()))
    }
}

impl Schedule {
    /// Chunking of the schedule.
    pub fn chunk(&self) -> Chunk {
        match *self {
            Schedule::LayerMajor { chunk, .. } | Schedule::ChunkMajor { chunk, .. } => chunk,
        }
    }

    /// Whether the selector is applied at all.
    pub fn evicts(&self) -> bool {
        match self {
            Schedule::LayerMajor { evict, .. } => *evict == LayerEvict::LayerEnd,
            Schedule::ChunkMajor { evict, .. } => *evict == ChunkEvict::PromptEnd,
        }
    }

    /// Layers whose uncompressed K/V exist at the same time, over all sequences
    /// of a batch.
    pub fn active_layers(&self, n_layers: usize) -> usize {
        match self {
            Schedule::LayerMajor { .. } => 1,
            Schedule::ChunkMajor { .. } => n_layers,
        }
    }

    /// Rows of the hidden-state bridge for prompts of `n_tokens` tokens each: all
    /// of them when layers are outermost, one chunk otherwise.
    pub fn bridge_rows(&self, n_tokens: &[usize]) -> usize {
        match self {
            Schedule::LayerMajor { .. } => n_tokens.iter().copied().fold(0, usize::saturating_add),
            Schedule::ChunkMajor { chunk, .. } => chunk.rows(longest(n_tokens)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for kind in ScheduleKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        let error = "tidal".parse::<ScheduleKind>().unwrap_err();
        for kind in ScheduleKind::ALL {
            assert!(error.to_string().contains(kind.name()), "{error}");
        }
    }
}
