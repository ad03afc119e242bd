//! Matrix products over threads: pack a slab of weight rows, use it for all
//! rows of the chunk, go on to the next slab.

use crate::layer::ROW_TASK;
use crate::packed::Operand;
use crate::pool::{Pool, Shares};
use tidekv_kernels::Isa;
use tidekv_kernels::fixed::fix_rows;
use tidekv_kernels::gemm::{
    Epilogue, Factors, PanelGemm, gemm_panels, pack_panel, panel_width, row_tile,
};
use tidekv_kernels::matvec::fixed::{fix_vector, fixed_len, has_ints, matvec_fixed};
use tidekv_kernels::matvec::{Vector, matvec};
use tidekv_kernels::quant::WeightView;

/// What products run on.
#[derive(Clone, Copy)]
pub(crate) struct Compute<'a> {
    pub(crate) isa: Isa,
    pub(crate) pool: &'a Pool,
    /// The form in which prefill's products take activations and weights.
    pub(crate) factors: Factors,
}

/// Rows of activations inside a wider buffer, `[rows, stride]`, in the form that
/// products take.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) stride: usize,
}

impl<'a> Rows<'a> {
    /// The rows from `first` on.
    pub(crate) fn from(self, first: usize) -> Rows<'a> {
        Rows { data: &self.data[first * self.stride..], ..self }
    }
}

/// Rows that are written, `[rows, stride]`.
pub(crate) struct RowsMut<'a> {
    pub(crate) data: &'a mut [f32],
    pub(crate) stride: usize,
}

/// Row tiles of the kernel in the largest task: a panel is fetched once per
/// task, and this many tiles outweigh the fetch.
const TASK_TILES: usize = 8;

impl Compute<'_> {
    /// Brings rows of `k` activations each, in place, to the form that products
    /// take; it may take less room, never more.
    pub(crate) fn rows<'r>(&self, rows: RowsMut<'r>, k: usize) -> Rows<'r> {
        let RowsMut { data, stride } = rows;
        if self.factors == Factors::Fixed {
            let tasks = data.chunks_mut(ROW_TASK * stride);
            self.pool.each(tasks, |rows| fix_rows(self.isa, rows, stride, k));
        }
        Rows { data, stride }
    }

    /// `C = epilogue(A Wᵀ)` for `rows` rows: A `[rows, K]`, W `[N, K]`, C
    /// `[rows, N]`. `slab` holds at least one packed panel. The bits of a row
    /// depend neither on `rows` nor on the slab or the threads.
    pub(crate) fn product(
        &self,
        Operand { weights: w, panels: packed }: Operand<'_>,
        (a, rows): (Rows<'_>, usize),
        c: RowsMut<'_>,
        epilogue: Epilogue<'_>,
        slab: &mut [f32],
    ) {
        if rows == 0 {
            return;
        }
        let (isa, factors, width, k) = (self.isa, self.factors, panel_width(self.isa), w.cols());
        let panel = factors.floats(k) * width;
        let slab_cols = slab.len() / panel * width;
        let tile = row_tile(isa);
        let shares =
            Shares { least: tile, most: TASK_TILES * tile, threads: self.pool.n_threads() };
        for n0 in (0..w.rows()).step_by(slab_cols) {
            let cols = slab_cols.min(w.rows() - n0);
            let len = cols.div_ceil(width) * panel;
            let panels = match packed {
                Some(packed) => &packed[n0 / width * panel..][..len],
                None => {
                    self.pack(&w, n0, &mut slab[..len]);
                    &slab[..len]
                }
            };
            let mut rest = &mut *c.data;
            let tasks = shares.of(rows).map(|rows| {
                let end = (rows.len() * c.stride).min(rest.len());
                let (c_rows, others) = std::mem::take(&mut rest).split_at_mut(end);
                rest = others;
                (rows, c_rows)
            });
            self.pool.each(tasks, |(rows, c_rows)| {
                let gemm = PanelGemm {
                    factors,
                    a: &a.data[rows.start * a.stride..],
                    lda: a.stride,
                    rows: rows.len(),
                    k,
                    panels,
                    n0,
                    cols,
                    epilogue,
                };
                gemm_panels(isa, gemm, c_rows, c.stride);
            });
        }
    }

    /// Packs rows `n0..` of W `[N, K]` until `panels` is full, with zeros beyond row N.
    pub(crate) fn pack(&self, w: &WeightView<'_>, n0: usize, panels: &mut [f32]) {
        let width = panel_width(self.isa);
        let panel = self.factors.floats(w.cols()) * width;
        self.pool.each(panels.chunks_mut(panel).enumerate(), |(index, panel)| {
            pack_panel(self.isa, self.factors, w, n0 + index * width, panel);
        });
    }

    /// `y = W x` of every vector for decode: W `[N, K]`, y `[N]`.
    pub(crate) fn vectors<'v>(
        &self,
        w: &WeightView<'_>,
        products: impl Iterator<Item = VectorProduct<'v>>,
    ) {
        let isa = self.isa;
        let in_integers = self.factors == Factors::Fixed && has_ints(w.block());
        let mut left: Vec<Vector<'_>> = products
            .map(|VectorProduct { x, fixed, y }| {
                if !in_integers {
                    return Vector { x, y };
                }
                let fixed = &mut fixed[..fixed_len(x.len())];
                fix_vector(isa, x, fixed);
                Vector { x: fixed, y }
            })
            .collect();
        // A few tasks per thread even out what the threads find in caches.
        let n_tasks = 4 * self.pool.n_threads();
        let rows = w.rows().div_ceil(n_tasks).max(16);
        let tasks = (0..w.rows()).step_by(rows).map(|first| {
            let rows = first..(first + rows).min(w.rows());
            let part = left.iter_mut().map(|Vector { x, y }| {
                let (part, others) = std::mem::take(y).split_at_mut(rows.len());
                *y = others;
                Vector { x, y: part }
            });
            let part: Vec<Vector<'_>> = part.collect();
            (rows, part)
        });
        self.pool.each(tasks, |(rows, mut part)| match in_integers {
            true => matvec_fixed(isa, w, rows, &mut part),
            false => matvec(isa, w, rows, &mut part),
        });
    }
}

/// A vector of decode, its product, and room for the vector in fixed point.
pub(crate) struct VectorProduct<'a> {
    /// `[K]`.
    pub(crate) x: &'a [f32],
    /// [`fixed_len`] of K floats, or more.
    pub(crate) fixed: &'a mut [f32],
    /// `[N]`.
    pub(crate) y: &'a mut [f32],
}
