//! The prefill verbs of a layer: one chunk through norm, projections, attention
//! and MLP.

use crate::activation::{Regions, Strides};
use crate::attention::AttendRows;
use crate::backend::Cpu;
use crate::packed::{LayerMatrices, Operand, Projection, Scratch};
use crate::product::{Compute, Rows, RowsMut};
use crate::sizes::{kernel_element, kv_layout};
use crate::weights::CpuWeights;
use std::sync::Mutex;
use tidekv::backend::{BackendError, ChunkRows, LayerOf, Workspace};
use tidekv::bridge::Bridge;
use tidekv::cache::ActiveKv;
use tidekv::model::{Arithmetic, RopeFrequencies};
use tidekv_kernels::Isa;
use tidekv_kernels::element::{self, all_finite};
use tidekv_kernels::gemm::Epilogue;
use tidekv_kernels::kv::{Append, append_k, append_v};
use tidekv_kernels::norm::{rms_norm, rms_norm_in_place};
use tidekv_kernels::rope::rotate;

/// Rows of one task of the row-wise steps: enough that taking a task costs
/// nothing beside it.
pub(crate) const ROW_TASK: usize = 16;

/// Largest number of rotating pairs of a head: `Shape::validate` allows D up to
/// 512.
pub(crate) const MAX_PAIRS: usize = 256;

/// Rows of the bridge as bytes.
pub(crate) struct BridgeRows {
    pub(crate) element: element::Element,
    pub(crate) d_model: usize,
    pub(crate) row_bytes: usize,
}

impl BridgeRows {
    pub(crate) fn of(bridge: &Bridge<Cpu>) -> Self {
        let row_bytes = bridge.d_model * bridge.element.bytes();
        BridgeRows { element: kernel_element(bridge.element), d_model: bridge.d_model, row_bytes }
    }
}

