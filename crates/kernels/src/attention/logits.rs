//! Logits of stacked query rows against one expanded K block, shared by prefill and scoring.

use std::ops::Range;

use crate::kv::KEY_BLOCK;
use crate::lanes::Lanes;
use crate::tile::{self, Product, ROW_VECTORS, Rows};

/// Query rows stacked as `[position][head]`: `group` heads at each absolute position from
/// `first_pos`.
#[derive(Clone, Copy)]
pub(crate) struct Stack {
    /// Absolute position of the first row.
    pub(crate) first_pos: usize,
    /// Rows at one position.
    pub(crate) group: usize,
    /// All rows, a multiple of `group`.
    pub(crate) rows: usize,
}

impl Stack {
    /// First row that sees the key at absolute position `key`; `rows` if none does.
    #[inline(always)]
    pub(crate) fn first_seeing(&self, key: usize) -> usize {
        (key.saturating_sub(self.first_pos) * self.group).min(self.rows)
    }

    /// Keys of the block at position `base` that `row` sees, 0 to `KEY_BLOCK`.
    #[inline(always)]
    pub(crate) fn visible(&self, row: usize, base: usize) -> usize {
        (self.first_pos + row / self.group + 1).saturating_sub(base).min(KEY_BLOCK)
    }
}

/// Packed queries `[rows, D]`, already scaled, against the K panels of the block at position
/// `base`.
#[derive(Clone, Copy)]
pub(crate) struct Logits<'a> {
    /// Which rows these are.
    pub(crate) stack: Stack,
    /// `[rows, D]` queries times the scale.
    pub(crate) q: &'a [f32],
    /// D.
    pub(crate) head_dim: usize,
    /// The block from [`crate::kv::expand::expand_k`].
    pub(crate) k_panels: &'a [f32],
    /// Absolute position of the block's first key.
    pub(crate) base: usize,
}

impl Logits<'_> {
    /// Writes the logits of `rows` and `keys` (positions inside the block, widened to whole panels)
    /// to `out`, `[rows.len(), KEY_BLOCK]`.
    ///
    /// Panels that a row does not see at all are not written; inside a panel hidden keys get a
    /// value to be masked. The bits of a logit depend on its query and its key only.
    #[inline(always)]
    pub(crate) fn write<L: Lanes>(
        &self,
        lanes: L,
        rows: Range<usize>,
        keys: Range<usize>,
        out: &mut [f32],
    ) {
        let (d, width) = (self.head_dim, tile::width::<L>());
        assert!(out.len() >= rows.len() * KEY_BLOCK && keys.end <= KEY_BLOCK);
        for panel in keys.start / width..keys.end.div_ceil(width) {
            let first = self.stack.first_seeing(self.base + panel * width).max(rows.start);
            if first >= rows.end {
                break;
            }
            let product = Product {
                a: &self.q[first * d..],
                lda: d,
                b: &self.k_panels[panel * d * width..],
                ldb: width,
                k: d,
            };
            let mut sink =
                Store { out: &mut out[(first - rows.start) * KEY_BLOCK + panel * width..] };
            tile::multiply(lanes, product, rows.end - first, &mut sink);
        }
    }
}

/// Chains from zero into rows of `KEY_BLOCK` floats.
struct Store<'a> {
    out: &'a mut [f32],
}

impl<L: Lanes> Rows<L> for Store<'_> {
    #[inline(always)]
    fn start(&self, lanes: L, _: usize) -> [L::V; ROW_VECTORS] {
        [lanes.splat(0.0); ROW_VECTORS]
    }

    #[inline(always)]
    fn finish(&mut self, lanes: L, row: usize, acc: [L::V; ROW_VECTORS]) {
        let out = &mut self.out[row * KEY_BLOCK..][..tile::width::<L>()];
        lanes.store(acc[0], out);
        lanes.store(acc[1], &mut out[L::N..]);
    }
}

/// Copies one query row times `scale` into its packed row.
#[inline(always)]
pub(crate) fn pack_query<L: Lanes>(lanes: L, scale: f32, q: &[f32], packed: &mut [f32]) {
    let factor = lanes.splat(scale);
    for (to, from) in packed.chunks_mut(L::N).zip(q.chunks(L::N)) {
        lanes.store_first(lanes.mul(lanes.load_first(from), factor), to);
    }
}
