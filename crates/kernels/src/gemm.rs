//! Matrix product of prefill: activations `A [M, K]` times weights `W [N, K]` transposed.
//!
//! Weights are unpacked once per chunk of the prompt into panels of NR = [`panel_width`] columns;
//! then all rows of the chunk run over each panel. A is read as it lies. [`Factors`] says in which
//! form both are. The caller splits M over threads, or N over calls, never K: each output is one
//! chain of multiply-adds in ascending K, the same in every tile (see `tile`), so the bits of a row
//! of C depend on that row of A and on the weights only.

mod activation;

pub use activation::{Activation, activate_and_multiply};

use crate::exp::{gelu_tanh, silu};
use crate::fixed;
use crate::isa::{Isa, Tier};
use crate::lanes::{Kernel, Lanes, MAX_LANES, dispatch};
use crate::quant::{self, MAX_BLOCK_LEN, WeightView};
use crate::tile::fixed::FixedProduct;
use crate::tile::{self, Chains, Product, ROW_VECTORS};

/// The form in which activations and weights are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Factors {
    /// f32: A as it is, panels `[K][NR]`, one multiply-add per term.
    F32,
    /// Fixed point, see [`crate::fixed`]: A from [`fixed::fix_rows`], panels `[blocks][1 + words][NR]`
    /// with the scales first, one multiply-add per block.
    Fixed,
}

impl Factors {
    /// The fastest form on this tier. With AVX2 fixed point is faster: 16 terms per product, for
    /// which a multiplication and an addition are issued, against 8 of a multiply-add. With
    /// AVX512-VNNI it is 32 terms per instruction, as of a product of bf16, against 16.
    pub fn fastest(isa: Isa) -> Factors {
        match isa.tier() {
            Tier::Avx2 | Tier::Avx512Vnni => Factors::Fixed,
            Tier::Portable | Tier::Avx512 => Factors::F32,
        }
    }

    /// Floats of a row of A with `k` columns, and of each column of a panel; before element `k` too,
    /// where `k` is a multiple of [`fixed::BLOCK`].
    pub fn floats(self, k: usize) -> usize {
        match self {
            Factors::F32 => k,
            Factors::Fixed => fixed::row_len(k),
        }
    }
}

impl Factors {
    /// [`tile::multiply`] of a product in this form; in fixed point the slices hold words, and the
    /// rows of B follow each other.
    #[inline(always)]
    pub(crate) fn multiply<L: Lanes>(
        self,
        lanes: L,
        product: Product<'_>,
        rows: usize,
        chains: Chains<'_>,
    ) {
        match self {
            Factors::F32 => tile::multiply(lanes, product, rows, chains),
            Factors::Fixed => {
                let Product { a, lda, b, ldb: _, k } = product;
                let (a, b) = (bytemuck::cast_slice(a), bytemuck::cast_slice(b));
                tile::multiply(lanes, FixedProduct { a, lda, b, k }, rows, chains);
            }
        }
    }
}

/// Columns of a packed panel, NR, on this tier.
pub fn panel_width(isa: Isa) -> usize {
    struct Width;
    impl Kernel for Width {
        type Output = usize;

        #[inline(always)]
        fn run<L: Lanes>(self, _: L) -> usize {
            tile::width::<L>()
        }
    }
    dispatch(isa, Width)
}

/// Rows of A that the kernel multiplies at a time on this tier: tasks of whole tiles waste nothing.
pub fn row_tile(isa: Isa) -> usize {
    struct Tile;
    impl Kernel for Tile {
        type Output = usize;

        #[inline(always)]
        fn run<L: Lanes>(self, _: L) -> usize {
            L::ROW_TILE
        }
    }
    dispatch(isa, Tile)
}

/// Unpacks rows `n0..n0 + NR` of the weights `w` `[N, K]` to `panel` of `factors`, zero beyond
/// row N.
///
/// # Panics
/// If `panel` has another length than [`Factors::floats`] of K times NR.
pub fn pack_panel(isa: Isa, factors: Factors, w: &WeightView<'_>, n0: usize, panel: &mut [f32]) {
    let len = factors.floats(w.cols()) * panel_width(isa);
    assert_eq!(panel.len(), len, "a panel of {} columns", w.cols());
    dispatch(isa, Pack { factors, w, n0, panel });
}