impl Cpu {
    /// Bias of projection `index` (query, key, value), if the layer has them.
    fn projection_epilogue(weights: &CpuWeights, layer: usize, index: usize) -> Epilogue<'_> {
        match &weights.layers[layer].bias {
            Some(bias) => Epilogue::Bias(&bias[index]),
            None => Epilogue::Store,
        }
    }

    /// The matrices of a layer, with their panels where those are kept.
    fn matrices<'a>(
        &self,
        weights: &'a CpuWeights,
        index: usize,
        panels: &'a [f32],
    ) -> LayerMatrices<'a> {
        LayerMatrices { weights, index, panels, ranges: self.sizes.panels(&weights.shape) }
    }

    /// Packs all matrices of a layer where their panels are kept.
    pub(crate) fn pack_layer(
        &self,
        weights: &CpuWeights,
        index: usize,
        work: &mut Workspace<Self>,
    ) {
        let layer = self.sizes.split(&weights.shape, work.scratch.floats_mut()).layer;
        if layer.is_empty() {
            return;
        }
        let ranges = self.sizes.panels(&weights.shape);
        for (matrix, range) in weights.matrices(index).matrices().into_iter().zip(ranges) {
            self.compute().pack(&weights.view(matrix), 0, &mut layer[range]);
        }
    }

    pub(crate) fn qkv_chunk(
        &self,
        LayerOf { weights, index, rope }: LayerOf<'_, Self>,
        rows: &ChunkRows,
        bridge: &Bridge<Self>,
        work: &mut Workspace<Self>,
        active: &mut ActiveKv<Self>,
    ) {
        let (compute, strides) = (self.compute(), Strides::new(&weights.shape));
        let (len, kv_cols) = (rows.span.len, weights.shape.kv_cols());
        let Scratch { slab, layer, .. } =
            self.sizes.split(&weights.shape, work.scratch.floats_mut());
        let matrices = self.matrices(weights, index, layer);
        let Regions { x, y, z } = strides.split(work.activation.floats_mut(), work.rows);
        let (x, y, z) =
            (&mut x[..len * strides.x], &mut y[..len * strides.y], &mut z[..len * strides.z]);

        // An input to be normed passes through y, which the queries overwrite
        // later.
        let input = BridgeRows::of(bridge);
        let stored = &bridge.buffer.bytes_view()[rows.bridge_row * input.row_bytes..];
        let norm = weights.layers[index].attn_norm.as_deref();
        let eps = weights.arithmetic.norm_eps;
        let tasks = x.chunks_mut(ROW_TASK * strides.x).zip(y.chunks_mut(ROW_TASK * strides.y));
        compute.pool.each(
            tasks.zip(stored.chunks(ROW_TASK * input.row_bytes)),
            |((x, y), stored)| {
                let rows = x.chunks_mut(strides.x).zip(y.chunks_mut(strides.y));
                for ((x, y), stored) in rows.zip(stored.chunks(input.row_bytes)) {
                    let (x, hidden) = (&mut x[..input.d_model], &mut y[..input.d_model]);
                    match norm {
                        None => element::load(self.isa, input.element, stored, x),
                        Some(norm) => {
                            element::load(self.isa, input.element, stored, hidden);
                            rms_norm(self.isa, hidden, norm, eps, x);
                        }
                    }
                }
            },
        );

        let a = compute.rows(RowsMut { data: x, stride: strides.x }, weights.shape.d_model);
        let queries = rows.first_query;
        if queries < len {
            let c = RowsMut { data: &mut y[queries * strides.y..], stride: strides.y };
            let epilogue = Self::projection_epilogue(weights, index, 0);
            let a = (a.from(queries), len - queries);
            compute.product(matrices.operand(Projection::Q), a, c, epilogue, slab);
        }
        for (bias, projection, col) in [(1, Projection::K, 0), (2, Projection::V, kv_cols)] {
            let c = RowsMut { data: &mut z[col..], stride: strides.z };
            let epilogue = Self::projection_epilogue(weights, index, bias);
            compute.product(matrices.operand(projection), (a, len), c, epilogue, slab);
        }
        let heads = Heads { weights, index, rope };
        heads.norm_and_rotate(&compute, rows, (y, strides.y), (z, strides.z));
        append_rows(&compute, weights, rows, (z, strides.z), active);
    }

    pub(crate) fn attend_chunk(
        &self,
        LayerOf { weights, index, .. }: LayerOf<'_, Self>,
        rows: &ChunkRows,
        bridge: &Bridge<Self>,
        work: &mut Workspace<Self>,
        active: &ActiveKv<Self>,
    ) {
        let (compute, shape) = (self.compute(), &weights.shape);
        let strides = Strides::new(shape);
        let first = rows.first_output;
        let n_rows = rows.span.len - first;
        let Scratch { slab, layer, threads } = self.sizes.split(shape, work.scratch.floats_mut());
        let matrices = self.matrices(weights, index, layer);
        let Regions { x, y, z } = strides.split(work.activation.floats_mut(), work.rows);
        let x = &mut x[first * strides.x..rows.span.len * strides.x];
        let y = &mut y[first * strides.y..rows.span.len * strides.y];

        let input = BridgeRows::of(bridge);
        let stored = &bridge.buffer.bytes_view()[(rows.bridge_row + first) * input.row_bytes..];
        let tasks =
            x.chunks_mut(ROW_TASK * strides.x).zip(stored.chunks(ROW_TASK * input.row_bytes));
        compute.pool.each(tasks, |(x, stored)| {
            for (x, stored) in x.chunks_mut(strides.x).zip(stored.chunks(input.row_bytes)) {
                element::load(self.isa, input.element, stored, &mut x[..input.d_model]);
            }
        });

        let attended = AttendRows {
            layout: kv_layout(shape, active.element),
            kv: [active.k.bytes_view(), active.v.bytes_view()],
            n_kv_heads: shape.n_kv_heads,
            group: shape.group(),
            first_pos: rows.span.start + first,
            n_rows,
            scale: weights.arithmetic.attention_scale,
            window: shape.window(index),
            softcap: weights.arithmetic.attention_softcap,
        };
        compute.attend(&attended, (&mut *y, strides.y), threads);

        let residual = Residual {
            compute,
            weights,
            norm: weights.layers[index].post_attn_norm.as_deref(),
            matrix: matrices.operand(Projection::O),
            slab,
        };
        let a = compute.rows(RowsMut { data: y, stride: strides.y }, shape.q_cols());
        // Keys and values have left z.
        residual.add((a, n_rows), (x, strides.x), (z, strides.z));
    }

    pub(crate) fn mlp_chunk(
        &self,
        LayerOf { weights, index, .. }: LayerOf<'_, Self>,
        rows: &ChunkRows,
        bridge: &mut Bridge<Self>,
        work: &mut Workspace<Self>,
    ) -> Result<(), BackendError> {
        let (compute, strides) = (self.compute(), Strides::new(&weights.shape));
        let (first, d_model) = (rows.first_output, weights.shape.d_model);
        let n_rows = rows.span.len - first;
        let Scratch { slab, layer, .. } =
            self.sizes.split(&weights.shape, work.scratch.floats_mut());
        let matrices = self.matrices(weights, index, layer);
        let Regions { x, y, z } = strides.split(work.activation.floats_mut(), work.rows);
        let x = &mut x[first * strides.x..rows.span.len * strides.x];
        let y = &mut y[..n_rows * strides.y];
        let z = &mut z[..n_rows * strides.z];

        let vectors = &weights.layers[index];
        let (norm, eps) = (vectors.mlp_norm.as_deref(), weights.arithmetic.norm_eps);
        let tasks = x.chunks(ROW_TASK * strides.x).zip(y.chunks_mut(ROW_TASK * strides.y));
        compute.pool.each(tasks, |(x, y)| {
            for (x, y) in x.chunks(strides.x).zip(y.chunks_mut(strides.y)) {
                let (x, y) = (&x[..d_model], &mut y[..d_model]);
                match norm {
                    Some(norm) => rms_norm(self.isa, x, norm, eps, y),
                    None => y.copy_from_slice(x),
                }
            }
        });

        let input = compute.rows(RowsMut { data: &mut *y, stride: strides.y }, d_model);
        let activation = weights.activation().into();
        for (projection, epilogue) in
            [(Projection::Gate, activation), (Projection::Up, Epilogue::Mul)]
        {
            let c = RowsMut { data: &mut *z, stride: strides.z };
            compute.product(matrices.operand(projection), (input, n_rows), c, epilogue, slab);
        }
        let residual = Residual {
            compute,
            weights,
            norm: vectors.post_mlp_norm.as_deref(),
            matrix: matrices.operand(Projection::Down),
            slab,
        };
        let gated = compute.rows(RowsMut { data: z, stride: strides.z }, weights.shape.d_ff);
        residual.add((gated, n_rows), (x, strides.x), (y, strides.y));

        let output = BridgeRows::of(bridge);
        let at = (rows.bridge_row + first) * output.row_bytes;
        let stored = &mut bridge.buffer.bytes_mut()[at..][..n_rows * output.row_bytes];
        let faulty = store_rows(&compute, &output, (x, strides.x), stored);
        match faulty {
            None => Ok(()),
            Some(row) => Err(BackendError::NonFinite {
                place: format!("the output of layer {index}"),
                position: rows.span.start + first + row,
            }),
        }
    }
}

