//! The [`Backend`] implementation: settings, and the verbs that need no file of
//! their own.

use crate::buffer::CpuBuffer;
use crate::layer::BridgeRows;
use crate::packed::Pack;
use crate::phase::{Clocks, Phase, PhaseTimes};
use crate::pool::Pool;
use crate::product::Compute;
use crate::sizes::{CpuSizes, kernel_element};
use crate::weights::CpuWeights;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use tidekv::Element;
use tidekv::backend::{
    Backend, BackendError, ChunkRows, DecodeRow, LayerOf, ScoreBlock, Sizes, Workspace,
};
use tidekv::bridge::Bridge;
use tidekv::cache::{ActiveKv, Observation, RetainedKv};
use tidekv::model::{Arithmetic, ModelFile, ModelSpec, Shape};
use tidekv_kernels::element;
use tidekv_kernels::gemm::Factors;
use tidekv_kernels::quant::dequantize;
use tidekv_kernels::{Isa, Tier};

/// Elements of the longest block of any weight type.
const MAX_BLOCK: usize = 256;

/// Settings of the CPU backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuConfig {
    /// Threads to compute with; by default all the process may use.
    pub threads: Option<NonZeroUsize>,
    /// Instruction set; by default the best this CPU has.
    pub tier: Option<Tier>,
    /// Arithmetic of prefill's matrix products and attention.
    pub precision: Precision,
    /// How long packed weights live.
    pub pack: Pack,
}

/// Arithmetic of prefill's matrix products and attention; scoring and decoding are
/// f32 in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// The fastest form whose error is well below that of bf16 storage: block
    /// fixed point (`tidekv_kernels::fixed`) where the tier multiplies 16-bit
    /// integers faster than floats (AVX2), else f32.
    #[default]
    Auto,
    /// Single precision.
    F32,
}

impl Precision {
    pub(crate) fn factors(self, isa: Isa) -> Factors {
        match self {
            Precision::Auto => Factors::fastest(isa),
            Precision::F32 => Factors::F32,
        }
    }
}

/// Why there is no CPU backend.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The instruction set asked for is not there.
    #[error("this CPU cannot run `{asked}`; it has {available}")]
    Tier {
        /// The tier asked for.
        asked: Tier,
        /// Tiers this CPU has.
        available: String,
    },
    /// The system gave no threads.
    #[error("cannot start {threads} threads: {reason}; use fewer (--threads)")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// What the system said.
        reason: String,
    },
}

impl CpuConfig {
    /// The instruction set in effect.
    ///
    /// # Errors
    /// A tier this CPU does not have.
    pub fn isa(&self) -> Result<Isa, CpuError> {
        let Some(asked) = self.tier else { return Ok(Isa::detect()) };
        Isa::with_tier(asked).ok_or_else(|| CpuError::Tier {
            asked,
            available: Isa::available().iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", "),
        })
    }

    /// The number of threads in effect. The system's answer respects affinity
    /// and control-group quotas.
    pub fn n_threads(&self) -> NonZeroUsize {
        let all = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        self.threads.unwrap_or_else(all)
    }
}

/// The CPU as a backend.
pub struct Cpu {
    pub(crate) isa: Isa,
    pub(crate) pool: Pool,
    pub(crate) sizes: CpuSizes,
    clocks: Clocks,
    // Verbs without weights need what the loaded model is.
    model: OnceLock<(Shape, Arithmetic)>,
}

impl Cpu {
    /// Starts the threads.
    ///
    /// # Errors
    /// An instruction set this CPU does not have, or no threads.
    pub fn new(config: CpuConfig) -> Result<Self, CpuError> {
        let sizes = CpuSizes::new(&config)?;
        let threads = config.n_threads();
        let pool = Pool::new(threads).map_err(|error| CpuError::Threads {
            threads: threads.get(),
            reason: error.to_string(),
        })?;
        Ok(Cpu { isa: sizes.isa, pool, sizes, clocks: Clocks::default(), model: OnceLock::new() })
    }

    /// How long its verbs have taken so far, waiting for other users of the backend included.
    pub fn phase_times(&self) -> PhaseTimes {
        self.clocks.read()
    }

    /// Does the work of a verb on a thread of the pool, and on the phase's clock.
    fn on<R: Send>(&self, phase: Phase, work: impl FnOnce() -> R + Send) -> R {
        self.clocks.time(phase, || self.pool.enter(work))
    }

    pub(crate) fn compute(&self) -> Compute<'_> {
        Compute { isa: self.isa, pool: &self.pool, factors: self.sizes.factors }
    }

    fn shape(&self) -> &Shape {
        &self.model().0
    }

    /// Dimensions and arithmetic of the loaded model.
    pub(crate) fn model(&self) -> &(Shape, Arithmetic) {
        self.model.get().expect("verbs run after `upload`, which sets the model")
    }

    fn embed_rows(
        &self,
        weights: &CpuWeights,
        tokens: &[u32],
        bridge: &mut Bridge<Self>,
        row: usize,
    ) {
        let table = weights.embedding();
        let rows = BridgeRows::of(bridge);
        let stored = &mut bridge.buffer.bytes_mut()[row * rows.row_bytes..];
        // In pieces of the longest block, so that no row buffer is needed.
        let mut piece = [0.0; MAX_BLOCK];
        for (&token, stored) in tokens.iter().zip(stored.chunks_exact_mut(rows.row_bytes)) {
            let pieces = stored.chunks_mut(MAX_BLOCK * bridge.element.bytes());
            for (index, stored) in pieces.enumerate() {
                let first = index * MAX_BLOCK;
                let cols = first..(first + MAX_BLOCK).min(rows.d_model);
                let hidden = &mut piece[..cols.len()];
                let bytes = table.row_part(token as usize, cols);
                dequantize(self.isa, table.block(), bytes, hidden);
                scale_by(hidden, weights.arithmetic.embedding_scale);
                element::store(self.isa, rows.element, hidden, stored);
            }
        }
    }
}