/// What becomes of a finished product `acc` of column n.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue<'a> {
    /// `C = acc`.
    Store,
    /// `C = acc + bias[n]`; the bias has an entry for every column of C up to the last one written.
    Bias(&'a [f32]),
    /// `C = C + acc`: the residual connection.
    Add,
    /// `C = C + factor * acc`, one multiply-add per element: a residual connection with a factor.
    AddScaled(f32),
    /// `C = silu(acc)`: the gate of a gated MLP, see [`Activation::Silu`].
    Silu,
    /// `C = gelu_tanh(acc)`: the gate of a gated MLP, see [`Activation::GeluTanh`].
    GeluTanh,
    /// `C = C * acc`: the gated product, where C holds the gate.
    Mul,
}

/// One call of [`gemm_panels`].
#[derive(Clone, Copy, Debug)]
pub struct PanelGemm<'a> {
    /// The form of A and of the panels.
    pub factors: Factors,
    /// A `[rows, k]`: row r begins at `r * lda`. A stride of a multiple of 4096 bytes makes the
    /// rows of a tile compete for one set of the L1 cache; 16 elements of padding avoid it.
    pub a: &'a [f32],
    /// Elements from one row of A to the next.
    pub lda: usize,
    /// Rows of A and C, M.
    pub rows: usize,
    /// Columns of A and of the weights, K.
    pub k: usize,
    /// Packed weights, P panels from [`pack_panel`].
    pub panels: &'a [f32],
    /// Column of C of the first packed weight row.
    pub n0: usize,
    /// Columns of C to compute, at most `P * NR`.
    pub cols: usize,
    /// What becomes of the products.
    pub epilogue: Epilogue<'a>,
}

/// `C[r, n0 + j] = epilogue(A[r, :] . W[n0 + j, :])` for `r < rows`, `j < cols`; the rest of
/// `c` `[rows, ldc]` keeps its values.
///
/// # Panics
/// If a slice is shorter than its shape, or the columns do not fit in a row of C.
pub fn gemm_panels(isa: Isa, gemm: PanelGemm<'_>, c: &mut [f32], ldc: usize) {
    let PanelGemm { factors, rows, k, panels, n0, cols, .. } = gemm;
    if rows == 0 || cols == 0 {
        return;
    }
    let width = panel_width(isa);
    let end = n0 + cols;
    assert!(end <= ldc, "columns {n0}..{end} in rows of {ldc}");
    assert!(c.len() >= (rows - 1) * ldc + end, "C [{rows}, {ldc}] has {} elements", c.len());
    let panels_len = cols.div_ceil(width) * factors.floats(k) * width;
    assert!(panels.len() >= panels_len, "panels for {cols} columns");
    if let Epilogue::Bias(bias) = gemm.epilogue {
        assert!(bias.len() >= end, "a bias of {} for {end} columns", bias.len());
    }
    dispatch(isa, Multiply { gemm, c, ldc });
}

struct Pack<'a> {
    factors: Factors,
    w: &'a WeightView<'a>,
    n0: usize,
    panel: &'a mut [f32],
}

impl Kernel for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Pack { factors, w, n0, panel } = self;
        let width = tile::width::<L>();
        // Stretches of N rows are decoded to a buffer that stays in the L1 cache, then transposed.
        let mut decoded = [0.0; MAX_LANES * MAX_BLOCK_LEN];
        let mut columns = [0.0; MAX_LANES * MAX_BLOCK_LEN];
        for k0 in (0..w.cols()).step_by(MAX_BLOCK_LEN) {
            let len = MAX_BLOCK_LEN.min(w.cols() - k0);
            let part = &mut panel[factors.floats(k0) * width..];
            for vector in 0..ROW_VECTORS {
                let n = n0 + vector * L::N;
                for (i, row) in decoded.chunks_exact_mut(MAX_BLOCK_LEN).take(L::N).enumerate() {
                    let row = &mut row[..len];
                    if n + i < w.rows() {
                        quant::decode(lanes, w.block(), w.row_part(n + i, k0..k0 + len), row);
                    } else {
                        row.fill(0.0);
                    }
                }
                let part = &mut part[vector * L::N..];
                match factors {
                    Factors::F32 => transpose(lanes, &decoded, len, part, width),
                    Factors::Fixed => {
                        transpose(lanes, &decoded, len, &mut columns, L::N);
                        fixed::fix_columns(lanes, &columns[..len * L::N], part);
                    }
                }
            }
        }
    }
}

/// `panel[j * width + i] = decoded[i * MAX_BLOCK_LEN + j]` for `i < N`, `j < len`.
#[inline(always)]
fn transpose<L: Lanes>(lanes: L, decoded: &[f32], len: usize, panel: &mut [f32], width: usize) {
    let whole = len - len % L::N;
    for j in (0..whole).step_by(L::N) {
        lanes.transpose(&decoded[j..], MAX_BLOCK_LEN, &mut panel[j * width..], width);
    }
    for j in whole..len {
        for i in 0..L::N {
            panel[j * width + i] = decoded[i * MAX_BLOCK_LEN + j];
        }
    }
}

