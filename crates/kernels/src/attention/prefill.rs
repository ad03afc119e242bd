//! The prefill arithmetic: tiles of stacked rows against the fixed grid of key blocks.

use std::ops::Range;

use super::Attend;
use super::logits::{Logits, Stack, pack_query};
use super::output::{normalise, rescale};
use super::softmax::{Running, see, weigh};
use crate::exp::exp_nonpositive;
use crate::fixed::{self, BLOCK, MAX_VECTORS, fix_row, fix_row_block};
use crate::gemm::Factors;
use crate::kv::expand::{self, expand_k, expand_v, k_panels_len, v_panels_len};
use crate::kv::{KEY_BLOCK, KvLayout};
use crate::lanes::{Kernel, Lanes};
use crate::tile::{self, Chains, Product};

/// Stacked rows of a tile: enough that expanding a block is a few per cent of the work on it. Queries
/// and outputs are passed over once per block and need not stay in the L2 cache.
pub(super) const TILE_ROWS: usize = 672;

/// Rows of a strip, a part of the tile: several micro-tiles whose weights stay in the L1 cache from
/// their logits to their product with V, while panels of K and V pass by.
const fn strip_rows<L: Lanes>() -> usize {
    let rows = 24usize.next_multiple_of(L::ROW_TILE);
    assert!(rows.next_multiple_of(L::N) <= MAX_STRIP);
    rows
}

/// Rows of a strip on any tier, in whole vectors.
const MAX_STRIP: usize = 32;

/// Scratch parts begin at multiples of a cache line's floats.
const LINE: usize = 16;

/// Length of [`super::attend_scratch_len`].
pub(super) struct ScratchLen {
    pub(super) layout: KvLayout,
    pub(super) rows: usize,
    pub(super) group: usize,
}

impl Kernel for ScratchLen {
    type Output = usize;

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) -> usize {
        parts::<L>(self.layout, self.rows.min(super::tile_positions(self.group)) * self.group)
            .iter()
            .sum()
    }
}

/// Floats of each scratch part for a tile of `rows` stacked rows: K panels, V panels, scales of
/// values, queries, weights, weights in fixed point, output, maxima and sums. Enough for either form
/// of factors.
fn parts<L: Lanes>(layout: KvLayout, rows: usize) -> [usize; 9] {
    let d = layout.head_dim;
    [
        k_panels_len(d),
        v_panels_len::<L>(d),
        KEY_BLOCK,
        rows * d,
        strip_rows::<L>() * KEY_BLOCK,
        strip_rows::<L>() * fixed::row_len(KEY_BLOCK),
        rows * d.next_multiple_of(tile::width::<L>()),
        rows,
        rows,
    ]
    .map(|len| len.next_multiple_of(LINE))
}

/// A call of [`super::attend`].
pub(super) struct Prefill<'a> {
    pub(super) attend: &'a Attend<'a>,
    pub(super) q: &'a mut [f32],
    pub(super) scratch: &'a mut [f32],
}

impl Kernel for Prefill<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Prefill { attend, q, scratch } = self;
        let step = super::tile_positions(attend.group);
        let mut first = 0;
        while first < attend.rows {
            let positions = step.min(attend.rows - first);
            let q = &mut q[first * attend.q_stride..];
            let mut tile = Tile::new::<L>(attend, first, positions, scratch);
            tile.pack(lanes, attend, q);
            tile.attend_all(lanes, attend);
            tile.unpack(lanes, attend, q);
            first += positions;
        }
    }
}