/// What a projection adds to the residual stream.
struct Residual<'a> {
    compute: Compute<'a>,
    weights: &'a CpuWeights,
    /// Norm of the product, `[d_model]`, if it has one.
    norm: Option<&'a [f32]>,
    matrix: Operand<'a>,
    slab: &'a mut [f32],
}

impl Residual<'_> {
    /// `x += scale * norm(A Wᵀ)` for `rows` rows; the product of a layer with a
    /// norm waits in `spare`, `[rows, stride]`.
    fn add(
        self,
        (a, rows): (Rows<'_>, usize),
        (x, x_stride): (&mut [f32], usize),
        (spare, stride): (&mut [f32], usize),
    ) {
        let Residual { compute, weights, norm, matrix, slab } = self;
        let d_model = weights.shape.d_model;
        let Arithmetic { residual_scale, norm_eps, .. } = weights.arithmetic;
        let Some(norm) = norm else {
            let epilogue = match residual_scale {
                1.0 => Epilogue::Add,
                factor => Epilogue::AddScaled(factor),
            };
            let c = RowsMut { data: x, stride: x_stride };
            return compute.product(matrix, (a, rows), c, epilogue, slab);
        };
        let product = RowsMut { data: &mut *spare, stride };
        compute.product(matrix, (a, rows), product, Epilogue::Store, slab);
        let tasks = x.chunks_mut(ROW_TASK * x_stride).zip(spare.chunks_mut(ROW_TASK * stride));
        compute.pool.each(tasks, |(x, products)| {
            for (x, product) in x.chunks_mut(x_stride).zip(products.chunks_mut(stride)) {
                let product = &mut product[..d_model];
                rms_norm_in_place(compute.isa, product, norm, norm_eps);
                add_scaled(x, product, residual_scale);
            }
        });
    }
}

