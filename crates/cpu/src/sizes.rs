//! Sizes of the CPU backend's buffers, for allocation, plan and dry runs alike.

use crate::activation::Strides;
use crate::backend::{CpuConfig, CpuError};
use crate::packed::{Pack, Projection, Scratch, dims};
use std::ops::Range;
use tidekv::Element;
use tidekv::backend::Sizes;
use tidekv::memory::layout::{buffer, product};
use tidekv::model::Shape;
use tidekv_kernels::attention::{attend_one_scratch_len, attend_scratch_len, tile_positions};
use tidekv_kernels::gemm::Factors;
use tidekv_kernels::kv::{KEY_BLOCK, KvLayout};
use tidekv_kernels::matvec::fixed::fixed_len;
use tidekv_kernels::score::score_scratch_len;
use tidekv_kernels::{Isa, gemm, kv};

/// Sizes for one instruction set, number of threads and form of packed weights.
#[derive(Debug, Clone, Copy)]
pub struct CpuSizes {
    pub(crate) isa: Isa,
    pub(crate) n_threads: usize,
    /// The form in which prefill's products take activations and weights.
    pub(crate) factors: Factors,
    pub(crate) pack: Pack,
}

/// Packed weights in floats: 4 MiB, which leaves most of a shared cache to the
/// activations and packs a thousand columns of a small model or more at a time.
pub(crate) const SLAB: usize = 1 << 20;

impl CpuSizes {
    /// Sizes of the backend that [`crate::Cpu::new`] would make, without
    /// starting threads.
    ///
    /// # Errors
    /// An instruction set this CPU does not have.
    pub fn new(config: &CpuConfig) -> Result<Self, CpuError> {
        let isa = config.isa()?;
        let factors = config.precision.factors(isa);
        Ok(CpuSizes { isa, n_threads: config.n_threads().get(), factors, pack: config.pack })
    }

    /// Floats of the slab of packed weights: whole panels of the longest row, in
    /// the larger of the two forms, so that the plan does not depend on the
    /// precision.
    pub(crate) fn slab(&self, shape: &Shape) -> usize {
        let longest = shape.d_ff.max(shape.q_cols()).max(shape.d_model);
        let panel = longest.saturating_mul(gemm::panel_width(self.isa));
        let most = shape.vocab.max(shape.d_ff).max(shape.q_cols()).saturating_mul(longest);
        SLAB.min(most).max(panel)
    }

    /// Where the panels of each matrix of a layer lie, in floats.
    pub(crate) fn panels(&self, shape: &Shape) -> [Range<usize>; Projection::COUNT] {
        let width = gemm::panel_width(self.isa);
        let mut end = 0usize;
        dims(shape).map(|(n, k)| {
            let panel = self.factors.floats(k).saturating_mul(width);
            let start = end;
            end = end.saturating_add(n.div_ceil(width).saturating_mul(panel));
            start..end
        })
    }

    /// Floats of a layer's packed weights, if they are kept.
    fn layer(&self, shape: &Shape) -> usize {
        match self.pack {
            Pack::Slab => 0,
            Pack::Layer => self.panels(shape)[Projection::COUNT - 1].end,
        }
    }

    /// Cuts prefill's scratch into its regions.
    pub(crate) fn split<'a>(&self, shape: &Shape, scratch: &'a mut [f32]) -> Scratch<'a> {
        let (slab, rest) = scratch.split_at_mut(self.slab(shape));
        let (layer, threads) = rest.split_at_mut(self.layer(shape));
        Scratch { slab, layer, threads }
    }

    /// Floats of one thread's scratch in attention and scoring.
    pub(crate) fn per_thread(&self, shape: &Shape, window: usize) -> usize {
        let layout = kv_layout(shape, Element::F32);
        let group = shape.group();
        let attention =
            attend_scratch_len(self.isa, layout, query_rows(group, self.n_threads), group);
        let scoring = score_scratch_len(layout, window) + group * KEY_BLOCK;
        attention.max(if window > 0 { scoring } else { 0 })
    }

    /// Floats of one thread's scratch in decode attention.
    pub(crate) fn per_decode_thread(&self, shape: &Shape) -> usize {
        attend_one_scratch_len(kv_layout(shape, Element::F32), shape.group())
    }
}

/// Floats of the widest vector of decode's products in fixed point.
pub(crate) fn widest_in_fixed_point(shape: &Shape) -> usize {
    fixed_len(shape.d_model.max(shape.q_cols()).max(shape.d_ff))
}

/// Query rows of one attention task: a tile of the kernel, which every expanded key block serves;
/// where many threads have one each, a part of it, so that their scratch together grows no further.
pub(crate) fn query_rows(group: usize, n_threads: usize) -> usize {
    /// Threads that have whole tiles.
    const WHOLE: usize = 4;
    /// Stacked rows below which expanding a block would cost too much.
    const LEAST: usize = 112;
    let tile = tile_positions(group);
    (tile * WHOLE / n_threads.max(WHOLE)).max(LEAST / group).max(1).min(tile)
}

/// Active K/V of one KV head.
pub(crate) fn kv_layout(shape: &Shape, element: Element) -> KvLayout {
    KvLayout { head_dim: shape.head_dim, element: kernel_element(element) }
}

/// The kernels' name of a storage type.
pub(crate) fn kernel_element(element: Element) -> tidekv_kernels::element::Element {
    match element {
        Element::Bf16 => tidekv_kernels::element::Element::Bf16,
        Element::F16 => tidekv_kernels::element::Element::F16,
        Element::F32 => tidekv_kernels::element::Element::F32,
    }
}

impl Sizes for CpuSizes {
    fn active_half(&self, shape: &Shape, element: Element, n_tokens: usize) -> u64 {
        let keys = n_tokens.div_ceil(kv::KEY_BLOCK).saturating_mul(kv::KEY_BLOCK);
        buffer(product(&[keys, shape.kv_cols(), element.bytes()]))
    }

    fn activation(&self, shape: &Shape, rows: usize) -> u64 {
        let floats = Strides::new(shape).floats_per_row();
        buffer(product(&[rows, floats, size_of::<f32>()]))
    }

    fn scratch(&self, shape: &Shape, window: usize) -> u64 {
        let threads = self.n_threads.saturating_mul(self.per_thread(shape, window));
        let panels = self.slab(shape).saturating_add(self.layer(shape));
        buffer(product(&[panels.saturating_add(threads), size_of::<f32>()]))
    }

    fn decode_scratch(&self, shape: &Shape) -> u64 {
        let threads = self.n_threads.saturating_mul(self.per_decode_thread(shape));
        let row = shape.q_cols() + shape.d_ff + widest_in_fixed_point(shape);
        let floats = row.saturating_add(threads);
        buffer(product(&[floats, size_of::<f32>()]))
    }
}