/// Rows of several positions and all heads of the group, with everything that a block changes.
struct Tile<'a> {
    stack: Stack,
    factors: Factors,
    /// The block's K, `[KEY_BLOCK / width][D][width]`, or in fixed point as `expand::fixed` says.
    k_panels: &'a mut [f32],
    /// The block's V, `[ceil(D / width)][KEY_BLOCK][width]`, or in fixed point as `expand::fixed`
    /// says.
    v_panels: &'a mut [f32],
    /// In fixed point the scale of every value, `[KEY_BLOCK]`.
    v_scales: &'a mut [f32],
    /// Scaled queries, `[rows, D]`; in fixed point each row at the same place.
    q: &'a mut [f32],
    /// Logits, then weights, of one strip, `[strip_rows, KEY_BLOCK]`.
    weights: &'a mut [f32],
    /// In fixed point the weights of one strip times the scales of their values, two blocks a row.
    fixed_weights: &'a mut [f32],
    /// O, `[rows, out_width]`.
    out: &'a mut [f32],
    /// D rounded up to whole panels.
    out_width: usize,
    /// `[rows]`: m.
    max: &'a mut [f32],
    /// `[rows]`: l.
    sum: &'a mut [f32],
}

impl<'a> Tile<'a> {
    /// The tile of rows `first..first + positions` of the call.
    #[inline(always)]
    fn new<L: Lanes>(
        attend: &Attend,
        first: usize,
        positions: usize,
        scratch: &'a mut [f32],
    ) -> Tile<'a> {
        let rows = positions * attend.group;
        let mut rest = scratch;
        let [k_panels, v_panels, v_scales, q, weights, fixed_weights, out, max, sum] =
            parts::<L>(attend.layout, rows).map(|len| {
                let (part, tail) = std::mem::take(&mut rest).split_at_mut(len);
                rest = tail;
                part
            });
        Tile {
            stack: Stack {
                first_pos: attend.first_pos + first,
                group: attend.group,
                rows,
                window: attend.window,
            },
            factors: attend.factors,
            k_panels,
            v_panels,
            v_scales,
            q,
            weights,
            fixed_weights,
            out,
            out_width: attend.layout.head_dim.next_multiple_of(tile::width::<L>()),
            max,
            sum,
        }
    }

    /// Takes the scaled queries in and resets the running state.
    #[inline(always)]
    fn pack<L: Lanes>(&mut self, lanes: L, attend: &Attend, q: &[f32]) {
        let (d, group) = (attend.layout.head_dim, attend.group);
        for (row, packed) in self.q.chunks_exact_mut(d).enumerate().take(self.stack.rows) {
            let from = &q[row / group * attend.q_stride + attend.col + row % group * d..][..d];
            pack_query(lanes, attend.scale, from, packed);
            if self.factors == Factors::Fixed {
                fix_row(lanes, packed, d);
            }
        }
        self.out.fill(0.0);
        self.max.fill(Running::EMPTY.max);
        self.sum.fill(Running::EMPTY.sum);
    }

    /// Every block that some row sees, ascending.
    #[inline(always)]
    fn attend_all<L: Lanes>(&mut self, lanes: L, attend: &Attend) {
        let layout = attend.layout;
        let keys = self.stack.first_pos + self.stack.rows / self.stack.group;
        let first_base = self.stack.first_key(0) / KEY_BLOCK * KEY_BLOCK;
        for base in (first_base..keys).step_by(KEY_BLOCK) {
            let (block, visible) = (base / KEY_BLOCK, (keys - base).min(KEY_BLOCK));
            let (k_bytes, v_bytes) = (layout.k_block_bytes(), layout.v_block_bytes());
            let k = &attend.k[block * k_bytes..][..k_bytes];
            let v = &attend.v[block * v_bytes..][..v_bytes];
            match self.factors {
                Factors::F32 => {
                    expand_k(lanes, layout, k, visible, self.k_panels);
                    expand_v(lanes, layout, v, visible, self.v_panels);
                }
                Factors::Fixed => {
                    expand::fixed::expand_k(lanes, layout, k, visible, self.k_panels);
                    expand::fixed::expand_v(lanes, layout, v, self.v_panels, self.v_scales);
                }
            }
            let mut row = self.stack.first_seeing(base);
            let end = self.stack.first_past(base + KEY_BLOCK - 1);
            while row < end {
                let rows = row..(row + strip_rows::<L>()).min(end);
                row = rows.end;
                self.attend_block(lanes, attend, base, rows);
            }
        }
    }

    /// One step of the online softmax over the expanded block for a strip of rows, all of which see
    /// a part of it.
    #[inline(always)]
    fn attend_block<L: Lanes>(
        &mut self,
        lanes: L,
        attend: &Attend,
        base: usize,
        rows: Range<usize>,
    ) {
        let stack = self.stack;
        let logits = Logits {
            stack,
            factors: self.factors,
            q: self.q,
            head_dim: attend.layout.head_dim,
            k_panels: self.k_panels,
            base,
            softcap: attend.softcap,
        };
        // Both ends of what a row sees ascend with the rows.
        let (first, last) = (stack.visible(rows.start, base), stack.visible(rows.end - 1, base));
        logits.write(lanes, rows.clone(), first.start..last.end, self.weights);
        // What the sums so far are worth: the factors of all rows at once, not each with the latency
        // of an exponential.
        let mut alphas = [0.0; MAX_STRIP];
        for (i, row) in rows.clone().enumerate() {
            let weights = &mut self.weights[i * KEY_BLOCK..][..KEY_BLOCK];
            let before = self.max[row];
            self.max[row] = see(lanes, weights, &stack.visible(row, base)).max(before);
            alphas[i] = before - self.max[row];
        }
        for alphas in alphas[..rows.len().next_multiple_of(L::N)].chunks_exact_mut(L::N) {
            lanes.store(exp_nonpositive(lanes, lanes.load(alphas)), alphas);
        }
        for (i, row) in rows.clone().enumerate() {
            let weights = &mut self.weights[i * KEY_BLOCK..][..KEY_BLOCK];
            let visible = stack.visible(row, base);
            let sum = weigh(lanes, weights, &visible, self.max[row]);
            self.sum[row] = self.sum[row] * alphas[i] + sum;
            // Most blocks have no new maximum.
            if alphas[i] != 1.0 {
                let out = &mut self.out[row * self.out_width..][..self.out_width];
                rescale(lanes, alphas[i], out);
            }
            if self.factors == Factors::Fixed {
                let words = fixed::row_len(KEY_BLOCK);
                let to = &mut self.fixed_weights[i * words..][..words];
                fix_weights(lanes, weights, self.v_scales, visible, to);
            }
        }
        if self.factors == Factors::Fixed {
            return self.extend_fixed(lanes, rows, first.start..last.end);
        }
        for panel in 0..self.out_width / tile::width::<L>() {
            if last.start == 0 && first.end == KEY_BLOCK {
                self.extend(lanes, panel, rows.start, rows.clone(), 0..KEY_BLOCK);
            } else {
                self.extend_edges(lanes, panel, base, rows.clone());
            }
        }
    }

    /// `O += P V` for a strip whose rows do not all see the whole block.
    ///
    /// The rows of a micro-tile run together over the keys that all of them see; each key before
    /// those, which the window of a later row has left, and each key behind them, which an earlier
    /// row does not see yet, extends the chains of the rows that see it. So a chain has its row's
    /// own keys, ascending, and no others: a weight of zero would not hide a NaN value.
    #[inline(always)]
    fn extend_edges<L: Lanes>(&mut self, lanes: L, panel: usize, base: usize, strip: Range<usize>) {
        let stack = self.stack;
        for row in strip.clone().step_by(L::ROW_TILE) {
            let end = (row + L::ROW_TILE).min(strip.end);
            let (first, last) = (stack.visible(row, base), stack.visible(end - 1, base));
            // A window below the tile's positions leaves no key to all: each goes alone.
            let common =
                if last.start < first.end { last.start..first.end } else { last.end..last.end };
            let mut key = first.start;
            while key < last.end {
                let keys = if key == common.start { common.clone() } else { key..key + 1 };
                key = keys.end;
                let seeing = stack.first_seeing(base + keys.end - 1).max(row)
                    ..stack.first_past(base + keys.start).min(end);
                self.extend(lanes, panel, strip.start, seeing, keys);
            }
        }
    }

    /// Extends the chains of `rows` by `keys` of the block, for the dims of one V panel; `strip` is
    /// the row whose weights come first.
    #[inline(always)]
    fn extend<L: Lanes>(
        &mut self,
        lanes: L,
        panel: usize,
        strip: usize,
        rows: Range<usize>,
        keys: Range<usize>,
    ) {
        let width = tile::width::<L>();
        let product = Product {
            a: &self.weights[(rows.start - strip) * KEY_BLOCK + keys.start..],
            lda: KEY_BLOCK,
            b: &self.v_panels[(panel * KEY_BLOCK + keys.start) * width..],
            ldb: width,
            k: keys.len(),
        };
        let chains = Chains {
            out: &mut self.out[rows.start * self.out_width + panel * width..],
            stride: self.out_width,
            continued: true,
        };
        tile::multiply(lanes, product, rows.len(), chains);
    }

    /// `O += P V` for a strip in fixed point, over the blocks of keys that have one of `keys`. What
    /// a row does not see has the weight zero, an integer, which hides whatever the value is.
    #[inline(always)]
    fn extend_fixed<L: Lanes>(&mut self, lanes: L, rows: Range<usize>, keys: Range<usize>) {
        let width = tile::width::<L>();
        let (start, end) = (keys.start / BLOCK * BLOCK, keys.end.next_multiple_of(BLOCK));
        let skipped = fixed::row_len(start);
        for panel in 0..self.out_width / width {
            let b = &self.v_panels[(panel * fixed::row_len(KEY_BLOCK) + skipped) * width..];
            let product = Product {
                a: &self.fixed_weights[skipped..],
                lda: fixed::row_len(KEY_BLOCK),
                b,
                ldb: width,
                k: end - start,
            };
            let chains = Chains {
                out: &mut self.out[rows.start * self.out_width + panel * width..],
                stride: self.out_width,
                continued: true,
            };
            Factors::Fixed.multiply(lanes, product, rows.len(), chains);
        }
    }

    /// Writes `O / l` over the queries.
    #[inline(always)]
    fn unpack<L: Lanes>(&self, lanes: L, attend: &Attend, q: &mut [f32]) {
        let (d, group) = (attend.layout.head_dim, attend.group);
        for row in 0..self.stack.rows {
            let to = &mut q[row / group * attend.q_stride + attend.col + row % group * d..][..d];
            let from = &self.out[row * self.out_width..][..self.out_width];
            normalise(lanes, from, self.sum[row], to);
        }
    }
}

