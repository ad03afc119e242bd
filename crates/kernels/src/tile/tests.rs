use super::*;
use crate::isa::Isa;
use crate::lanes::{Kernel, dispatch};
use crate::test_data::{Random, bits, chain};

/// Starts the chains of row r at `start[r]` and stores them to `out`, both `[rows][width]`.
struct Plain<'a> {
    start: &'a [f32],
    out: &'a mut [f32],
}

impl<L: Lanes> Rows<L> for Plain<'_> {
    #[inline(always)]
    fn start(&self, lanes: L, row: usize) -> [L::V; ROW_VECTORS] {
        let start = &self.start[row * width::<L>()..];
        [lanes.load(start), lanes.load(&start[L::N..])]
    }

    #[inline(always)]
    fn finish(&mut self, lanes: L, row: usize, acc: [L::V; ROW_VECTORS]) {
        let out = &mut self.out[row * width::<L>()..];
        lanes.store(acc[0], out);
        lanes.store(acc[1], &mut out[L::N..]);
    }
}

/// [`multiply`] with [`Plain`] rows.
struct Call<'a> {
    product: Product<'a>,
    rows: usize,
    plain: Plain<'a>,
}

impl Kernel for Call<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        multiply(lanes, self.product, self.rows, &mut self.plain);
    }
}

/// Width of the tile, and its rows.
struct Shape;

impl Kernel for Shape {
    type Output = (usize, usize);

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) -> (usize, usize) {
        (width::<L>(), L::ROW_TILE)
    }
}

#[test]
fn every_element_is_the_scalar_chain_bit_for_bit() {
    for isa in Isa::available() {
        let (width, row_tile) = dispatch(isa, Shape);
        for rows in 0..=2 * row_tile + 1 {
            for k in [0, 1, 2, 3, 8, 17, 64] {
                for pad in [0, 3] {
                    let (lda, ldb) = (k + pad, width + pad);
                    let mut random = Random::new((rows * 100 + k) as u64);
                    let a = &random.uniform(rows * lda + 1, 1.0)[1..];
                    let b = &random.uniform(k * ldb + 1, 1.0)[1..];
                    let start = random.uniform(rows * width, 1.0);
                    let mut out = vec![f32::NAN; rows * width];
                    let plain = Plain { start: &start, out: &mut out };
                    let product = Product { a, lda, b, ldb, k };
                    dispatch(isa, Call { product, rows, plain });
                    let want: Vec<f32> = (0..rows * width)
                        .map(|at| {
                            let (r, j) = (at / width, at % width);
                            let terms = (0..k).map(|i| (a[r * lda + i], b[i * ldb + j]));
                            chain(isa, start[at], terms)
                        })
                        .collect();
                    assert_eq!(bits(&out), bits(&want), "{} [{rows}, {k}] pad {pad}", isa.name());
                }
            }
        }
    }
}

#[test]
fn a_row_is_the_same_alone_and_among_nan_rows() {
    for isa in Isa::available() {
        let (width, row_tile) = dispatch(isa, Shape);
        let k = 33;
        let row = Random::new(5).uniform(k, 1.0);
        let b = Random::new(6).uniform(k * width, 1.0);
        let run = |a: &[f32], rows: usize| {
            let start = vec![0.0; rows * width];
            let mut out = vec![0.0; rows * width];
            let plain = Plain { start: &start, out: &mut out };
            let product = Product { a, lda: k, b: &b, ldb: width, k };
            dispatch(isa, Call { product, rows, plain });
            out
        };
        let alone = run(&row, 1);
        for rows in 1..=2 * row_tile + 1 {
            for at in 0..rows {
                let mut a = vec![f32::NAN; rows * k];
                a[at * k..(at + 1) * k].copy_from_slice(&row);
                let out = run(&a, rows);
                let got = &out[at * width..(at + 1) * width];
                assert_eq!(bits(got), bits(&alone), "{} row {at} of {rows}", isa.name());
            }
        }
    }
}

#[test]
fn operands_one_element_short_are_refused() {
    for isa in Isa::available() {
        let (width, _) = dispatch(isa, Shape);
        let (rows, k) = (3, 4);
        let (a, b) = (vec![0.0; rows * k], vec![0.0; k * width]);
        let call = |a: &[f32], b: &[f32]| {
            let start = vec![0.0; rows * width];
            let mut out = vec![0.0; rows * width];
            let plain = Plain { start: &start, out: &mut out };
            dispatch(isa, Call { product: Product { a, lda: k, b, ldb: width, k }, rows, plain });
        };
        call(&a, &b);
        assert!(std::panic::catch_unwind(|| call(&a[1..], &b)).is_err(), "{} A", isa.name());
        assert!(std::panic::catch_unwind(|| call(&a, &b[1..])).is_err(), "{} B", isa.name());
    }
}
