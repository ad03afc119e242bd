use super::*;
use crate::fixed::BLOCK;
use crate::quant::{BlockType, dequantize};
use crate::test_data::{Random, bits, chain, is_close, ulps};

/// Both forms of factors on every tier of this CPU.
fn forms() -> impl Iterator<Item = (Isa, Factors)> {
    Isa::available()
        .into_iter()
        .flat_map(|isa| [Factors::F32, Factors::Fixed].map(move |factors| (isa, factors)))
}

/// A product with f32 weights `[n, k]` and its expected sums.
struct Case {
    isa: Isa,
    factors: Factors,
    rows: usize,
    k: usize,
    n: usize,
    lda: usize,
    a: Vec<f32>,
    /// `a` in the form that is multiplied.
    rows_of_a: Vec<f32>,
    weights: Vec<f32>,
    panels: Vec<f32>,
}

impl Case {
    fn new((isa, factors): (Isa, Factors), rows: usize, k: usize, n: usize) -> Case {
        let mut random = Random::new((rows * 7919 + k * 31 + n) as u64);
        let lda = k + 5;
        let a = random.uniform(rows * lda, 1.0);
        let weights = random.uniform(n * k, 1.0);
        let bytes: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
        let view = WeightView::new(BlockType::F32, n, k, &bytes).unwrap();
        let (width, mut rows_of_a) = (panel_width(isa), a.clone());
        if factors == Factors::Fixed {
            fixed::fix_rows(isa, &mut rows_of_a, lda, k);
        }
        let len = factors.floats(k) * width;
        let mut panels = vec![f32::NAN; n.div_ceil(width) * len];
        for p in 0..n.div_ceil(width) {
            pack_panel(isa, factors, &view, p * width, &mut panels[p * len..(p + 1) * len]);
        }
        Case { isa, factors, rows, k, n, lda, a, rows_of_a, weights, panels }
    }

    fn gemm<'a>(&'a self, epilogue: Epilogue<'a>) -> PanelGemm<'a> {
        let Case { factors, rows, k, n, lda, .. } = *self;
        let (a, panels) = (&self.rows_of_a, &self.panels);
        PanelGemm { factors, a, lda, rows, k, panels, n0: 0, cols: n, epilogue }
    }

    /// The sum of row `r` and column `n` as the contract defines it: one chain in ascending K, of
    /// terms or of blocks.
    fn sum(&self, r: usize, n: usize) -> f32 {
        let a = &self.a[r * self.lda..][..self.k];
        let w = &self.weights[n * self.k..][..self.k];
        match self.factors {
            Factors::F32 => chain(self.isa, 0.0, a.iter().copied().zip(w.iter().copied())),
            Factors::Fixed => {
                let blocks = a.chunks(BLOCK).zip(w.chunks(BLOCK)).map(|(a, w)| {
                    let ((a, a_scale), (w, w_scale)) = (fix(a, 8191.0), fix(w, 4095.0));
                    let sum: i32 = a.iter().zip(w).map(|(a, w)| a * w).sum();
                    (sum as f32, a_scale * w_scale)
                });
                chain(self.isa, 0.0, blocks)
            }
        }
    }

    /// `C [rows, n]` of [`Epilogue::Store`].
    fn product(&self) -> Vec<f32> {
        let mut c = vec![f32::NAN; self.rows * self.n];
        gemm_panels(self.isa, self.gemm(Epilogue::Store), &mut c, self.n);
        c
    }

    #[track_caller]
    fn check(&self) {
        let got = self.product();
        for r in 0..self.rows {
            for n in 0..self.n {
                let (got, want) = (got[r * self.n + n], self.sum(r, n));
                let (isa, rows, k) = (self.isa.name(), self.rows, self.k);
                assert_eq!(
                    got.to_bits(),
                    want.to_bits(),
                    "{isa} [{rows}, {k}, {}] at {r}, {n}: {got} for {want}",
                    self.n
                );
            }
        }
    }
}

