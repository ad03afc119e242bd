//! The decode arithmetic: one query row per head, keys and values row-major.
//!
//! A logit is a dot product along D (lanes first, then their fixed-order sum), not prefill's chain over D: the same
//! value within rounding, not the same bits.

use super::DecodeSegment;
use super::logits::pack_query;
use super::output::{Extend, normalise, rescale};
use super::softmax::Running;
use crate::kv::expand::expand_rows;
use crate::kv::{KEY_BLOCK, KvLayout};
use crate::lanes::{Kernel, Lanes, MAX_LANES};
use crate::tile::{self, Product, ROW_VECTORS};

/// Widest micro-kernel panel of any tier: scratch is sized for it, so that its length does not depend on the tier.
const MAX_WIDTH: usize = ROW_VECTORS * MAX_LANES;

/// Keys whose dot products with one query are accumulated side by side.
const DOTS: usize = 4;

/// Length of [`super::attend_one_scratch_len`].
pub(super) fn scratch_len(layout: KvLayout, group: usize) -> usize {
    parts(layout.head_dim.next_multiple_of(MAX_WIDTH), group).iter().sum()
}

/// Floats of each scratch part for rows of `width` floats: K rows, V rows, queries, weights, output, maxima, sums.
fn parts(width: usize, group: usize) -> [usize; 7] {
    [
        KEY_BLOCK * width,
        KEY_BLOCK * width,
        group * width,
        group * KEY_BLOCK,
        group * width,
        group,
        group,
    ]
}

/// A call of [`super::attend_one`].
pub(super) struct Decode<'a> {
    pub(super) layout: KvLayout,
    pub(super) scale: f32,
    pub(super) q: &'a mut [f32],
    pub(super) segments: &'a [DecodeSegment<'a>],
    pub(super) scratch: &'a mut [f32],
}

impl Kernel for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Decode { layout, scale, q, segments, scratch } = self;
        let (d, row_bytes) = (layout.head_dim, layout.row_bytes());
        let mut heads = Heads::new::<L>(d, q.len() / d, scratch);
        heads.pack(lanes, scale, q);
        for segment in segments {
            let blocks = segment
                .k
                .chunks(KEY_BLOCK * row_bytes)
                .zip(segment.v.chunks(KEY_BLOCK * row_bytes));
            for (k, v) in blocks {
                expand_rows(lanes, layout, k, heads.width, heads.k);
                expand_rows(lanes, layout, v, heads.width, heads.v);
                heads.attend_block(lanes, k.len() / row_bytes);
            }
        }
        for ((to, from), &sum) in
            q.chunks_exact_mut(d).zip(heads.out.chunks_exact(heads.width)).zip(&*heads.sum)
        {
            normalise(lanes, from, sum, to);
        }
    }
}

/// The heads of a group at one position, with everything that a block changes.
struct Heads<'a> {
    /// D rounded up to whole panels.
    width: usize,
    /// The block's keys, `[KEY_BLOCK, width]`.
    k: &'a mut [f32],
    /// The block's values, `[KEY_BLOCK, width]`.
    v: &'a mut [f32],
    /// Scaled queries, `[G, width]`, zero beyond D.
    q: &'a mut [f32],
    /// Logits, then weights, `[G, KEY_BLOCK]`.
    weights: &'a mut [f32],
    /// O, `[G, width]`.
    out: &'a mut [f32],
    /// `[G]`: m.
    max: &'a mut [f32],
    /// `[G]`: l.
    sum: &'a mut [f32],
}

impl<'a> Heads<'a> {
    #[inline(always)]
    fn new<L: Lanes>(head_dim: usize, group: usize, scratch: &'a mut [f32]) -> Heads<'a> {
        let width = head_dim.next_multiple_of(tile::width::<L>());
        let mut rest = scratch;
        let [k, v, q, weights, out, max, sum] = parts(width, group).map(|len| {
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(len);
            rest = tail;
            part
        });
        Heads { width, k, v, q, weights, out, max, sum }
    }

    /// Takes the scaled queries in and resets the running state.
    #[inline(always)]
    fn pack<L: Lanes>(&mut self, lanes: L, scale: f32, q: &[f32]) {
        let head_dim = q.len() / self.max.len();
        self.q.fill(0.0);
        for (packed, from) in self.q.chunks_exact_mut(self.width).zip(q.chunks_exact(head_dim)) {
            pack_query(lanes, scale, from, &mut packed[..head_dim]);
        }
        self.out.fill(0.0);
        self.max.fill(Running::EMPTY.max);
        self.sum.fill(Running::EMPTY.sum);
    }

    /// One step of the online softmax over the first `keys` rows of the widened block.
    #[inline(always)]
    fn attend_block<L: Lanes>(&mut self, lanes: L, keys: usize) {
        let group = self.max.len();
        for head in 0..group {
            let query = &self.q[head * self.width..][..self.width];
            let weights = &mut self.weights[head * KEY_BLOCK..][..KEY_BLOCK];
            dots(lanes, query, self.k, &mut weights[..keys]);
            let mut running = Running { max: self.max[head], sum: self.sum[head] };
            let alpha = running.fold(lanes, weights, keys);
            (self.max[head], self.sum[head]) = (running.max, running.sum);
            rescale(lanes, alpha, &mut self.out[head * self.width..][..self.width]);
        }
        for column in (0..self.width).step_by(tile::width::<L>()) {
            let product = Product {
                a: self.weights,
                lda: KEY_BLOCK,
                b: &self.v[column..],
                ldb: self.width,
                k: keys,
            };
            let mut sink = Extend { out: &mut self.out[column..], stride: self.width };
            tile::multiply(lanes, product, group, &mut sink);
        }
    }
}

/// `logits[i] = query · k[i]`; `k` is `[.., query.len()]`, whole vectors long.
#[inline(always)]
fn dots<L: Lanes>(lanes: L, query: &[f32], k: &[f32], logits: &mut [f32]) {
    let width = query.len();
    let mut groups = logits.chunks_exact_mut(DOTS);
    let mut rows = k.chunks_exact(DOTS * width);
    for (logits, rows) in groups.by_ref().zip(rows.by_ref()) {
        let mut chains = [lanes.splat(0.0); DOTS];
        for at in (0..width).step_by(L::N) {
            let q = lanes.load(&query[at..]);
            for (i, chain) in chains.iter_mut().enumerate() {
                *chain = lanes.fma(q, lanes.load(&rows[i * width + at..]), *chain);
            }
        }
        for (logit, chain) in logits.iter_mut().zip(chains) {
            *logit = lanes.reduce_add(chain);
        }
    }
    let done = logits.len() / DOTS * DOTS;
    for (logit, row) in logits[done..].iter_mut().zip(k[done * width..].chunks_exact(width)) {
        let mut chain = lanes.splat(0.0);
        for at in (0..width).step_by(L::N) {
            chain = lanes.fma(lanes.load(&query[at..]), lanes.load(&row[at..]), chain);
        }
        *logit = lanes.reduce_add(chain);
    }
}
