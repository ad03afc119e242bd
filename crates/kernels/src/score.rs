//! Layer-end scoring of one query head by its observation window: the two passes of Algorithm 2, in
//! f32 throughout.
//!
//! Pass 1 ([`score_stats`]) leaves, for each of the W window rows, the maximum M and the sum Z of
//! `exp(l - M)` over all S keys (paper equations (4)-(6)). Pass 2 ([`score_block`]) recomputes the
//! logits of some keys, by the same code on the same blocks and so to the same bits, and returns
//! each key's mean probability `exp(l - M) / Z` over the rows (selector spec sections 2 and 14).
//! Both follow the fixed grid of [`KEY_BLOCK`] positions: nothing depends on how the caller slices
//! the keys, and no `[W, S]` tensor exists.

use std::ops::Range;

use crate::attention::assert_cap;
use crate::attention::logits::{Logits, Stack, pack_query};
use crate::attention::softmax::Running;
use crate::exp::exp_nonpositive;
use crate::gemm::Factors;
use crate::isa::Isa;
use crate::kv::expand::{expand_k, k_panels_len};
use crate::kv::{KEY_BLOCK, KvLayout};
use crate::lanes::{Kernel, Lanes, dispatch};

/// The observation window of one query head and the keys of its KV head.
///
/// Row `r` sits at position `S - W + r` and sees keys up to it.
#[derive(Clone, Copy)]
pub struct ScoreHead<'a> {
    /// Shape of K.
    pub layout: KvLayout,
    /// K blocks of the KV head, holding at least S keys.
    pub k: &'a [u8],
    /// S, all keys of the prompt, window included.
    pub n_keys: usize,
    /// Post-RoPE queries `[W, D]` of the last W positions.
    pub q: &'a [f32],
    /// W, from 1 to S.
    pub rows: usize,
    /// Factor of the logits, usually 1/sqrt(D); applied to the query.
    pub scale: f32,
    /// `Some(c)`: a scaled logit l becomes `c tanh(l / c)`, as in attention; finite and positive.
    pub softcap: Option<f32>,
}

/// What pass 1 found for each window row.
#[derive(Clone, Copy)]
pub struct RowStats<'a> {
    /// M `[W]`, the largest logit.
    pub max: &'a [f32],
    /// Z `[W]`, the sum of `exp(l - M)`.
    pub sum: &'a [f32],
}

/// Floats of scratch that both passes need for W = `rows`: one expanded K block, the scaled queries
/// and one block of logits, whatever the number of keys.
pub fn score_scratch_len(layout: KvLayout, rows: usize) -> usize {
    k_panels_len(layout.head_dim) + rows * (layout.head_dim + KEY_BLOCK)
}

/// Pass 1: writes each row's maximum and sum, `[W]`, over all S keys. `scratch` has
/// [`score_scratch_len`] floats.
pub fn score_stats(
    isa: Isa,
    head: &ScoreHead,
    max: &mut [f32],
    sum: &mut [f32],
    scratch: &mut [f32],
) {
    head.assert_valid();
    assert!(max.len() == head.rows && sum.len() == head.rows, "statistics of {} rows", head.rows);
    dispatch(isa, Stats { head, max, sum, scratch });
}

/// Pass 2: writes the mean probability of each key of `keys` over the W rows to `out`,
/// `[keys.len()]`.
///
/// `keys` are positions below S; `stats` are pass 1's results for the same head and tier. Rows are
/// added in ascending order; the value of a key does not depend on the range. `scratch` has
/// [`score_scratch_len`] floats.
pub fn score_block(
    isa: Isa,
    head: &ScoreHead,
    stats: RowStats,
    keys: Range<usize>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    head.assert_valid();
    assert!(
        stats.max.len() == head.rows && stats.sum.len() == head.rows,
        "statistics of {} rows",
        head.rows
    );
    assert!(keys.end <= head.n_keys, "keys {keys:?} of {}", head.n_keys);
    assert_eq!(out.len(), keys.len(), "one score per key");
    dispatch(isa, Block { head, stats, keys, out, scratch });
}

impl ScoreHead<'_> {
    fn assert_valid(&self) {
        self.layout.assert_valid();
        assert_cap(self.softcap);
        assert!(
            0 < self.rows && self.rows <= self.n_keys,
            "{} rows of {} positions",
            self.rows,
            self.n_keys
        );
        assert_eq!(self.q.len(), self.rows * self.layout.head_dim, "queries of {} rows", self.rows);
        let bytes = self.layout.blocks(self.n_keys) * self.layout.k_block_bytes();
        assert!(self.k.len() >= bytes, "K too short for {} keys", self.n_keys);
    }

    fn stack(&self) -> Stack {
        let first_pos = self.n_keys - self.rows;
        Stack { first_pos, group: 1, rows: self.rows, window: None }
    }
}