/// A block as integers up to `q`, and what they are worth.
fn fix(block: &[f32], q: f32) -> (Vec<i32>, f32) {
    let largest = block.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    (
        block.iter().map(|x| (x * (q / largest)).round_ties_even() as i32).collect(),
        largest * (1.0 / q),
    )
}

#[test]
fn every_output_is_the_scalar_chain_bit_for_bit() {
    for form in forms() {
        let isa = form.0;
        let (m, nr) = (row_tile(isa), panel_width(isa));
        for rows in [0, 1, m - 1, m, m + 1, 2 * m + 1] {
            for k in [0, 1, 7, 8, 31, 64, 65, 127, 257] {
                for n in [0, 1, nr - 1, nr, nr + 1, 2 * nr + 3] {
                    Case::new(form, rows, k, n).check();
                }
            }
        }
    }
}

#[test]
fn chains_survive_the_edges_of_the_cache_blocks() {
    for form in forms() {
        let isa = form.0;
        let nr = panel_width(isa);
        let block_rows = ROW_TILES * row_tile(isa);
        for k in [K_BLOCK - 1, K_BLOCK, K_BLOCK + 1, 2 * K_BLOCK, 2 * K_BLOCK + 3] {
            Case::new(form, 2, k, nr + 1).check();
            Case::new(form, block_rows + 1, k, 3).check();
            Case::new(form, 1, k, PANELS * nr + 1).check();
        }
        for rows in [block_rows - 1, block_rows, block_rows + 1, 2 * block_rows + 1] {
            Case::new(form, rows, 5, PANELS * nr + nr + 1).check();
        }
        Case::new(form, block_rows + 1, K_BLOCK + 1, 2 * PANELS * nr + 1).check();
    }
}

#[test]
#[should_panic(expected = " for ")]
fn a_wrong_product_is_found() {
    let mut case = Case::new((Isa::detect(), Factors::F32), 3, 20, 5);
    case.weights[47] += 1e-5;
    case.check();
}

#[test]
fn a_row_is_the_same_in_every_number_of_rows() {
    for form in forms() {
        let isa = form.0;
        let (k, n) = (K_BLOCK + 9, panel_width(isa) + 3);
        let most = ROW_TILES * row_tile(isa) + row_tile(isa) + 1;
        let case = Case::new(form, most, k, n);
        let whole = case.product();
        for r in 0..most {
            let mut gemm = case.gemm(Epilogue::Store);
            (gemm.a, gemm.rows) = (&case.rows_of_a[r * case.lda..], 1);
            let mut alone = vec![0.0; n];
            gemm_panels(isa, gemm, &mut alone, n);
            assert_eq!(bits(&alone), bits(&whole[r * n..(r + 1) * n]), "{} row {r}", isa.name());
        }
        for rows in 0..2 * row_tile(isa) {
            let mut gemm = case.gemm(Epilogue::Store);
            gemm.rows = rows;
            let mut c = vec![0.0; rows * n];
            gemm_panels(isa, gemm, &mut c, n);
            assert_eq!(bits(&c), bits(&whole[..rows * n]), "{} first {rows}", isa.name());
        }
    }
}

#[test]
fn columns_may_come_in_any_number_of_calls_and_the_rest_of_c_stays() {
    for (isa, factors) in forms() {
        let form = (isa, factors);
        let nr = panel_width(isa);
        let (rows, k, n) = (row_tile(isa) + 2, 40, 3 * nr + 5);
        let case = Case::new(form, rows, k, n);
        let whole = case.product();
        let (before, ldc) = (4, n + 9);
        let mut c = vec![-7.0; rows * ldc];
        for p in 0..n.div_ceil(nr) {
            let mut gemm = case.gemm(Epilogue::Store);
            let len = factors.floats(k) * nr;
            gemm.panels = &case.panels[p * len..(p + 1) * len];
            (gemm.n0, gemm.cols) = (before + p * nr, nr.min(n - p * nr));
            gemm_panels(isa, gemm, &mut c, ldc);
        }
        for (row, want) in c.chunks_exact(ldc).zip(whole.chunks_exact(n)) {
            assert_eq!(bits(&row[before..before + n]), bits(want), "{}", isa.name());
            assert!(row[..before].iter().chain(&row[before + n..]).all(|&x| x == -7.0));
        }
    }
}

