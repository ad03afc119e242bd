//! Activations of one chunk: three row-major regions of one buffer.
//!
//! | region | columns | holds, in order |
//! |---|---|---|
//! | x | d_model | normed input; then the residual stream |
//! | y | max(Hq D, d_model) | queries; attention output; normed MLP input; MLP output to be normed |
//! | z | max(d_ff, 2 Hkv D, d_model) | keys and values; attention output to be normed; then the gated MLP product |
//!
//! A layer never needs more at a time: `2 d_model + d_ff` floats per row for
//! ordinary shapes.

use tidekv::model::Shape;

/// Floats from one row of a region to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Strides {
    pub(crate) x: usize,
    pub(crate) y: usize,
    pub(crate) z: usize,
}

impl Strides {
    pub(crate) fn new(shape: &Shape) -> Self {
        let (q, kv) = (shape.q_cols(), shape.kv_cols());
        Strides {
            x: stride(shape.d_model),
            y: stride(q.max(shape.d_model)),
            z: stride(shape.d_ff.max(2 * kv).max(shape.d_model)),
        }
    }

    pub(crate) fn floats_per_row(&self) -> usize {
        self.x + self.y + self.z
    }

    /// Cuts a buffer of `rows` rows into its regions.
    pub(crate) fn split<'a>(&self, floats: &'a mut [f32], rows: usize) -> Regions<'a> {
        let (x, rest) = floats.split_at_mut(rows * self.x);
        let (y, rest) = rest.split_at_mut(rows * self.y);
        Regions { x, y, z: &mut rest[..rows * self.z] }
    }

    /// The y region, read only.
    pub(crate) fn y_of<'a>(&self, floats: &'a [f32], rows: usize) -> &'a [f32] {
        &floats[rows * self.x..][..rows * self.y]
    }
}

/// The regions of a chunk's activations.
pub(crate) struct Regions<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) y: &'a mut [f32],
    pub(crate) z: &'a mut [f32],
}

/// Columns, padded where a row would be a multiple of 4 KiB: the rows of a GEMM
/// tile would then compete for one set of the L1 cache. Two at least, which one
/// fixed-point number and its scale need.
fn stride(cols: usize) -> usize {
    const PAGE: usize = 4096 / size_of::<f32>();
    const PADDING: usize = 16;
    if cols.is_multiple_of(PAGE) { cols + PADDING } else { cols.max(2) }
}