/// The head's scratch: scaled queries, and the block being scored.
struct Window<'a> {
    head: &'a ScoreHead<'a>,
    /// The block's K, `[KEY_BLOCK / width][D][width]`.
    k_panels: &'a mut [f32],
    /// Scaled queries, `[W, D]`.
    q: &'a mut [f32],
    /// `[W, KEY_BLOCK]`
    logits: &'a mut [f32],
}

impl<'a> Window<'a> {
    #[inline(always)]
    fn new<L: Lanes>(lanes: L, head: &'a ScoreHead<'a>, scratch: &'a mut [f32]) -> Window<'a> {
        let d = head.layout.head_dim;
        let (k_panels, rest) = scratch.split_at_mut(k_panels_len(d));
        let (q, rest) = rest.split_at_mut(head.rows * d);
        let logits = &mut rest[..head.rows * KEY_BLOCK];
        for (packed, row) in q.chunks_exact_mut(d).zip(head.q.chunks_exact(d)) {
            pack_query(lanes, head.scale, row, packed);
        }
        Window { head, k_panels, q, logits }
    }

    /// Logits of `keys` (positions inside the block) of the block at position `base`, in whole
    /// panels.
    #[inline(always)]
    fn fill<L: Lanes>(&mut self, lanes: L, base: usize, keys: Range<usize>) {
        let layout = self.head.layout;
        let block =
            &self.head.k[base / KEY_BLOCK * layout.k_block_bytes()..][..layout.k_block_bytes()];
        expand_k(lanes, layout, block, keys.end, self.k_panels);
        let stack = self.head.stack();
        let logits = Logits {
            stack,
            factors: Factors::F32,
            q: self.q,
            head_dim: layout.head_dim,
            k_panels: self.k_panels,
            base,
            softcap: self.head.softcap,
        };
        logits.write(lanes, 0..stack.rows, keys, self.logits);
    }
}

struct Stats<'a> {
    head: &'a ScoreHead<'a>,
    max: &'a mut [f32],
    sum: &'a mut [f32],
    scratch: &'a mut [f32],
}

impl Kernel for Stats<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Stats { head, max, sum, scratch } = self;
        let (stack, mut window) = (head.stack(), Window::new(lanes, head, scratch));
        max.fill(Running::EMPTY.max);
        sum.fill(Running::EMPTY.sum);
        for base in (0..head.n_keys).step_by(KEY_BLOCK) {
            window.fill(lanes, base, 0..stack.visible(stack.rows - 1, base).end);
            for row in stack.first_seeing(base)..head.rows {
                let mut running = Running { max: max[row], sum: sum[row] };
                let logits = &mut window.logits[row * KEY_BLOCK..][..KEY_BLOCK];
                running.fold(lanes, logits, stack.visible(row, base));
                (max[row], sum[row]) = (running.max, running.sum);
            }
        }
    }
}

struct Block<'a> {
    head: &'a ScoreHead<'a>,
    stats: RowStats<'a>,
    keys: Range<usize>,
    out: &'a mut [f32],
    scratch: &'a mut [f32],
}

impl Kernel for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Block { head, stats, keys, out, scratch } = self;
        let mut window = Window::new(lanes, head, scratch);
        let (mut key, mut out) = (keys.start, out);
        while key < keys.end {
            let base = key / KEY_BLOCK * KEY_BLOCK;
            let inside = key - base..(keys.end - base).min(KEY_BLOCK);
            window.fill(lanes, base, inside.clone());
            let mut means = [0.0; KEY_BLOCK];
            for at in (inside.start / L::N * L::N..inside.end).step_by(L::N) {
                let mean = mean_weight(lanes, &window, stats, base, at);
                lanes.store(mean, &mut means[at..]);
            }
            let (now, later) = out.split_at_mut(inside.len());
            now.copy_from_slice(&means[inside]);
            (key, out) = (base + KEY_BLOCK, later);
        }
    }
}

/// Mean over the rows of `exp(l - M) / Z` for the vector of keys at `base + at`; hidden keys add
/// nothing to it.
#[inline(always)]
fn mean_weight<L: Lanes>(
    lanes: L,
    window: &Window,
    stats: RowStats,
    base: usize,
    at: usize,
) -> L::V {
    let (stack, zero) = (window.head.stack(), lanes.splat(0.0));
    let mut total = zero;
    for row in stack.first_seeing(base + at)..stack.rows {
        let logit = lanes.load(&window.logits[row * KEY_BLOCK + at..]);
        let weight = exp_nonpositive(lanes, lanes.sub(logit, lanes.splat(stats.max[row])));
        let probability = lanes.div(weight, lanes.splat(stats.sum[row]));
        let seen = lanes.first(stack.visible(row, base).end - at);
        total = lanes.add(total, lanes.select(seen, probability, zero));
    }
    lanes.div(total, lanes.splat(stack.rows as f32))
}

#[cfg(test)]
mod tests;