#[test]
fn epilogues_apply_their_formula_to_the_finished_sum() {
    for form in forms() {
        let isa = form.0;
        let nr = panel_width(isa);
        for k in [3, K_BLOCK + 2] {
            for cols in [1, nr - 1, nr, 2 * nr + 1] {
                let rows = row_tile(isa) + 1;
                let case = Case::new(form, rows, k, cols);
                let sums = case.product();
                let old = Random::new(9).uniform(sums.len(), 4.0);
                let bias = Random::new(8).uniform(cols, 4.0);
                let run = |epilogue: Epilogue<'_>| {
                    let mut c = old.clone();
                    gemm_panels(isa, case.gemm(epilogue), &mut c, cols);
                    c
                };
                let name = format!("{} k {k} cols {cols}", isa.name());
                let expect = |f: &dyn Fn(usize) -> f32| -> Vec<u32> {
                    (0..sums.len()).map(|at| f(at).to_bits()).collect()
                };
                let biased = expect(&|at| sums[at] + bias[at % cols]);
                assert_eq!(bits(&run(Epilogue::Bias(&bias))), biased, "{name} bias");
                let added = expect(&|at| old[at] + sums[at]);
                assert_eq!(bits(&run(Epilogue::Add)), added, "{name} add");
                for factor in [0.22, -3.0] {
                    let scaled =
                        expect(&|at| chain(isa, old[at], [(factor, sums[at])].into_iter()));
                    let got = bits(&run(Epilogue::AddScaled(factor)));
                    assert_eq!(got, scaled, "{name} add {factor}");
                }
                let product = expect(&|at| old[at] * sums[at]);
                assert_eq!(bits(&run(Epilogue::Mul)), product, "{name} mul");
                for (got, &sum) in run(Epilogue::Silu).into_iter().zip(&sums) {
                    let sum = f64::from(sum);
                    // The bound of `silu`, which its own tests establish.
                    let error = ulps(got, sum / (1.0 + (-sum).exp()));
                    assert!(error <= 4.5, "{name} silu of {sum}: {error} ulp");
                }
                for (got, &sum) in run(Epilogue::GeluTanh).into_iter().zip(&sums) {
                    let x = f64::from(sum);
                    let w = (8.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                    let want = x / (1.0 + (-w).exp());
                    // The bounds of `gelu_tanh`, which its own tests establish.
                    let bound = 4.5 + 7.0 * w.abs() / (1.0 + w.exp());
                    let close = if x < -10.0 {
                        is_close(got, want, 4e-38)
                    } else {
                        ulps(got, want) <= bound
                    };
                    assert!(close, "{name} gelu of {sum}: {got} for {want}");
                }
            }
        }
    }
}

#[test]
fn a_bias_counts_from_column_zero_of_c() {
    for isa in Isa::available() {
        let case = Case::new((isa, Factors::F32), 1, 0, 3);
        let mut gemm = case.gemm(Epilogue::Bias(&[1.0, 2.0, 3.0, 4.0, 5.0]));
        gemm.n0 = 2;
        let mut c = [0.0; 6];
        gemm_panels(isa, gemm, &mut c, 6);
        assert_eq!(c, [0.0, 0.0, 3.0, 4.0, 5.0, 0.0], "{}", isa.name());
    }
}

/// Bytes of a matrix with finite scales of both signs.
fn weights_of(block: BlockType, n: usize, k: usize) -> Vec<u8> {
    let len = n * block.row_bytes(k).unwrap();
    let mut random = Random::new(77);
    // The top bit but one of every byte stays clear, so no f16, bf16 or f32 is infinite or NaN.
    (0..len).map(|_| random.bits() as u8 & 0b1011_1111).collect()
}

