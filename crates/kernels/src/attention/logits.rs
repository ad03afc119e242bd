//! Logits of stacked query rows against one expanded K block, shared by prefill and scoring.

use std::num::NonZeroUsize;
use std::ops::Range;

use crate::exp::soft_cap;
use crate::gemm::Factors;
use crate::kv::KEY_BLOCK;
use crate::lanes::Lanes;
use crate::tile::{self, Chains, Product};

/// Query rows stacked as `[position][head]`: `group` heads at each absolute position from
/// `first_pos`. A row sees its own position and what is before it, as far back as the window.
#[derive(Clone, Copy)]
pub(crate) struct Stack {
    /// Absolute position of the first row.
    pub(crate) first_pos: usize,
    /// Rows at one position.
    pub(crate) group: usize,
    /// All rows, a multiple of `group`.
    pub(crate) rows: usize,
    /// Keys that a row sees at most, the one at its own position included; `None`: all.
    pub(crate) window: Option<NonZeroUsize>,
}

impl Stack {
    /// First row at or behind the absolute position `key`, and so the first that sees that key;
    /// `rows` if there is none.
    #[inline(always)]
    pub(crate) fn first_seeing(&self, key: usize) -> usize {
        (key.saturating_sub(self.first_pos) * self.group).min(self.rows)
    }

    /// First row whose window has left the key at absolute position `key` behind; `rows` if there
    /// is none. The rows that see the key end here.
    #[inline(always)]
    pub(crate) fn first_past(&self, key: usize) -> usize {
        let Some(window) = self.window else { return self.rows };
        let positions = key.saturating_add(window.get()).saturating_sub(self.first_pos);
        positions.saturating_mul(self.group).min(self.rows)
    }

    /// First absolute position that `row` sees.
    #[inline(always)]
    pub(crate) fn first_key(&self, row: usize) -> usize {
        let Some(window) = self.window else { return 0 };
        (self.first_pos + row / self.group + 1).saturating_sub(window.get())
    }

    /// Keys of the block at position `base` that `row` sees, inside `0..KEY_BLOCK`; empty if it
    /// sees none of them.
    #[inline(always)]
    pub(crate) fn visible(&self, row: usize, base: usize) -> Range<usize> {
        let end = (self.first_pos + row / self.group + 1).saturating_sub(base).min(KEY_BLOCK);
        self.first_key(row).saturating_sub(base).min(end)..end
    }
}

/// Packed queries, already scaled, against the K panels of the block at position
/// `base`.
#[derive(Clone, Copy)]
pub(crate) struct Logits<'a> {
    /// Which rows these are.
    pub(crate) stack: Stack,
    /// The form of queries and keys.
    pub(crate) factors: Factors,
    /// `[rows, D]` queries times the scale; in fixed point each row at the same place.
    pub(crate) q: &'a [f32],
    /// D.
    pub(crate) head_dim: usize,
    /// The block from [`crate::kv::expand::expand_k`], or from `expand::fixed::expand_k`.
    pub(crate) k_panels: &'a [f32],
    /// Absolute position of the block's first key.
    pub(crate) base: usize,
    /// Cap of [`soft_cap`], finite and positive.
    pub(crate) softcap: Option<f32>,
}

impl Logits<'_> {
    /// Writes the logits of `rows` and `keys` (positions inside the block, widened to whole panels)
    /// to `out`, `[rows.len(), KEY_BLOCK]`.
    ///
    /// Panels that a row does not see at all are not written; inside a panel hidden keys get a
    /// value to be masked, capped or not. The bits of a logit depend on its query and its key only.
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
            let first_key = self.base + panel * width;
            let first = self.stack.first_seeing(first_key).max(rows.start);
            let end = self.stack.first_past(first_key + width - 1).min(rows.end);
            if first >= end {
                continue;
            }
            let a = &self.q[first * d..];
            let b = &self.k_panels[panel * self.factors.floats(d) * width..];
            let out = &mut out[(first - rows.start) * KEY_BLOCK + panel * width..];
            let chains = Chains { out, stride: KEY_BLOCK, continued: false };
            let product = Product { a, lda: d, b, ldb: width, k: d };
            self.factors.multiply(lanes, product, end - first, chains);
        }
        if let Some(cap) = self.softcap {
            self.cap(lanes, cap, rows, keys, out);
        }
    }

    /// Caps the logits of `rows` that are among `keys` and visible, in whole vectors.
    #[inline(always)]
    fn cap<L: Lanes>(
        &self,
        lanes: L,
        cap: f32,
        rows: Range<usize>,
        keys: Range<usize>,
        out: &mut [f32],
    ) {
        for (row, out) in rows.zip(out.chunks_exact_mut(KEY_BLOCK)) {
            let seen = self.stack.visible(row, self.base);
            let (start, end) = (seen.start.max(keys.start), seen.end.min(keys.end));
            for at in (start / L::N * L::N..end).step_by(L::N) {
                let vector = &mut out[at..at + L::N];
                lanes.store(soft_cap(lanes, cap, lanes.load(vector)), vector);
            }
        }
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