/// Writes the `visible` weights of a row, `[KEY_BLOCK]`, times the scales of their values in fixed
/// point to `fixed`; weights that are not visible become zero.
#[inline(always)]
fn fix_weights<L: Lanes>(
    lanes: L,
    weights: &[f32],
    scales: &[f32],
    visible: Range<usize>,
    fixed: &mut [f32],
) {
    let zero = lanes.splat(0.0);
    let whole = visible == (0..KEY_BLOCK);
    let seen = visible.start / L::N * L::N..visible.end.next_multiple_of(L::N);
    for first in (0..KEY_BLOCK).step_by(BLOCK) {
        let mut scaled = [zero; MAX_VECTORS];
        for (i, scaled) in scaled.iter_mut().take(BLOCK / L::N).enumerate() {
            let at = first + i * L::N;
            if whole || seen.contains(&at) {
                let weight = lanes.load(&weights[at..]);
                *scaled = lanes.mul(weight, lanes.load(&scales[at..]));
                if !whole {
                    // The scale of a hidden value may be NaN.
                    *scaled = lanes.select(lanes.le(weight, zero), zero, *scaled);
                }
            }
        }
        let fixed = &mut fixed[fixed::row_len(first)..][..fixed::row_len(BLOCK)];
        fix_row_block(lanes, &scaled, fixed);
    }
}
