//! The seam between the engine and the hardware: about a dozen phase-level
//! verbs on device buffers.
//!
//! Schedules, budgets, selection, plan, accountant and session know no backend.
//! Two implementations keep the seam honest: the CPU (crate `tidekv-cpu`) and
//! [`crate::dry`], which computes nothing. Verbs may enqueue; [`Backend::sync`]
//! waits. A backend allocates in [`Backend::alloc`] and nowhere else.

use crate::bridge::Bridge;
use crate::cache::{ActiveKv, DecodeTail, Observation, RetainedKv};
use crate::element::Element;
use crate::memory::Charged;
use crate::model::{ModelError, ModelFile, ModelSpec, RopeFrequencies, Rotations, Shape};
use crate::position::Pos;
use crate::schedule::Span;
use crate::select::ScoreRows;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of the buffers whose size depends on the backend, its instruction set
/// and its threads. One pure implementation serves the allocation, the plan and
/// the dry backend. Sizes saturate: a size of `u64::MAX` fits no limit.
pub trait Sizes: Send + Sync {
    /// Uncompressed keys of one layer for `n_tokens` tokens; values take the
    /// same.
    fn active_half(&self, shape: &Shape, element: Element, n_tokens: usize) -> u64;
    /// Attention and MLP activations of `rows` rows.
    fn activation(&self, shape: &Shape, rows: usize) -> u64;
    /// Packed weights, attention and scoring blocks of a prefill whose window
    /// has `window` queries. Independent of the prompt's length.
    fn scratch(&self, shape: &Shape, window: usize) -> u64;
    /// Scratch of decoding one row.
    fn decode_scratch(&self, shape: &Shape) -> u64;
}

/// Errors of a backend.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The system has no memory left for a buffer.
    #[error("the system refused {bytes} bytes; use a smaller chunk, budget or prompt")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// The model cannot be run by this backend.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A layer produced NaN or infinity.
    #[error(
        "{place} holds a value that is not finite (position {position}); the weights or the prompt's numbers overflow"
    )]
    NonFinite {
        /// Which output.
        place: String,
        /// Absolute position of the row.
        position: usize,
    },
}

impl BackendError {
    /// The error with the position of its row, for verbs that know a row only by
    /// its place in a buffer.
    pub(crate) fn at(self, position_of: impl FnOnce(usize) -> usize) -> Self {
        match self {
            BackendError::NonFinite { place, position: row } => {
                BackendError::NonFinite { place, position: position_of(row) }
            }
            BackendError::OutOfMemory { .. } | BackendError::Model(_) => self,
        }
    }
}

/// Rows of a chunk to work on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRows {
    /// Absolute positions of the chunk.
    pub span: Span,
    /// Row of the bridge that holds the chunk's first row.
    pub bridge_row: usize,
    /// First row of the chunk for which queries are computed; keys and values
    /// are computed for all. 0 except in the last layer.
    pub first_query: usize,
    /// First row of the chunk that is carried through attention and MLP. 0
    /// except in the last layer; `span.len` when no row is.
    pub first_output: usize,
}

/// Memory that verbs of one step share. Contents do not survive between chunks,
/// except what [`Backend::prepare`] leaves in the scratch.
pub struct Workspace<B: Backend + ?Sized> {
    /// Activations of one chunk.
    pub activation: Charged<B::Buffer>,
    /// Packed weights, attention and scoring blocks.
    pub scratch: Charged<B::Buffer>,
    /// Rows that `activation` has room for.
    pub rows: usize,
}

/// Keys to score against a window whose statistics are known.
pub struct ScoreBlock<'a, B: Backend + ?Sized> {
    /// Window queries with their statistics.
    pub observation: &'a Observation<B>,
    /// Keys of the layer.
    pub active: &'a ActiveKv<B>,
    /// Which of them, by position.
    pub keys: Range<usize>,
    /// Rows wanted.
    pub rows: ScoreRows,
}

/// One decode step of one sequence.
pub struct DecodeRow<'a, B: Backend + ?Sized> {
    /// Token to feed.
    pub token: u32,
    /// Its true absolute position, whatever the cache's length.
    pub position: Pos,
    /// Rotations of the session's prompt.
    pub rotations: &'a Rotations,
    /// Retained cache of each layer.
    pub retained: &'a [RetainedKv<B>],
    /// Room for new tokens of each layer; row `tail_row` is written.
    pub tail: &'a mut [DecodeTail<B>],
    /// Rows already in each tail.
    pub tail_row: usize,
    /// The sequence's own memory, for one row.
    pub work: &'a mut Workspace<B>,
    /// Where its logits go, `[vocab]` f32.
    pub logits: &'a mut B::Buffer,
}

/// A device that runs layers. Shapes use the letters of [`Shape`].
///
/// # Errors
/// Every verb may fail because the device does, with the [`BackendError`] that says
/// so; a run then ends and releases its memory. What else a verb can return stands
/// at the verb.
pub trait Backend: Send + Sync {
    /// Device memory.
    type Buffer: Send + Sync;
    /// A model on the device.
    type Weights: Send + Sync;

    /// Name for reports: instruction set or device.
    fn name(&self) -> String;

    /// Threads (or queues) it computes with.
    fn threads(&self) -> usize;

    /// Sizes of its buffers.
    fn sizes(&self) -> Arc<dyn Sizes>;

    /// A zeroed buffer. Called through the accountant only.
    fn alloc(&self, bytes: u64) -> Result<Self::Buffer, BackendError>;