#[test]
fn panels_hold_the_decoded_weights_of_every_block_type() {
    for isa in Isa::available() {
        let nr = panel_width(isa);
        for block in BlockType::ALL {
            let unit = block.block_len();
            let lengths: &[usize] = if unit == 1 { &[0, 1, 7, 257, 300] } else { &[1, 3, 8, 9] };
            for k in lengths.iter().map(|blocks| blocks * unit) {
                for n in [1, nr - 1, nr, nr + 1] {
                    let bytes = weights_of(block, n, k);
                    let view = WeightView::new(block, n, k, &bytes).unwrap();
                    for n0 in [0, nr / 2, nr] {
                        let mut panel = vec![f32::NAN; k * nr];
                        pack_panel(isa, Factors::F32, &view, n0, &mut panel);
                        for j in 0..nr {
                            let mut row = vec![0.0; k];
                            if n0 + j < n {
                                dequantize(isa, block, view.row(n0 + j), &mut row);
                            }
                            let column: Vec<f32> = (0..k).map(|i| panel[i * nr + j]).collect();
                            let name = format!("{} {block} [{n}, {k}]", isa.name());
                            assert_eq!(bits(&column), bits(&row), "{name} row {}", n0 + j);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn fixed_panels_hold_the_same_weights_in_fixed_point() {
    for isa in Isa::available() {
        let nr = panel_width(isa);
        for block in BlockType::ALL {
            let k = 5 * block.block_len().max(27);
            let bytes = weights_of(block, nr + 1, k);
            let view = WeightView::new(block, nr + 1, k, &bytes).unwrap();
            let len = fixed::row_len(k);
            let mut panel = vec![f32::NAN; len * nr];
            pack_panel(isa, Factors::Fixed, &view, 2, &mut panel);
            for j in 0..nr {
                let mut row = vec![0.0; k];
                if 2 + j < nr + 1 {
                    dequantize(isa, block, view.row(2 + j), &mut row);
                }
                let column: Vec<f32> = (0..len).map(|i| panel[i * nr + j]).collect();
                let want = crate::fixed::tests::fixed_row(&row, 4095.0);
                assert_eq!(bits(&column), bits(&want), "{} {block} row {}", isa.name(), 2 + j);
            }
        }
    }
}

/// The bound of the module `fixed`: half a step of each factor, and the chain's roundings.
#[test]
fn fixed_point_products_are_within_half_a_step_of_each_factor() {
    for isa in Isa::available() {
        let (rows, k, n) = (3, 700, 5);
        let case = Case::new((isa, Factors::Fixed), rows, k, n);
        let got = case.product();
        for r in 0..rows {
            for n in 0..n {
                let a = &case.a[r * case.lda..][..k];
                let w = &case.weights[n * k..][..k];
                let exact: f64 = a.iter().zip(w).map(|(&a, &w)| f64::from(a) * f64::from(w)).sum();
                let mut bound = 0.0;
                for (a, w) in a.chunks(BLOCK).zip(w.chunks(BLOCK)) {
                    let largest =
                        |x: &[f32]| f64::from(x.iter().fold(0.0f32, |m, x| m.max(x.abs())));
                    // A reciprocal and a product rounded to f32 move an integer by 8191 * 2^-23.
                    let (a_step, w_step) = (largest(a) / 8191.0, largest(w) / 4095.0);
                    let (a_off, w_off) = (0.501 * a_step, 0.501 * w_step);
                    for (a, w) in a.iter().zip(w) {
                        let (a, w) = (f64::from(a.abs()), f64::from(w.abs()));
                        bound += a * w_off + w * a_off + a_off * w_off;
                    }
                    // Scales, their product, the integer as f32 and the chain: five roundings.
                    bound += 5.0 * f64::powi(2.0, -24) * largest(a) * largest(w) * BLOCK as f64;
                }
                let off = (f64::from(got[r * case.n + n]) - exact).abs();
                assert!(off <= bound, "{} {r}, {n}: off by {off}, bound {bound}", isa.name());
                // An eighth of what rounding both factors to bf16 may do.
                let terms = a.iter().zip(w).map(|(&a, &w)| f64::from(a * w).abs());
                let bf16 = terms.sum::<f64>() * 2.0 * f64::powi(2.0, -9);
                assert!(bound < bf16 / 8.0, "{} {bound} against {bf16}", isa.name());
            }
        }
    }
}

#[test]
fn a_factor_that_is_not_finite_makes_its_products_nan() {
    for isa in Isa::available() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (k, n) = (130, panel_width(isa) + 1);
            for at in [0, 63, 64, 129] {
                let mut case = Case::new((isa, Factors::Fixed), 2, k, n);
                case.a[case.lda + at] = bad;
                case.rows_of_a.copy_from_slice(&case.a);
                fixed::fix_rows(isa, &mut case.rows_of_a, case.lda, k);
                let c = case.product();
                assert!(c[..n].iter().all(|x| x.is_finite()) && c[n..].iter().all(|x| x.is_nan()));

                let mut weights = case.weights.clone();
                weights[k + at] = bad;
                let bytes: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
                let view = WeightView::new(BlockType::F32, n, k, &bytes).unwrap();
                let mut case = Case::new((isa, Factors::Fixed), 2, k, n);
                let len = fixed::row_len(k) * panel_width(isa);
                pack_panel(isa, Factors::Fixed, &view, 0, &mut case.panels[..len]);
                for (j, x) in case.product().into_iter().enumerate() {
                    assert_eq!(x.is_nan(), j % n == 1, "{} {bad} at {at}: {x}", isa.name());
                }
            }
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    for form in forms() {
        let isa = form.0;
        let case = Case::new(form, 2, 4, panel_width(isa) + 1);
        let n = case.n;
        let refused = |change: fn(&mut PanelGemm<'_>), c_len: usize, ldc: usize| {
            let mut gemm = case.gemm(Epilogue::Store);
            change(&mut gemm);
            let mut c = vec![0.0; c_len];
            std::panic::catch_unwind(move || gemm_panels(isa, gemm, &mut c, ldc)).is_err()
        };
        assert!(!refused(|_| (), 2 * n, n), "{} fits", isa.name());
        assert!(refused(|_| (), 2 * n - 1, n), "{} C too short", isa.name());
        assert!(refused(|_| (), 2 * n, n - 1), "{} rows of C too short", isa.name());
        assert!(refused(|g| g.n0 = 1, 2 * n, n), "{} columns beyond C", isa.name());
        assert!(refused(|g| g.a = &g.a[10..], 2 * n, n), "{} A too short", isa.name());
        assert!(refused(|g| g.panels = &g.panels[1..], 2 * n, n), "{} panels", isa.name());
        assert!(refused(|g| g.epilogue = Epilogue::Bias(&[0.0]), 2 * n, n), "{} bias", isa.name());
    }
}

#[test]
fn an_activation_by_itself_has_the_bits_of_its_epilogue() {
    for isa in Isa::available() {
        for activation in [Activation::Silu, Activation::GeluTanh] {
            for cols in [1, 7, 8, 17, 2 * panel_width(isa) + 3] {
                let form = (isa, Factors::F32);
                let (gates, ups) = (Case::new(form, 1, 9, cols), Case::new(form, 1, 10, cols));
                let mut want = vec![0.0; cols];
                gemm_panels(isa, gates.gemm(activation.into()), &mut want, cols);
                gemm_panels(isa, ups.gemm(Epilogue::Mul), &mut want, cols);
                let mut got = gates.product();
                activate_and_multiply(isa, activation, &mut got, &ups.product());
                assert_eq!(bits(&got), bits(&want), "{} {activation:?} {cols}", isa.name());
            }
        }
        let (mut gate, up) = ([f32::NAN, 2.0, 3.0], [1.0, 1.0, f32::NAN]);
        activate_and_multiply(isa, Activation::GeluTanh, &mut gate, &up);
        assert!(gate[0].is_nan() && gate[1].is_finite() && gate[2].is_nan(), "{}", isa.name());
    }
}

#[test]
#[should_panic(expected = "one gate for each value")]
fn gates_of_another_number_are_refused() {
    activate_and_multiply(Isa::detect(), Activation::Silu, &mut [1.0; 3], &[1.0; 4]);
}
