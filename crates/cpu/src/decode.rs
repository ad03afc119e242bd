//! Decoding: rows of different sequences through all layers, by matrix-vector
//! products that read the weights once for all rows.
//!
//! A second arithmetic beside prefill's, with a bound of its own against it
//! (see the tests): sums are taken in another order, and hidden states stay in
//! f32 between layers. No row enters the arithmetic of another.

use crate::activation::{Regions, Strides};
use crate::backend::{Cpu, scale_by};
use crate::layer::{Turn, add_scaled, norm_heads};
use crate::product::VectorProduct;
use crate::sizes::{kernel_element, kv_layout, widest_in_fixed_point};
use crate::weights::CpuWeights;
use std::num::NonZeroUsize;
use tidekv::backend::{BackendError, DecodeRow};
use tidekv::cache::{DecodeTail, RetainedKv};
use tidekv::model::{Rotations, Shape};
use tidekv::position::Pos;
use tidekv_kernels::attention::{AttendOne, DecodeSegment, attend_one};
use tidekv_kernels::element::{self, all_finite};
use tidekv_kernels::gemm::activate_and_multiply;
use tidekv_kernels::norm::{rms_norm, rms_norm_in_place};
use tidekv_kernels::quant::dequantize;

/// A row and its buffers.
struct Row<'a> {
    /// Residual stream, `[d_model]`.
    hidden: &'a mut [f32],
    /// Normed input or projected output, `[d_model]`.
    normed: &'a mut [f32],
    /// Queries, then attention output, `[Hq D]`.
    queries: &'a mut [f32],
    /// Keys and values `[2 Hkv D]`, or the gate `[d_ff]`.
    wide: &'a mut [f32],
    /// The MLP's other half, `[d_ff]`.
    up: &'a mut [f32],
    /// Room for the vector that is multiplied, in fixed point.
    fixed: &'a mut [f32],
    /// `[vocab]`.
    logits: &'a mut [f32],
    position: Pos,
    rotations: &'a Rotations,
    turn: Turn<'a>,
    retained: &'a [RetainedKv<Cpu>],
    tail: &'a mut [DecodeTail<Cpu>],
    /// The row's own in each tail.
    tail_row: usize,
}

impl<'a> Row<'a> {
    /// The row, and scratch for every thread.
    fn of(row: &'a mut DecodeRow<'_, Cpu>, shape: &Shape) -> (Self, &'a mut [f32]) {
        let strides = Strides::new(shape);
        let Regions { x, y, z } = strides.split(row.work.activation.floats_mut(), 1);
        let (queries, rest) = row.work.scratch.floats_mut().split_at_mut(shape.q_cols());
        let (up, rest) = rest.split_at_mut(shape.d_ff);
        let (fixed, threads) = rest.split_at_mut(widest_in_fixed_point(shape));
        let row = Row {
            hidden: &mut x[..shape.d_model],
            normed: &mut y[..shape.d_model],
            queries,
            wide: z,
            up,
            fixed,
            logits: &mut row.logits.floats_mut()[..shape.vocab],
            position: row.position,
            rotations: row.rotations,
            turn: Turn::new(None),
            retained: row.retained,
            tail: row.tail,
            tail_row: row.tail_row,
        };
        (row, threads)
    }

    /// What it sees in a layer, beside its queries.
    fn sees(&mut self, shape: &Shape, layer: usize) -> (Seen<'_>, &mut [f32]) {
        let seen = Seen {
            retained: &self.retained[layer],
            tail: &self.tail[layer],
            tail_rows: self.tail_row + 1,
            first: first_seen(shape.window(layer), self.position),
            position: self.position,
        };
        (seen, self.queries)
    }
}