/// Terms of the chains that a tile adds before it moves on: one panel's part, `[K_BLOCK][NR]`, and
/// the rows of a [`ROW_TILES`] block share the L2 cache. A multiple of [`fixed::BLOCK`].
const K_BLOCK: usize = 1024;
/// Row tiles that pass over a panel's part before the next part is fetched.
const ROW_TILES: usize = 8;
/// Panels that the rows of a block pass over before the next terms are added.
const PANELS: usize = 8;
/// Chains of a block on any tier.
const MAX_PARTIAL: usize = ROW_TILES * 14 * PANELS * ROW_VECTORS * MAX_LANES;

struct Multiply<'a> {
    gemm: PanelGemm<'a>,
    c: &'a mut [f32],
    ldc: usize,
}

impl Kernel for Multiply<'_> {
    type Output = ();

    /// Loops, outermost first: groups of panels, row blocks, K blocks, the panels of a group, and
    /// (in `tile::multiply`) the row tiles of a block. Chains lie in `partial`, until the end of K as
    /// the f32 that they are in registers, which changes no bit of them.
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Multiply { gemm, c, ldc } = self;
        let PanelGemm { factors, a, lda, rows, k, panels, n0, cols, epilogue } = gemm;
        let width = tile::width::<L>();
        let panel_len = factors.floats(k) * width;
        let (block_rows, group_cols) = (ROW_TILES * L::ROW_TILE, PANELS * width);
        let mut partial = [0.0; MAX_PARTIAL];
        for group in (0..cols).step_by(group_cols) {
            let group_end = cols.min(group + group_cols);
            for row in (0..rows).step_by(block_rows) {
                let rows = block_rows.min(rows - row);
                // A single empty block where K is 0: the sums are 0, and the epilogue still runs.
                for k0 in (0..k.max(1)).step_by(K_BLOCK) {
                    let k1 = k.min(k0 + K_BLOCK);
                    for j in (group..group_end).step_by(width) {
                        let b = &panels[j / width * panel_len..][..panel_len];
                        let b = &b[factors.floats(k0) * width..];
                        let a = &a[row * lda + factors.floats(k0)..];
                        let sums = &mut partial[(j - group) * block_rows..][..rows * width];
                        let k = k1 - k0;
                        let product = Product { a, lda, b, ldb: width, k };
                        let chains = Chains { out: sums, stride: width, continued: k0 > 0 };
                        factors.multiply(lanes, product, rows, chains);
                        if k1 == gemm.k {
                            let epilogue = epilogue.starting_at(n0 + j);
                            let end = n0 + cols.min(j + width);
                            let rows = c[row * ldc..].chunks_mut(ldc);
                            for (sums, c) in sums.chunks_exact(width).zip(rows) {
                                epilogue.finish(lanes, sums, &mut c[n0 + j..end]);
                            }
                        }
                    }
                }
            }
        }
    }
}

impl<'a> Epilogue<'a> {
    /// The same for columns that count from `n`.
    fn starting_at(self, n: usize) -> Epilogue<'a> {
        match self {
            Epilogue::Bias(bias) => Epilogue::Bias(&bias[n..]),
            other => other,
        }
    }

    /// Applies it to a panel's products of one row, `[NR]`, and those columns of C that exist.
    #[inline(always)]
    fn finish<L: Lanes>(self, lanes: L, products: &[f32], c: &mut [f32]) {
        let vectors = products.chunks_exact(L::N).zip(c.chunks_mut(L::N));
        for (v, (products, c)) in vectors.enumerate() {
            let product = lanes.load(products);
            let value = match self {
                Epilogue::Store => product,
                Epilogue::Bias(bias) => lanes.add(product, lanes.load_first(&bias[v * L::N..])),
                Epilogue::Add => lanes.add(lanes.load_first(c), product),
                Epilogue::AddScaled(factor) => {
                    lanes.fma(lanes.splat(factor), product, lanes.load_first(c))
                }
                Epilogue::Silu => silu(lanes, product),
                Epilogue::GeluTanh => gelu_tanh(lanes, product),
                Epilogue::Mul => lanes.mul(lanes.load_first(c), product),
            };
            lanes.store_first(value, c);
        }
    }
}

#[cfg(test)]
mod tests;