/// Multiplies `values` by `factor`; a factor of 1 costs nothing.
pub(crate) fn scale_by(values: &mut [f32], factor: f32) {
    if factor != 1.0 {
        values.iter_mut().for_each(|value| *value *= factor);
    }
}

impl Backend for Cpu {
    type Buffer = CpuBuffer;
    type Weights = CpuWeights;

    fn name(&self) -> String {
        self.isa.name().to_owned()
    }

    fn threads(&self) -> usize {
        self.pool.n_threads()
    }

    fn sizes(&self) -> Arc<dyn Sizes> {
        Arc::new(self.sizes)
    }

    fn alloc(&self, bytes: u64) -> Result<CpuBuffer, BackendError> {
        CpuBuffer::zeroed(bytes)
    }

    fn upload(&self, spec: &ModelSpec, file: &Arc<ModelFile>) -> Result<CpuWeights, BackendError> {
        let weights = CpuWeights::new(spec, file)?;
        let model = self.model.get_or_init(|| (weights.shape.clone(), weights.arithmetic));
        assert_eq!(model.0, weights.shape, "a CPU backend serves one model");
        Ok(weights)
    }

    fn embed(
        &self,
        weights: &CpuWeights,
        tokens: &[u32],
        bridge: &mut Bridge<Self>,
        row: usize,
    ) -> Result<(), BackendError> {
        self.clocks.time(Phase::Embed, || self.embed_rows(weights, tokens, bridge, row));
        Ok(())
    }

    fn prepare(
        &self,
        LayerOf { weights, index, .. }: LayerOf<'_, Self>,
        work: &mut Workspace<Self>,
    ) -> Result<(), BackendError> {
        self.on(Phase::Pack, || self.pack_layer(weights, index, work));
        Ok(())
    }

    fn qkv(
        &self,
        layer: LayerOf<'_, Self>,
        rows: &ChunkRows,
        bridge: &Bridge<Self>,
        work: &mut Workspace<Self>,
        active: &mut ActiveKv<Self>,
    ) -> Result<(), BackendError> {
        self.on(Phase::Qkv, || self.qkv_chunk(layer, rows, bridge, work, active));
        Ok(())
    }

    fn keep_queries(
        &self,
        chunk: &ChunkRows,
        rows: Range<usize>,
        work: &Workspace<Self>,
        observation: &mut Observation<Self>,
        at: usize,
    ) -> Result<(), BackendError> {
        self.keep_window(self.shape(), (chunk, rows), work, observation, at);
        Ok(())
    }

    fn attend(
        &self,
        layer: LayerOf<'_, Self>,
        rows: &ChunkRows,
        bridge: &Bridge<Self>,
        work: &mut Workspace<Self>,
        active: &ActiveKv<Self>,
    ) -> Result<(), BackendError> {
        self.on(Phase::Attend, || self.attend_chunk(layer, rows, bridge, work, active));
        Ok(())
    }

    fn mlp(
        &self,
        layer: LayerOf<'_, Self>,
        rows: &ChunkRows,
        bridge: &mut Bridge<Self>,
        work: &mut Workspace<Self>,
    ) -> Result<(), BackendError> {
        self.on(Phase::Mlp, || self.mlp_chunk(layer, rows, bridge, work))
    }

    fn score_stats(
        &self,
        observation: &mut Observation<Self>,
        active: &ActiveKv<Self>,
        work: &mut Workspace<Self>,
    ) -> Result<(), BackendError> {
        self.on(Phase::Score, || self.window_stats(self.shape(), observation, active, work));
        Ok(())
    }

    fn score_block(
        &self,
        block: ScoreBlock<'_, Self>,
        work: &mut Workspace<Self>,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        self.on(Phase::Score, || self.score_keys(self.shape(), block, work, out));
        Ok(())
    }

    fn read_kv(
        &self,
        active: &ActiveKv<Self>,
        keys: Range<usize>,
        k: &mut [f32],
        v: &mut [f32],
    ) -> Result<(), BackendError> {
        self.on(Phase::Score, || self.read_rows(self.shape(), active, keys, [k, v]));
        Ok(())
    }

    fn gather(
        &self,
        active: &ActiveKv<Self>,
        retained: &mut RetainedKv<Self>,
    ) -> Result<(), BackendError> {
        self.on(Phase::Gather, || self.gather_rows(self.shape(), active, retained));
        Ok(())
    }

    fn logits(
        &self,
        weights: &CpuWeights,
        bridge: (&Bridge<Self>, Range<usize>),
        work: &mut Workspace<Self>,
        logits: &mut CpuBuffer,
    ) -> Result<(), BackendError> {
        self.on(Phase::Head, || self.logit_rows(weights, bridge, work, logits.floats_mut()))
    }

    fn decode(
        &self,
        weights: &CpuWeights,
        rows: &mut [DecodeRow<'_, Self>],
    ) -> Vec<Result<(), BackendError>> {
        self.on(Phase::Decode, || self.decode_rows(weights, rows))
    }

    fn read(&self, buffer: &CpuBuffer, element: Element, at: usize, out: &mut [f32]) {
        let bytes = &buffer.bytes_view()[at * element.bytes()..][..out.len() * element.bytes()];
        element::load(self.isa, kernel_element(element), bytes, out);
    }

    fn sync(&self) -> Result<(), BackendError> {
        Ok(())
    }
}
