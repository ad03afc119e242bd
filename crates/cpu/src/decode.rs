//! Decoding: one row through all layers, by matrix-vector products.
//!
//! A second arithmetic beside prefill's, with a bound of its own against it
//! (see the tests): sums are taken in another order, and hidden states stay in
//! f32 between layers.

use crate::activation::{Regions, Strides};
use crate::backend::Cpu;
use crate::layer::{MAX_PAIRS, scale};
use crate::sizes::{kernel_element, kv_layout};
use crate::weights::CpuWeights;
use tidekv::backend::{BackendError, DecodeRow, Workspace};
use tidekv::cache::{DecodeTail, RetainedKv};
use tidekv::model::Shape;
use tidekv_kernels::attention::{DecodeSegment, attend_one};
use tidekv_kernels::element::{self, all_finite};
use tidekv_kernels::norm::rms_norm;
use tidekv_kernels::quant::dequantize;
use tidekv_kernels::rope::rotate;

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
        let DecodeRow { token, position, retained, tail, tail_row } = row;
        let (shape, isa) = (&weights.shape, self.isa);
        let mut buffers = Row::of(work, shape);
        let embedding = weights.embedding();
        dequantize(isa, embedding.block(), embedding.row(token as usize), buffers.hidden);

        let pairs = weights.rope.inverse.len();
        let (mut cos, mut sin) = ([0.0; MAX_PAIRS], [0.0; MAX_PAIRS]);
        let (cos, sin) = (&mut cos[..pairs], &mut sin[..pairs]);
        weights.rope.angles(position.0, cos, sin);
        for (layer, (retained, tail)) in retained.iter().zip(tail).enumerate() {
            self.project(weights, layer, &mut buffers, (cos, sin));
            append(self, shape, tail, tail_row, buffers.wide);
            self.attend_cached(shape, retained, (tail, tail_row + 1), &mut buffers);
            self.output_and_mlp(weights, layer, &mut buffers);
        }

        let Row { hidden, normed, .. } = buffers;
        rms_norm(isa, hidden, &weights.final_norm, weights.norm_eps, normed);
        let logits = &mut logits[..shape.vocab];
        self.compute().vector(&weights.head(), normed, logits);
        match all_finite(isa, logits) {
            true => Ok(()),
            false => Err(BackendError::NonFinite {
                place: "the logits".to_owned(),
                position: position.index(),
            }),
        }
    }

    /// Norm, query/key/value projections and rotation.
    fn project(
        &self,
        weights: &CpuWeights,
        layer: usize,
        row: &mut Row<'_>,
        (cos, sin): (&[f32], &[f32]),
    ) {
        let (shape, compute) = (&weights.shape, self.compute());
        let (vectors, matrices) = (&weights.layers[layer], weights.matrices(layer));
        let Row { hidden, normed, queries, wide, .. } = row;
        rms_norm(self.isa, hidden, &vectors.attn_norm, weights.norm_eps, normed);
        let (keys, values) = wide[..2 * shape.kv_cols()].split_at_mut(shape.kv_cols());
        let outputs = [(&matrices.q, &mut **queries), (&matrices.k, keys), (&matrices.v, values)];
        for (index, (matrix, out)) in outputs.into_iter().enumerate() {
            compute.vector(&weights.view(matrix), normed, out);
            if let Some(bias) = &vectors.bias {
                out.iter_mut().zip(&bias[index]).for_each(|(out, bias)| *out += bias);
            }
        }
        let keys = wide[..shape.kv_cols()].chunks_exact_mut(shape.head_dim);
        for head in queries.chunks_exact_mut(shape.head_dim).chain(keys) {
            rotate(self.isa, weights.rope_style, head, cos, sin);
        }
    }

    /// Attention over retained rows and `tail_rows` rows of the tail.
    fn attend_cached(
        &self,
        shape: &Shape,
        retained: &RetainedKv<Self>,
        (tail, tail_rows): (&DecodeTail<Self>, usize),
        row: &mut Row<'_>,
    ) {
        let layout = kv_layout(shape, retained.element);
        let row_bytes = layout.row_bytes();
        let heads = row.queries.chunks_exact_mut(shape.group() * shape.head_dim).enumerate();
        self.pool.each_with(heads, row.threads, |(head, q), scratch| {
            let rows = retained.rows(head);
            let kept = rows.start.index() * row_bytes..rows.end.index() * row_bytes;
            let first = head * tail.capacity * row_bytes;
            let new = first..first + tail_rows * row_bytes;
            let segments = [
                DecodeSegment {
                    k: &retained.k.bytes_view()[kept.clone()],
                    v: &retained.v.bytes_view()[kept],
                    rows: rows.end.index() - rows.start.index(),
                },
                DecodeSegment {
                    k: &tail.k.bytes_view()[new.clone()],
                    v: &tail.v.bytes_view()[new],
                    rows: tail_rows,
                },
            ];
            attend_one(self.isa, layout, scale(shape.head_dim), q, &segments, scratch);
        });
    }

    /// Output projection, MLP and both residuals.
    fn output_and_mlp(&self, weights: &CpuWeights, layer: usize, row: &mut Row<'_>) {
        let (shape, compute, matrices) = (&weights.shape, self.compute(), weights.matrices(layer));
        let Row { hidden, normed, queries, wide, up, .. } = row;
        compute.vector(&weights.view(&matrices.o), queries, normed);
        add(hidden, normed);
        rms_norm(self.isa, hidden, &weights.layers[layer].mlp_norm, weights.norm_eps, normed);
        let gate = &mut wide[..shape.d_ff];
        compute.vector(&weights.view(&matrices.gate), normed, gate);
        compute.vector(&weights.view(&matrices.up), normed, up);
        for (gate, up) in gate.iter_mut().zip(&**up) {
            *gate = *gate / (1.0 + (-*gate).exp()) * up;
        }
        compute.vector(&weights.view(&matrices.down), gate, normed);
        add(hidden, normed);
    }
}

fn add(to: &mut [f32], from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
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
