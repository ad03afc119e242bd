use super::*;
use crate::isa::Isa;
use crate::lanes::{Kernel, dispatch};
use crate::test_data::{Random, bits, chain};

/// [`multiply`], with chains `[rows][width]`.
struct Call<'a> {
    product: Product<'a>,
    rows: usize,
    out: &'a mut [f32],
    continued: bool,
}

impl Kernel for Call<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Call { product, rows, out, continued } = self;
        multiply(lanes, product, rows, Chains { out, stride: width::<L>(), continued });
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
                    let product = Product { a, lda, b, ldb, k };
                    for continued in [true, false] {
                        let start = random.uniform(rows * width, 1.0);
                        let mut out = start.clone();
                        dispatch(isa, Call { product, rows, out: &mut out, continued });
                        let want: Vec<f32> = (0..rows * width)
                            .map(|at| {
                                let (r, j) = (at / width, at % width);
                                let terms = (0..k).map(|i| (a[r * lda + i], b[i * ldb + j]));
                                chain(isa, if continued { start[at] } else { 0.0 }, terms)
                            })
                            .collect();
                        let what = format!("{} [{rows}, {k}] pad {pad}", isa.name());
                        assert_eq!(bits(&out), bits(&want), "{what}, continued: {continued}");
                    }
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
            let mut out = vec![0.0; rows * width];
            let product = Product { a, lda: k, b: &b, ldb: width, k };
            dispatch(isa, Call { product, rows, out: &mut out, continued: false });
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
fn operands_and_chains_one_element_short_are_refused() {
    for isa in Isa::available() {
        let (width, _) = dispatch(isa, Shape);
        let (rows, k) = (3, 4);
        let (a, b) = (vec![0.0; rows * k], vec![0.0; k * width]);
        let call = |a: &[f32], b: &[f32], n_out: usize| {
            let mut out = vec![0.0; n_out];
            let product = Product { a, lda: k, b, ldb: width, k };
            dispatch(isa, Call { product, rows, out: &mut out, continued: true });
        };
        let n_out = rows * width;
        call(&a, &b, n_out);
        let refused = |a, b, n_out| std::panic::catch_unwind(|| call(a, b, n_out)).is_err();
        assert!(refused(&a[1..], &b, n_out), "{} A", isa.name());
        assert!(refused(&a, &b[1..], n_out), "{} B", isa.name());
        assert!(refused(&a, &b, n_out - 1), "{} chains", isa.name());
    }
}