/// `x += factor * y`; a factor of 1 changes no bit of y.
pub(crate) fn add_scaled(x: &mut [f32], y: &[f32], factor: f32) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += factor * y);
}

/// What happens to queries and keys between projection and cache.
struct Heads<'a> {
    weights: &'a CpuWeights,
    index: usize,
    rope: Option<&'a RopeFrequencies>,
}

impl Heads<'_> {
    /// Norms and rotates the queries (from `first_query` on) and keys of a
    /// chunk.
    fn norm_and_rotate(
        &self,
        compute: &Compute<'_>,
        rows: &ChunkRows,
        (y, y_stride): (&mut [f32], usize),
        (z, z_stride): (&mut [f32], usize),
    ) {
        let shape = &self.weights.shape;
        let tasks = y.chunks_mut(ROW_TASK * y_stride).zip(z.chunks_mut(ROW_TASK * z_stride));
        compute.pool.each(tasks.enumerate(), |(task, (y, z))| {
            let mut turn = Turn::new(self.rope);
            let rows_of_task = y.chunks_mut(y_stride).zip(z.chunks_mut(z_stride));
            for (offset, (y, z)) in rows_of_task.enumerate() {
                let row = task * ROW_TASK + offset;
                let queries = if row >= rows.first_query { shape.q_cols() } else { 0 };
                let (q, k) = (&mut y[..queries], &mut z[..shape.kv_cols()]);
                norm_heads(compute.isa, self.weights, self.index, [q, k]);
                // Positions fit u32: the context is bounded by it.
                turn.to((rows.span.start + row) as u32);
                turn.rotate(compute.isa, self.weights, [q, k]);
            }
        });
    }
}

/// Norms queries and keys of one row, `[Hq * D]` and `[Hkv * D]`, if the model
/// does that.
pub(crate) fn norm_heads(isa: Isa, weights: &CpuWeights, layer: usize, rows: [&mut [f32]; 2]) {
    let Some(norms) = &weights.layers[layer].qk_norm else { return };
    for (row, norm) in rows.into_iter().zip(norms) {
        // One head at a time, or all at once: the norm's length says which.
        for part in row.chunks_exact_mut(norm.len()) {
            rms_norm_in_place(isa, part, norm, weights.arithmetic.norm_eps);
        }
    }
}

/// Cosines and sines of one position.
pub(crate) struct Turn<'a> {
    rope: Option<&'a RopeFrequencies>,
    cos: [f32; MAX_PAIRS],
    sin: [f32; MAX_PAIRS],
}

