//! Decoding: one row through all layers, by matrix-vector products.
//!
//! A second arithmetic beside prefill's, with a bound of its own against it
//! (see the tests): sums are taken in another order, and hidden states stay in
//! f32 between layers.

use crate::activation::{Regions, Strides};
use crate::backend::{Cpu, scale_by};
use crate::layer::{Turn, add_scaled, norm_heads};
use crate::sizes::{kernel_element, kv_layout};
use crate::weights::CpuWeights;
use std::num::NonZeroUsize;
use tidekv::backend::{BackendError, DecodeRow, Workspace};
use tidekv::cache::{DecodeTail, RetainedKv};
use tidekv::model::Shape;
use tidekv::position::Pos;
use tidekv_kernels::attention::{AttendOne, DecodeSegment, attend_one};
use tidekv_kernels::element::{self, all_finite};
use tidekv_kernels::gemm::activate_and_multiply;
use tidekv_kernels::norm::{rms_norm, rms_norm_in_place};
use tidekv_kernels::quant::dequantize;

/// Buffers of one row.
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
    /// One part per thread.
    threads: &'a mut [f32],
}

impl<'a> Row<'a> {
    fn of(work: &'a mut Workspace<Cpu>, shape: &Shape) -> Self {
        let strides = Strides::new(shape);
        let Regions { x, y, z } = strides.split(work.activation.floats_mut(), 1);
        let (queries, rest) = work.scratch.floats_mut().split_at_mut(shape.q_cols());
        let (up, threads) = rest.split_at_mut(shape.d_ff);
        Row {
            hidden: &mut x[..shape.d_model],
            normed: &mut y[..shape.d_model],
            queries,
            wide: z,
            up,
            threads,
        }
    }
}

impl Cpu {
    pub(crate) fn decode_row(
        &self,
        weights: &CpuWeights,
        row: DecodeRow<'_, Self>,
        work: &mut Workspace<Self>,
        logits: &mut [f32],
    ) -> Result<(), BackendError> {
        let DecodeRow { token, position, rotations, retained, tail, tail_row } = row;
        let (shape, isa) = (&weights.shape, self.isa);
        let mut buffers = Row::of(work, shape);
        let embedding = weights.embedding();
        dequantize(isa, embedding.block(), embedding.row(token as usize), buffers.hidden);
        scale_by(buffers.hidden, weights.arithmetic.embedding_scale);

        let mut turn = Turn::new(None);
        for (layer, (retained, tail)) in retained.iter().zip(tail).enumerate() {
            turn.by(rotations.of_layer(layer), position.0);
            self.project(weights, layer, &mut buffers, &turn);
            append(self, shape, tail, tail_row, buffers.wide);
            let seen = Seen {
                retained,
                tail,
                tail_rows: tail_row + 1,
                first: first_seen(shape.window(layer), position),
                position,
            };
            self.attend_cached(weights, &seen, &mut buffers);
            self.output_and_mlp(weights, layer, &mut buffers);
        }

        let Row { hidden, normed, .. } = buffers;
        rms_norm(isa, hidden, &weights.final_norm, weights.arithmetic.norm_eps, normed);
        let logits = &mut logits[..shape.vocab];
        self.compute().vector(&weights.head(), normed, logits);
        self.finish_logits(weights, logits);
        match all_finite(isa, logits) {
            true => Ok(()),
            false => Err(BackendError::NonFinite {
                place: "the logits".to_owned(),
                position: position.index(),
            }),
        }
    }

    /// Norms, query/key/value projections and rotation.
    fn project(&self, weights: &CpuWeights, layer: usize, row: &mut Row<'_>, turn: &Turn<'_>) {
        let (shape, compute) = (&weights.shape, self.compute());
        let (vectors, matrices) = (&weights.layers[layer], weights.matrices(layer));
        let Row { hidden, normed, queries, wide, .. } = row;
        self.norm_or_copy(weights, vectors.attn_norm.as_deref(), hidden, normed);
        let (keys, values) = wide[..2 * shape.kv_cols()].split_at_mut(shape.kv_cols());
        let outputs = [(&matrices.q, &mut **queries), (&matrices.k, keys), (&matrices.v, values)];
        for (index, (matrix, out)) in outputs.into_iter().enumerate() {
            compute.vector(&weights.view(matrix), normed, out);
            if let Some(bias) = &vectors.bias {
                out.iter_mut().zip(&bias[index]).for_each(|(out, bias)| *out += bias);
            }
        }
        let keys = &mut wide[..shape.kv_cols()];
        norm_heads(self.isa, weights, layer, [queries, keys]);
        turn.rotate(self.isa, weights, [queries, keys]);
    }

    /// `out = norm(x)`, or `x` where there is no norm.
    fn norm_or_copy(&self, weights: &CpuWeights, norm: Option<&[f32]>, x: &[f32], out: &mut [f32]) {
        match norm {
            Some(norm) => rms_norm(self.isa, x, norm, weights.arithmetic.norm_eps, out),
            None => out.copy_from_slice(x),
        }
    }

    /// Attention over what the row sees.
    fn attend_cached(&self, weights: &CpuWeights, seen: &Seen<'_>, row: &mut Row<'_>) {
        let Seen { retained, tail, tail_rows, first, position } = *seen;
        let (shape, arithmetic) = (&weights.shape, &weights.arithmetic);
        let layout = kv_layout(shape, retained.element);
        // Tail row i holds the token i places behind the prompt.
        let prompt = position.index() + 1 - tail_rows;
        let hidden_tail = first.saturating_sub(prompt);
        let row_bytes = layout.row_bytes();
        let heads = row.queries.chunks_exact_mut(shape.group() * shape.head_dim).enumerate();
        self.pool.each_with(heads, row.threads, |(head, q), scratch| {
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
                scale: arithmetic.attention_scale,
                softcap: arithmetic.attention_softcap,
                segments: &segments,
            };
            attend_one(self.isa, &attend, q, scratch);
        });
    }

    /// Output projection, MLP and both residuals.
    fn output_and_mlp(&self, weights: &CpuWeights, layer: usize, row: &mut Row<'_>) {
        let (shape, compute, matrices) = (&weights.shape, self.compute(), weights.matrices(layer));
        let vectors = &weights.layers[layer];
        let add = |hidden: &mut [f32], product: &mut [f32], norm: Option<&[f32]>| {
            if let Some(norm) = norm {
                rms_norm_in_place(self.isa, product, norm, weights.arithmetic.norm_eps);
            }
            add_scaled(hidden, product, weights.arithmetic.residual_scale);
        };
        let Row { hidden, normed, queries, wide, up, .. } = row;
        compute.vector(&weights.view(&matrices.o), queries, normed);
        add(hidden, normed, vectors.post_attn_norm.as_deref());
        self.norm_or_copy(weights, vectors.mlp_norm.as_deref(), hidden, normed);
        let gate = &mut wide[..shape.d_ff];
        compute.vector(&weights.view(&matrices.gate), normed, gate);
        compute.vector(&weights.view(&matrices.up), normed, up);
        activate_and_multiply(self.isa, weights.activation(), gate, up);
        compute.vector(&weights.view(&matrices.down), gate, normed);
        add(hidden, normed, vectors.post_mlp_norm.as_deref());
    }
}

/// What one decode row sees in one layer.
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
