//! The verbs of layer-end compression: window queries, the two scoring passes,
//! and gathering.

use crate::activation::Strides;
use crate::backend::Cpu;
use crate::sizes::kv_layout;
use std::ops::Range;
use tidekv::backend::{ChunkRows, ScoreBlock, Workspace};
use tidekv::cache::{ActiveKv, Observation, RetainedKv};
use tidekv::model::{Arithmetic, Shape};
use tidekv::position::Pos;
use tidekv::select::{ScoreRows, reduce_group};
use tidekv_kernels::element;
use tidekv_kernels::kv::{KEY_BLOCK, KvLayout, gather_k, gather_v};
use tidekv_kernels::score::{RowStats, ScoreHead, score_block, score_scratch_len, score_stats};

/// Bytes of the longest key: [`Shape::validate`] bounds the width of a head.
const MAX_ROW_BYTES: usize = 512 * size_of::<f32>();

/// The parts of an observation buffer: queries `[Hq, W, D]`, maxima `[Hq, W]`
/// and normalisers `[Hq, W]`.
fn parts<'a>(floats: &'a [f32], shape: &Shape, window: usize) -> (&'a [f32], RowStats<'a>) {
    let stats = shape.n_heads * window;
    let (queries, rest) = floats.split_at(stats * shape.head_dim);
    (queries, RowStats { max: &rest[..stats], sum: &rest[stats..2 * stats] })
}

/// One query head's window against the keys of its KV head.
struct Window<'a> {
    shape: &'a Shape,
    arithmetic: &'a Arithmetic,
    layout: KvLayout,
    active: &'a ActiveKv<Cpu>,
    queries: &'a [f32],
    window: usize,
}

impl<'a> Window<'a> {
    fn head(&self, head: usize) -> ScoreHead<'a> {
        let keys = self.active.k.bytes_view();
        let head_bytes = keys.len() / self.shape.n_kv_heads;
        let kv_head = head / self.shape.group();
        let floats = self.window * self.shape.head_dim;
        ScoreHead {
            layout: self.layout,
            k: &keys[kv_head * head_bytes..][..head_bytes],
            n_keys: self.active.len,
            q: &self.queries[head * floats..][..floats],
            rows: self.window,
            scale: self.arithmetic.attention_scale,
            softcap: self.arithmetic.attention_softcap,
        }
    }
}

impl Cpu {
    pub(crate) fn keep_window(
        &self,
        shape: &Shape,
        (chunk, rows): (&ChunkRows, Range<usize>),
        work: &Workspace<Self>,
        observation: &mut Observation<Self>,
        at: usize,
    ) {
        let strides = Strides::new(shape);
        debug_assert!(chunk.first_query <= rows.start, "queries of {rows:?} were not computed");
        let y = strides.y_of(work.activation.floats(), work.rows);
        let (d, window) = (shape.head_dim, observation.window);
        let kept = observation.buffer.floats_mut().chunks_exact_mut(window * d);
        for (head, kept) in kept.take(shape.n_heads).enumerate() {
            for (row, kept) in rows.clone().zip(kept[at * d..].chunks_exact_mut(d)) {
                kept.copy_from_slice(&y[row * strides.y + head * d..][..d]);
            }
        }
    }

    pub(crate) fn window_stats(
        &self,
        shape: &Shape,
        observation: &mut Observation<Self>,
        active: &ActiveKv<Self>,
        work: &mut Workspace<Self>,
    ) {
        let window = observation.window;
        let stats = shape.n_heads * window;
        let (queries, rest) = observation.buffer.floats_mut().split_at_mut(stats * shape.head_dim);
        let (max, sum) = rest[..2 * stats].split_at_mut(stats);
        let layout = kv_layout(shape, active.element);
        let window_of =
            Window { shape, arithmetic: &self.model().1, layout, active, queries, window };
        let heads = max.chunks_exact_mut(window).zip(sum.chunks_exact_mut(window)).enumerate();
        let scratch = self.sizes.split(shape, work.scratch.floats_mut()).threads;
        self.pool.each_with(heads, scratch, |(head, (max, sum)), scratch| {
            let scratch = &mut scratch[..score_scratch_len(layout, window)];
            score_stats(self.isa, &window_of.head(head), max, sum, scratch);
        });
    }