impl<'a> Turn<'a> {
    pub(crate) fn new(rope: Option<&'a RopeFrequencies>) -> Self {
        Turn { rope, cos: [0.0; MAX_PAIRS], sin: [0.0; MAX_PAIRS] }
    }

    /// The angles of a position under `rope`, for rows at one position that pass
    /// layer after layer: computed when the rotation is another one.
    pub(crate) fn by(&mut self, rope: Option<&'a RopeFrequencies>, position: u32) {
        let same = match (self.rope, rope) {
            (Some(ours), Some(theirs)) => std::ptr::eq(ours, theirs),
            (ours, theirs) => ours.is_none() && theirs.is_none(),
        };
        if !same {
            self.rope = rope;
            self.to(position);
        }
    }

    /// Computes the angles of a position.
    pub(crate) fn to(&mut self, position: u32) {
        if let Some(rope) = self.rope {
            let pairs = rope.inverse.len();
            rope.angles(position, &mut self.cos[..pairs], &mut self.sin[..pairs]);
        }
    }

    /// Rotates every head of `rows`; nothing where positions do not enter.
    pub(crate) fn rotate(&self, isa: Isa, weights: &CpuWeights, rows: [&mut [f32]; 2]) {
        let Some(rope) = self.rope else { return };
        let pairs = rope.inverse.len();
        for row in rows {
            for head in row.chunks_exact_mut(weights.shape.head_dim) {
                rotate(isa, weights.rope_style, head, &self.cos[..pairs], &self.sin[..pairs]);
            }
        }
    }
}

/// Appends the keys and values of a chunk, `z` `[rows, z_stride]`, to every
/// KV head.
fn append_rows(
    compute: &Compute<'_>,
    weights: &CpuWeights,
    rows: &ChunkRows,
    (z, stride): (&[f32], usize),
    active: &mut ActiveKv<Cpu>,
) {
    let shape = &weights.shape;
    let layout = kv_layout(shape, active.element);
    let head_bytes = active.k.bytes_view().len() / shape.n_kv_heads;
    let (d, kv_cols) = (shape.head_dim, shape.kv_cols());
    let keys = active.k.bytes_mut().chunks_exact_mut(head_bytes);
    let tasks = keys.zip(active.v.bytes_mut().chunks_exact_mut(head_bytes)).enumerate();
    compute.pool.each(tasks.take(shape.n_kv_heads), |(head, (k, v))| {
        let of = |col: usize| Append {
            first_pos: rows.span.start,
            rows: rows.span.len,
            src: &z[col..],
            stride,
        };
        append_k(compute.isa, layout, k, &of(head * d));
        append_v(compute.isa, layout, v, &of(kv_cols + head * d));
    });
    active.len = rows.span.end();
}

/// Rounds rows into the bridge; returns the first row that is not finite there.
fn store_rows(
    compute: &Compute<'_>,
    bridge: &BridgeRows,
    (x, stride): (&mut [f32], usize),
    stored: &mut [u8],
) -> Option<usize> {
    let faulty = Mutex::new(None);
    let tasks = x.chunks_mut(ROW_TASK * stride).zip(stored.chunks_mut(ROW_TASK * bridge.row_bytes));
    compute.pool.each(tasks.enumerate(), |(task, (x, stored))| {
        let rows = x.chunks_mut(stride).zip(stored.chunks_mut(bridge.row_bytes));
        for (offset, (x, stored)) in rows.enumerate() {
            let hidden = &mut x[..bridge.d_model];
            element::store(compute.isa, bridge.element, hidden, stored);
            // Checked as stored: rounding to a narrow type can overflow.
            element::load(compute.isa, bridge.element, stored, hidden);
            if !all_finite(compute.isa, hidden) {
                let row = task * ROW_TASK + offset;
                let mut first = faulty.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                *first = Some(first.map_or(row, |other: usize| other.min(row)));
            }
        }
    });
    faulty.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}