    /// Makes a model usable. Vectors are copied, matrices may stay mapped.
    fn upload(
        &self,
        spec: &ModelSpec,
        file: &Arc<ModelFile>,
    ) -> Result<Self::Weights, BackendError>;

    /// Writes the embeddings of `tokens`, rounded to the bridge's type, into
    /// bridge rows from `row` on. Token ids are below `vocab`.
    fn embed(
        &self,
        weights: &Self::Weights,
        tokens: &[u32],
        bridge: &mut Bridge<Self>,
        row: usize,
    ) -> Result<(), BackendError>;

    /// A layer begins: called before its first chunk wherever the layer before was
    /// another one. The backend may bring the layer's weights into a form that
    /// stays in the workspace's scratch until the next call; one that keeps none
    /// does nothing.
    fn prepare(
        &self,
        _layer: LayerOf<'_, Self>,
        _work: &mut Workspace<Self>,
    ) -> Result<(), BackendError> {
        Ok(())
    }

    /// Norm, projections and rotation; appends K/V of all rows of the chunk to
    /// `active` and leaves the queries of `first_query..` in the workspace.
    fn qkv(
        &self,
        layer: LayerOf<'_, Self>,
        rows: &ChunkRows,
        bridge: &Bridge<Self>,
        work: &mut Workspace<Self>,
        active: &mut ActiveKv<Self>,
    ) -> Result<(), BackendError>;

    /// Copies the queries of chunk rows `rows` (post-rotation, f32) to the
    /// window rows from `at` on.
    fn keep_queries(
        &self,
        chunk: &ChunkRows,
        rows: Range<usize>,
        work: &Workspace<Self>,
        observation: &mut Observation<Self>,
        at: usize,
    ) -> Result<(), BackendError>;

    /// Causal attention of rows `first_output..` over the active K/V, output
    /// projection and residual; the sum stays in the workspace, in f32.
    fn attend(
        &self,
        layer: LayerOf<'_, Self>,
        rows: &ChunkRows,
        bridge: &Bridge<Self>,
        work: &mut Workspace<Self>,
        active: &ActiveKv<Self>,
    ) -> Result<(), BackendError>;

    /// Norm, MLP and residual of rows `first_output..`; the layer's output,
    /// rounded to the bridge's type, replaces its input in the bridge.
    ///
    /// # Errors
    /// [`BackendError::NonFinite`] when a row of the output is not finite.
    fn mlp(
        &self,
        layer: LayerOf<'_, Self>,
        rows: &ChunkRows,
        bridge: &mut Bridge<Self>,
        work: &mut Workspace<Self>,
    ) -> Result<(), BackendError>;

    /// Pass 1 of Algorithm 2: maximum and normaliser of every window query over
    /// all keys of `active` (eqs. 4-6), kept beside the window's queries.
    fn score_stats(
        &self,
        observation: &mut Observation<Self>,
        active: &ActiveKv<Self>,
        work: &mut Workspace<Self>,
    ) -> Result<(), BackendError>;

    /// Pass 2 of Algorithm 2 for the keys of one score block (eq. 7): the mean
    /// over the window of each key's attention weight. `out` is
    /// `[rows, keys.len()]` as `block.rows` says.
    fn score_block(
        &self,
        block: ScoreBlock<'_, Self>,
        work: &mut Workspace<Self>,
        out: &mut [f32],
    ) -> Result<(), BackendError>;

    /// Reads keys (after rotation) and values of positions `keys`, which are not
    /// none, into `k` and `v`, `[Hkv, keys.len(), D]` each, for scorers that are
    /// no part of the backend. The numbers are there on return.
    fn read_kv(
        &self,
        active: &ActiveKv<Self>,
        keys: Range<usize>,
        k: &mut [f32],
        v: &mut [f32],
    ) -> Result<(), BackendError>;

    /// Copies the rows of `retained.positions` out of `active`, bits unchanged.
    fn gather(
        &self,
        active: &ActiveKv<Self>,
        retained: &mut RetainedKv<Self>,
    ) -> Result<(), BackendError>;

    /// Final norm and output projection of bridge rows, no more than `work` has
    /// room for, into `[rows, vocab]` f32, on the prefill path. The bits of a row
    /// depend on no other.
    ///
    /// # Errors
    /// [`BackendError::NonFinite`], at the bridge row; the executor puts the
    /// position in its place.
    fn logits(
        &self,
        weights: &Self::Weights,
        bridge: (&Bridge<Self>, Range<usize>),
        work: &mut Workspace<Self>,
        logits: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// One decode step of each of several sequences through all layers, so that the
    /// weights are read once for all. The bits of a row depend on no other.
    ///
    /// # Errors
    /// There is one result per row, in their order: [`BackendError::NonFinite`] for
    /// one whose logits are not finite, which the others do not notice.
    fn decode(
        &self,
        weights: &Self::Weights,
        rows: &mut [DecodeRow<'_, Self>],
    ) -> Vec<Result<(), BackendError>>;

    /// Reads `out.len()` numbers of type `element` from number `at` on.
    fn read(&self, buffer: &Self::Buffer, element: Element, at: usize, out: &mut [f32]);

    /// Waits until everything enqueued has been done.
    fn sync(&self) -> Result<(), BackendError>;
}

/// One layer of a model on a device.
pub struct LayerOf<'a, B: Backend + ?Sized> {
    /// The model.
    pub weights: &'a B::Weights,
    /// Which layer.
    pub index: usize,
    /// Its rotation; `None` where positions do not enter.
    pub rope: Option<&'a RopeFrequencies>,
}

impl<B: Backend + ?Sized> Clone for LayerOf<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend + ?Sized> Copy for LayerOf<'_, B> {}