    pub(crate) fn score_keys(
        &self,
        shape: &Shape,
        block: ScoreBlock<'_, Self>,
        work: &mut Workspace<Self>,
        out: &mut [f32],
    ) {
        let ScoreBlock { observation, active, keys, rows } = block;
        let window = observation.window;
        let (queries, stats) = parts(observation.buffer.floats(), shape, window);
        let layout = kv_layout(shape, active.element);
        let window_of =
            Window { shape, arithmetic: &self.model().1, layout, active, queries, window };
        let score_head = |head: usize, keys, out: &mut [f32], scratch: &mut [f32]| {
            let of_head = head * window..(head + 1) * window;
            let stats = RowStats { max: &stats.max[of_head.clone()], sum: &stats.sum[of_head] };
            score_block(self.isa, &window_of.head(head), stats, keys, out, scratch);
        };
        let scratch = self.sizes.split(shape, work.scratch.floats_mut()).threads;
        let score_scratch = score_scratch_len(layout, window);
        let heads = out.chunks_exact_mut(keys.len()).enumerate();
        match rows {
            ScoreRows::PerQueryHead => {
                self.pool.each_with(heads, scratch, |(head, out), scratch| {
                    score_head(head, keys.clone(), out, &mut scratch[..score_scratch]);
                })
            }
            ScoreRows::Grouped(reduce) => {
                let group = shape.group();
                self.pool.each_with(heads, scratch, |(kv_head, out), scratch| {
                    let (scratch, scores) = scratch.split_at_mut(score_scratch);
                    for part in key_blocks(keys.clone()) {
                        let scores = &mut scores[..group * part.len()];
                        let rows = scores.chunks_exact_mut(part.len()).enumerate();
                        for (member, row) in rows {
                            score_head(kv_head * group + member, part.clone(), row, scratch);
                        }
                        let at = part.start - keys.start;
                        reduce_group(reduce, scores, &mut out[at..at + part.len()]);
                    }
                });
            }
        }
    }

    /// Rows `keys` of every KV head as f32, keys and values `[Hkv, keys.len(), D]`.
    pub(crate) fn read_rows(
        &self,
        shape: &Shape,
        active: &ActiveKv<Self>,
        keys: Range<usize>,
        out: [&mut [f32]; 2],
    ) {
        let layout = kv_layout(shape, active.element);
        let from = [active.k.bytes_view(), active.v.bytes_view()];
        let head_bytes = from[0].len() / shape.n_kv_heads;
        let gathers = [gather_k, gather_v];
        for ((from, gather), out) in from.into_iter().zip(gathers).zip(out) {
            let heads =
                from.chunks_exact(head_bytes).zip(out.chunks_mut(keys.len() * shape.head_dim));
            self.pool.each(heads, |(head, out)| {
                let mut row = [0; MAX_ROW_BYTES];
                let row = &mut row[..layout.row_bytes()];
                for (key, out) in keys.clone().zip(out.chunks_exact_mut(shape.head_dim)) {
                    // Positions fit u32: the context is bounded by it.
                    gather(layout, head, &[key as u32], row);
                    element::load(self.isa, layout.element, row, out);
                }
            });
        }
    }

    pub(crate) fn gather_rows(
        &self,
        shape: &Shape,
        active: &ActiveKv<Self>,
        retained: &mut RetainedKv<Self>,
    ) {
        let layout = kv_layout(shape, active.element);
        let row_bytes = layout.row_bytes();
        let head_bytes = active.k.bytes_view().len() / shape.n_kv_heads;
        let RetainedKv { k, v, kept, .. } = retained;
        let (mut k, mut v) = (k.bytes_mut(), v.bytes_mut());
        for head in 0..kept.n_heads() {
            let positions = kept.head(head);
            let (k_rows, k_rest) = k.split_at_mut(positions.len() * row_bytes);
            let (v_rows, v_rest) = v.split_at_mut(positions.len() * row_bytes);
            (k, v) = (k_rest, v_rest);
            let of_head = head * head_bytes..(head + 1) * head_bytes;
            let (from_k, from_v) =
                (&active.k.bytes_view()[of_head.clone()], &active.v.bytes_view()[of_head]);
            let pieces = positions
                .chunks(KEY_BLOCK)
                .zip(k_rows.chunks_mut(KEY_BLOCK * row_bytes))
                .zip(v_rows.chunks_mut(KEY_BLOCK * row_bytes));
            self.pool.each(pieces, |((positions, k), v)| {
                let mut numbers = [0; KEY_BLOCK];
                let numbers = &mut numbers[..positions.len()];
                for (number, &Pos(position)) in numbers.iter_mut().zip(positions) {
                    *number = position;
                }
                gather_k(layout, from_k, numbers, k);
                gather_v(layout, from_v, numbers, v);
            });
        }
    }
}

/// Cuts a range of keys at the borders of the fixed grid, so that no block is
/// expanded twice for one head.
fn key_blocks(keys: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut start = keys.start;
    std::iter::from_fn(move || {
        let end = ((start / KEY_BLOCK + 1) * KEY_BLOCK).min(keys.end);
        let part = start..end;
        start = end;
        (!part.is_empty()).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_blocks_cover_a_range_once_and_stay_on_the_grid() {
        for keys in [0..0, 5..5, 0..1, 3..130, 127..129, 0..512, 200..1000] {
            let parts: Vec<_> = key_blocks(keys.clone()).collect();
            assert!(parts.iter().all(|part| part.start / KEY_BLOCK == (part.end - 1) / KEY_BLOCK));
            assert_eq!(parts.into_iter().flatten().collect::<Vec<_>>(), keys.collect::<Vec<_>>());
        }
    }
}