impl Cpu {
    /// One result per row: whether its logits are finite.
    pub(crate) fn decode_rows(
        &self,
        weights: &CpuWeights,
        rows: &mut [DecodeRow<'_, Self>],
    ) -> Vec<Result<(), BackendError>> {
        let (shape, embedding) = (&weights.shape, weights.embedding());
        let tokens: Vec<u32> = rows.iter().map(|row| row.token).collect();
        let (mut rows, mut scratch): (Vec<_>, Vec<_>) =
            rows.iter_mut().map(|row| Row::of(row, shape)).unzip();
        // Any row's will do.
        let Some(threads) = scratch.first_mut() else { return Vec::new() };
        for (row, token) in rows.iter_mut().zip(tokens) {
            let stored = embedding.row(token as usize);
            dequantize(self.isa, embedding.block(), stored, row.hidden);
            scale_by(row.hidden, weights.arithmetic.embedding_scale);
        }
        for layer in 0..shape.n_layers {
            self.project(weights, layer, &mut rows);
            self.attend_cached(weights, layer, &mut rows, threads);
            self.output_and_mlp(weights, layer, &mut rows);
        }
        self.head(weights, &mut rows)
    }

    /// Final norm and output projection.
    fn head(&self, weights: &CpuWeights, rows: &mut [Row<'_>]) -> Vec<Result<(), BackendError>> {
        for Row { hidden, normed, .. } in &mut *rows {
            rms_norm(self.isa, hidden, &weights.final_norm, weights.arithmetic.norm_eps, normed);
        }
        let products = rows.iter_mut().map(|row| VectorProduct {
            x: row.normed,
            fixed: row.fixed,
            y: row.logits,
        });
        self.compute().vectors(&weights.head(), products);
        let mut outcomes = vec![Ok(()); rows.len()];
        self.pool.each(rows.iter_mut().zip(&mut outcomes), |(row, outcome)| {
            self.finish_logits(weights, row.logits);
            if !all_finite(self.isa, row.logits) {
                let (place, position) = ("the logits".to_owned(), row.position.index());
                *outcome = Err(BackendError::NonFinite { place, position });
            }
        });
        outcomes
    }

    /// Norms, query/key/value projections and rotation; keys and values go to the tails.
    fn project(&self, weights: &CpuWeights, layer: usize, rows: &mut [Row<'_>]) {
        let (shape, compute) = (&weights.shape, self.compute());
        let (vectors, matrices) = (&weights.layers[layer], weights.matrices(layer));
        for Row { hidden, normed, .. } in &mut *rows {
            self.norm_or_copy(weights, vectors.attn_norm.as_deref(), hidden, normed);
        }
        for (index, matrix) in [&matrices.q, &matrices.k, &matrices.v].into_iter().enumerate() {
            let products = rows.iter_mut().map(|row| VectorProduct {
                x: row.normed,
                fixed: row.fixed,
                y: projected(shape, row.queries, row.wide)[index],
            });
            compute.vectors(&weights.view(matrix), products);
        }
        for row in rows {
            let Row { queries, wide, turn, rotations, position, .. } = row;
            if let Some(bias) = &vectors.bias {
                for (out, bias) in projected(shape, queries, wide).into_iter().zip(bias) {
                    out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
                }
            }
            let keys = &mut wide[..shape.kv_cols()];
            norm_heads(self.isa, weights, layer, [queries, keys]);
            turn.by(rotations.of_layer(layer), position.0);
            turn.rotate(self.isa, weights, [queries, keys]);
            append(self, shape, &mut row.tail[layer], row.tail_row, wide);
        }
    }

    /// `out = norm(x)`, or `x` where there is no norm.
    fn norm_or_copy(&self, weights: &CpuWeights, norm: Option<&[f32]>, x: &[f32], out: &mut [f32]) {
        match norm {
            Some(norm) => rms_norm(self.isa, x, norm, weights.arithmetic.norm_eps, out),
            None => out.copy_from_slice(x),
        }
    }

    /// Attention over what each row sees, in place of its queries.
    fn attend_cached(
        &self,
        weights: &CpuWeights,
        layer: usize,
        rows: &mut [Row<'_>],
        threads: &mut [f32],
    ) {
        let shape = &weights.shape;
        let heads = rows.iter_mut().flat_map(|row| {
            let (seen, queries) = row.sees(shape, layer);
            let heads = queries.chunks_exact_mut(shape.group() * shape.head_dim).enumerate();
            heads.map(move |(head, q)| (seen, head, q))
        });
        self.pool.each_with(heads, threads, |(seen, head, q), scratch| {
            self.attend_head(weights, seen, (head, q), scratch);
        });
    }

    /// Attention of the queries `q` of one KV head.
    fn attend_head(
        &self,
        weights: &CpuWeights,
        seen: Seen<'_>,
        (head, q): (usize, &mut [f32]),
        scratch: &mut [f32],
    ) {
        let Seen { retained, tail, tail_rows, first, position } = seen;
        let layout = kv_layout(&weights.shape, retained.element);
        // Tail row i holds the token i places behind the prompt.
        let prompt = position.index() + 1 - tail_rows;
        let hidden_tail = first.saturating_sub(prompt);
        let row_bytes = layout.row_bytes();
        let rows = retained.rows(head);
        // Rows of a head ascend by position.
        let behind = |kept: &Pos| kept.index() < first;
        let start = rows.start.index() + retained.kept.head(head).partition_point(behind);
        let kept = start * row_bytes..rows.end.index() * row_bytes;
        let tail_start = head * tail.capacity * row_bytes;
        let new = tail_start + hidden_tail * row_bytes..tail_start + tail_rows * row_bytes;
        let segments = [
            DecodeSegment {
                k: &retained.k.bytes_view()[kept.clone()],
                v: &retained.v.bytes_view()[kept],
                rows: rows.end.index() - start,
            },
            DecodeSegment {
                k: &tail.k.bytes_view()[new.clone()],
                v: &tail.v.bytes_view()[new],
                rows: tail_rows - hidden_tail,
            },
        ];
        let attend = AttendOne {
            layout,
            scale: weights.arithmetic.attention_scale,
            softcap: weights.arithmetic.attention_softcap,
            segments: &segments,
        };
        attend_one(self.isa, &attend, q, scratch);
    }

    /// Output projection, MLP and both residuals.
    fn output_and_mlp(&self, weights: &CpuWeights, layer: usize, rows: &mut [Row<'_>]) {
        let (shape, compute, matrices) = (&weights.shape, self.compute(), weights.matrices(layer));
        let vectors = &weights.layers[layer];
        let add = |hidden: &mut [f32], product: &mut [f32], norm: Option<&[f32]>| {
            if let Some(norm) = norm {
                rms_norm_in_place(self.isa, product, norm, weights.arithmetic.norm_eps);
            }
            add_scaled(hidden, product, weights.arithmetic.residual_scale);
        };
        let products = rows.iter_mut().map(|row| VectorProduct {
            x: row.queries,
            fixed: row.fixed,
            y: row.normed,
        });
        compute.vectors(&weights.view(&matrices.o), products);
        for Row { hidden, normed, .. } in &mut *rows {
            add(hidden, normed, vectors.post_attn_norm.as_deref());
            self.norm_or_copy(weights, vectors.mlp_norm.as_deref(), hidden, normed);
        }
        let gates = rows.iter_mut().map(|row| VectorProduct {
            x: row.normed,
            fixed: row.fixed,
            y: &mut row.wide[..shape.d_ff],
        });
        compute.vectors(&weights.view(&matrices.gate), gates);
        let ups =
            rows.iter_mut().map(|row| VectorProduct { x: row.normed, fixed: row.fixed, y: row.up });
        compute.vectors(&weights.view(&matrices.up), ups);
        for Row { wide, up, .. } in &mut *rows {
            activate_and_multiply(self.isa, weights.activation(), &mut wide[..shape.d_ff], up);
        }
        let products = rows.iter_mut().map(|row| VectorProduct {
            x: &row.wide[..shape.d_ff],
            fixed: row.fixed,
            y: row.normed,
        });
        compute.vectors(&weights.view(&matrices.down), products);
        for Row { hidden, normed, .. } in rows {
            add(hidden, normed, vectors.post_mlp_norm.as_deref());
        }
    }
}

/// Where the projections of a row go: queries, keys, values.
fn projected<'r>(shape: &Shape, queries: &'r mut [f32], wide: &'r mut [f32]) -> [&'r mut [f32]; 3] {
    let (keys, values) = wide[..2 * shape.kv_cols()].split_at_mut(shape.kv_cols());
    [queries, keys, values]
}

/// What one decode row sees in one layer.
#[derive(Clone, Copy)]
struct Seen<'a> {
    retained: &'a RetainedKv<Cpu>,
    tail: &'a DecodeTail<Cpu>,
    /// Rows of the tail, the row's own included.
    tail_rows: usize,
    /// First position that it sees.
    first: usize,
    /// Its own position.
    position: Pos,
}

/// First position that a query sees.
fn first_seen(window: Option<NonZeroUsize>, position: Pos) -> usize {
    window.map_or(0, |window| (position.index() + 1).saturating_sub(window.get()))
}

/// Stores keys and values, `wide` = `[2, Hkv, D]`, as row `tail_row` of each
/// head's tail.
fn append(cpu: &Cpu, shape: &Shape, tail: &mut DecodeTail<Cpu>, tail_row: usize, wide: &[f32]) {
    let element = kernel_element(tail.element);
    let (d, capacity) = (shape.head_dim, tail.capacity);
    let row_bytes = kv_layout(shape, tail.element).row_bytes();
    let (keys, values) = wide.split_at(shape.kv_cols());
    for (buffer, source) in [(tail.k.bytes_mut(), keys), (tail.v.bytes_mut(), values)] {
        for (head, source) in source.chunks_exact(d).take(shape.n_kv_heads).enumerate() {
            let at = (head * capacity + tail_row) * row_bytes;
            element::store(cpu.isa, element, source, &mut buffer[at..][..row_bytes]);
        }
    }
}
