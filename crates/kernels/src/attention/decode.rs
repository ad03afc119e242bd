//! The decode arithmetic: one query row per head, keys and values row-major.
//!
//! A block is the next [`KEY_BLOCK`] rows of a segment, not of the prompt: retained positions have
//! gaps. So sums are cut elsewhere than in prefill, and the result is the same within rounding, not
//! in its bits.

use super::AttendOne;
use super::logits::{Logits, Stack, pack_query};
use super::output::{normalise, rescale};
use super::softmax::Running;
use crate::gemm::Factors;
use crate::kv::expand::{expand_rows, transpose_rows};
use crate::kv::{KEY_BLOCK, KvLayout};
use crate::lanes::{Kernel, Lanes, MAX_LANES};
use crate::tile::{self, Chains, Product, ROW_VECTORS};

/// Widest micro-kernel panel of any tier: scratch is sized for it, so that its length does not
/// depend on the tier.
const MAX_WIDTH: usize = ROW_VECTORS * MAX_LANES;

/// Length of [`super::attend_one_scratch_len`].
pub(super) fn scratch_len(layout: KvLayout, group: usize) -> usize {
    parts(layout.head_dim.next_multiple_of(MAX_WIDTH), group).iter().sum()
}

/// Floats of each scratch part for rows of `width` floats: K panels, K or V rows, queries, weights,
/// output, maxima, sums.
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
    pub(super) attend: &'a AttendOne<'a>,
    pub(super) q: &'a mut [f32],
    pub(super) scratch: &'a mut [f32],
}

impl Kernel for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Decode { attend, q, scratch } = self;
        let AttendOne { layout, scale, softcap, segments } = *attend;
        let (d, row_bytes) = (layout.head_dim, layout.row_bytes());
        let mut heads = Heads::new::<L>(d, q.len() / d, scratch);
        heads.pack(lanes, scale, q);
        for segment in segments {
            let blocks = segment
                .k
                .chunks(KEY_BLOCK * row_bytes)
                .zip(segment.v.chunks(KEY_BLOCK * row_bytes));
            for (k, v) in blocks {
                let keys = k.len() / row_bytes;
                expand_rows(lanes, layout, k, heads.width, heads.rows);
                transpose_rows(lanes, heads.width, heads.rows, keys, heads.k_panels);
                expand_rows(lanes, layout, v, heads.width, heads.rows);
                heads.attend_block(lanes, softcap, keys);
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
    /// The block's keys, `[KEY_BLOCK / panel][width][panel]`.
    k_panels: &'a mut [f32],
    /// The block's keys, once they are in their panels its values, `[KEY_BLOCK, width]`.
    rows: &'a mut [f32],
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
        let [k_panels, rows, q, weights, out, max, sum] = parts(width, group).map(|len| {
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(len);
            rest = tail;
            part
        });
        Heads { width, k_panels, rows, q, weights, out, max, sum }
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
    fn attend_block<L: Lanes>(&mut self, lanes: L, softcap: Option<f32>, keys: usize) {
        let group = self.max.len();
        // All heads sit at the block's last key: they see the whole block.
        let stack = Stack { first_pos: keys - 1, group, rows: group, window: None };
        let (q, k_panels) = (&*self.q, &*self.k_panels);
        let factors = Factors::F32;
        let logits = Logits { stack, factors, q, head_dim: self.width, k_panels, base: 0, softcap };
        logits.write(lanes, 0..group, 0..keys, self.weights);
        for (head, weights) in self.weights.chunks_exact_mut(KEY_BLOCK).enumerate() {
            let mut running = Running { max: self.max[head], sum: self.sum[head] };
            let alpha = running.fold(lanes, weights, 0..keys);
            (self.max[head], self.sum[head]) = (running.max, running.sum);
            rescale(lanes, alpha, &mut self.out[head * self.width..][..self.width]);
        }
        for column in (0..self.width).step_by(tile::width::<L>()) {
            let product = Product {
                a: self.weights,
                lda: KEY_BLOCK,
                b: &self.rows[column..],
                ldb: self.width,
                k: keys,
            };
            let out = &mut self.out[column..];
            let chains = Chains { out, stride: self.width, continued: true };
            tile::multiply(lanes, product, group, chains);
        }
    }
}
