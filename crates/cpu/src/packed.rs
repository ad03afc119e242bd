//! Where the packed weights of prefill's products lie.
//!
//! Products multiply panels (`tidekv_kernels::gemm`), not weights as the file has them. With
//! [`Pack::Slab`] a stretch of a matrix is packed, serves the rows of a chunk, and is overwritten;
//! with [`Pack::Layer`] all matrices of a layer are packed when it begins. The panels are the same,
//! and so are the bits of the products.

use crate::weights::CpuWeights;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use tidekv::model::Shape;
use tidekv_kernels::quant::WeightView;

/// How long packed weights live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Pack {
    /// Until the chunk has passed: 4 MiB or little more, packed again for every chunk.
    #[default]
    Slab,
    /// Until the next layer begins: all of a layer's weights, about 2 bytes each in fixed point and
    /// 4 in f32. Where a layer passes over all chunks at once they are packed once per prompt.
    Layer,
}

impl Pack {
    /// Every value, in declaration order.
    pub const ALL: [Pack; 2] = [Pack::Slab, Pack::Layer];

    /// The name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Pack::Slab => "slab",
            Pack::Layer => "layer",
        }
    }
}

impl fmt::Display for Pack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is not in [`Pack::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown packing `{0}`; use slab or layer")]
pub struct UnknownPack(String);

impl FromStr for Pack {
    type Err = UnknownPack;

    fn from_str(text: &str) -> Result<Self, UnknownPack> {
        let named = Pack::ALL.into_iter().find(|pack| pack.name() == text);
        named.ok_or_else(|| UnknownPack(text.to_owned()))
    }
}

/// The matrices of a layer, in the order of `LayerTensors::matrices`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Projection {
    Q,
    K,
    V,
    O,
    Gate,
    Up,
    Down,
}

impl Projection {
    pub(crate) const COUNT: usize = 7;
}

/// N and K of the matrices of a layer, in the order of [`Projection`].
pub(crate) fn dims(shape: &Shape) -> [(usize, usize); Projection::COUNT] {
    let (d_model, d_ff) = (shape.d_model, shape.d_ff);
    let (q, kv) = (shape.q_cols(), shape.kv_cols());
    [
        (q, d_model),
        (kv, d_model),
        (kv, d_model),
        (d_model, q),
        (d_ff, d_model),
        (d_ff, d_model),
        (d_model, d_ff),
    ]
}

/// The regions of prefill's scratch.
pub(crate) struct Scratch<'a> {
    /// Panels of the product at hand.
    pub(crate) slab: &'a mut [f32],
    /// Panels of the layer at hand, matrix after matrix; empty with [`Pack::Slab`].
    pub(crate) layer: &'a mut [f32],
    /// One equal part per thread.
    pub(crate) threads: &'a mut [f32],
}

/// Weights `[N, K]` of a product.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub(crate) weights: WeightView<'a>,
    /// Their panels, if they are packed.
    pub(crate) panels: Option<&'a [f32]>,
}

/// The matrices of one layer.
pub(crate) struct LayerMatrices<'a> {
    pub(crate) weights: &'a CpuWeights,
    pub(crate) index: usize,
    /// Panels of all of them, or empty.
    pub(crate) panels: &'a [f32],
    /// Where the panels of each lie.
    pub(crate) ranges: [Range<usize>; Projection::COUNT],
}

impl<'a> LayerMatrices<'a> {
    pub(crate) fn operand(&self, projection: Projection) -> Operand<'a> {
        let at = projection as usize;
        let matrix = self.weights.matrices(self.index).matrices()[at];
        let panels = (!self.panels.is_empty()).then(|| &self.panels[self.ranges[at].clone()]);
        Operand { weights: self.weights.view(matrix), panels }
    }
}
