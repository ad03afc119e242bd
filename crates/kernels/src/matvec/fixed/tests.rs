use super::*;
use crate::matvec::tests::{bits, column_counts, decoded, weight_bytes};
use crate::test_data::{Random, assert_close, is_close};

fn types() -> impl Iterator<Item = BlockType> {
    BlockType::ALL.into_iter().filter(|&block| has_ints(block))
}

fn fixed(isa: Isa, x: &[f32]) -> Vec<f32> {
    let mut fixed = vec![f32::NAN; fixed_len(x.len())];
    fix_vector(isa, x, &mut fixed);
    fixed
}

/// The numbers that a vector in fixed point stands for.
fn numbers(k: usize, fixed: &[f32]) -> Vec<f64> {
    let Fixed { scales, words, .. } = Fixed::of(k, fixed);
    let of_run = |(scale, words): (&f32, &[f32; WORDS])| {
        let ints = words.map(f32::to_bits).map(|word| [word as i16, (word >> 16) as i16]);
        ints.into_iter().flatten().map(|int| f64::from(*scale) * f64::from(int)).collect::<Vec<_>>()
    };
    scales.iter().zip(words).flat_map(of_run).collect()
}

/// The call for one vector.
fn one(isa: Isa, weights: &WeightView, rows: Range<usize>, x: &[f32], y: &mut [f32]) {
    matvec_fixed(isa, weights, rows, &mut [Vector { x, y }]);
}

fn product(isa: Isa, weights: &WeightView, x: &[f32]) -> Vec<f32> {
    let mut y = vec![f32::NAN; weights.rows()];
    one(isa, weights, 0..weights.rows(), &fixed(isa, x), &mut y);
    y
}

/// Half a step of each element's run.
fn half_steps(x: &[f32]) -> Vec<f64> {
    let of_run = |run: &[f32]| {
        let most = run.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        vec![f64::from(most) / 65534.0; run.len()]
    };
    x.chunks(RUN).flat_map(of_run).collect()
}

#[test]
fn elements_are_off_by_half_a_step_at_most() {
    let mut random = Random::new(1);
    for isa in Isa::available() {
        for range in [1e-20, 1e-3, 1.0, 3e30] {
            let mut x = random.uniform(320, range);
            x[32..64].fill(0.0);
            x[70] = 1000.0 * range;
            let held = fixed(isa, &x);
            let numbers = numbers(x.len(), &held);
            for (i, step) in half_steps(&x).into_iter().enumerate() {
                // The scale and the quotient are rounded to f32 besides.
                let bound = step * (1.0 + 2f64.powi(-7));
                assert!((numbers[i] - f64::from(x[i])).abs() <= bound, "{range} element {i}");
            }
            // Each run's sum, over eight lanes.
            let Fixed { sums, .. } = Fixed::of(x.len(), &held);
            for (run, sum) in sums.iter().enumerate() {
                let want: f64 = numbers[run * RUN..][..RUN].iter().sum();
                assert_close("sum", 8.0 * sum, want, want.abs() * 2f64.powi(-22));
            }
        }
    }
}

/// The product in f64 of what the vector stands for, and the bound of the module documentation.
fn reference(w: &[f32], x: &[f64]) -> (f64, f64) {
    let (mut sum, mut magnitude) = (0.0, 0.0);
    for (w, x) in w.iter().zip(x) {
        sum += f64::from(*w) * x;
        magnitude += (f64::from(*w) * x).abs();
    }
    (sum, magnitude)
}

fn gamma(k: usize) -> f64 {
    let roundings = (k / RUN + 12) as f64 * 2f64.powi(-24);
    roundings / (1.0 - roundings)
}

/// Largest magnitude that weights with offsets are made of, over that of the weights themselves:
/// `|scale q| + |offset|` for random integers and the scales of `weight_bytes`.
fn parts(block: BlockType, w: &[f32]) -> Vec<f64> {
    // An offset is what an element is for the integer zero; scales are positive there or the
    // offset is known from the spread: the largest magnitude of the run bounds both.
    let of_run = |run: &[f32]| {
        let most = run.iter().fold(0.0f32, |most, w| most.max(w.abs()));
        let spread = run.iter().fold(0.0f32, |most, w| most.max((w - run[0]).abs()));
        vec![f64::from(most) + 2.0 * f64::from(spread); run.len()]
    };
    match block {
        BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4K | BlockType::Q5K => {
            w.chunks(RUN).flat_map(of_run).collect()
        }
        _ => w.iter().map(|w| f64::from(w.abs())).collect(),
    }
}

#[test]
fn outputs_are_within_the_stated_bounds() {
    let mut random = Random::new(2);
    for block in types() {
        for k in column_counts(block) {
            let bytes = weight_bytes(&mut random, block, 5, k);
            let weights = WeightView::new(block, 5, k, &bytes).unwrap();
            let x = random.uniform(k, 4.0);
            let w = decoded(&weights);
            for isa in Isa::available() {
                let held = numbers(k, &fixed(isa, &x));
                for (n, y) in product(isa, &weights, &x).into_iter().enumerate() {
                    let w = &w[n * k..][..k];
                    let name = format!("{block} K {k} row {n} {}", isa.name());
                    let (want, _) = reference(w, &held);
                    let sums: f64 =
                        parts(block, w).iter().zip(&held).map(|(w, x)| w * x.abs()).sum();
                    assert_close(&name, y, want, gamma(k) * sums);
                    let exact: f64 =
                        w.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                    let steps = half_steps(&x);
                    let step: f64 =
                        w.iter().zip(steps).map(|(w, step)| f64::from(w.abs()) * step).sum();
                    assert_close(&name, y, exact, 1.01 * step + gamma(k) * sums);
                }
            }
        }
    }
}

#[test]
fn the_bounds_reject_a_lost_element_and_8_bit_vectors() {
    let mut random = Random::new(3);
    let (w, x) = (random.uniform(896, 0.1), random.uniform(896, 4.0));
    let wide: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let (want, magnitude) = reference(&w, &wide);
    let steps: f64 = w.iter().zip(half_steps(&x)).map(|(w, step)| f64::from(w.abs()) * step).sum();
    let bound = steps + gamma(896) * magnitude;
    let mut lost = wide.clone();
    lost[895] = 0.0;
    assert!(
        is_close(want as f32, want, bound) && !is_close(reference(&w, &lost).0 as f32, want, bound)
    );
    let coarse: Vec<f64> = wide.iter().map(|x| (x * 127.0 / 4.0).round() * 4.0 / 127.0).collect();
    assert!(!is_close(reference(&w, &coarse).0 as f32, want, bound));
}

#[test]
fn bits_of_a_row_do_not_depend_on_the_range_or_other_rows() {
    let mut random = Random::new(4);
    for block in types() {
        let bytes = weight_bytes(&mut random, block, 13, 768);
        let weights = WeightView::new(block, 13, 768, &bytes).unwrap();
        let x = random.uniform(768, 4.0);
        let row_bytes = bytes.len() / 13;
        for isa in Isa::available() {
            let (whole, x) = (product(isa, &weights, &x), fixed(isa, &x));
            for start in 0..=13 {
                for end in start..=13 {
                    let mut part = vec![f32::NAN; end - start];
                    one(isa, &weights, start..end, &x, &mut part);
                    let same = bits(&part) == bits(&whole[start..end]);
                    assert!(same, "{block} rows {start}..{end} {}", isa.name());
                }
            }
            // NaN scales in every other row.
            for n in 0..13 {
                let mut alone = vec![0xff; bytes.len()];
                let row = n * row_bytes..(n + 1) * row_bytes;
                alone[row.clone()].copy_from_slice(&bytes[row]);
                let weights = WeightView::new(block, 13, 768, &alone).unwrap();
                let mut y = [0.0; 13];
                one(isa, &weights, 0..13, &x, &mut y);
                assert_eq!(y[n].to_bits(), whole[n].to_bits(), "{block} row {n} {}", isa.name());
                assert_eq!(y.iter().filter(|y| y.is_nan()).count(), 12, "{block}: NaN is not lost");
            }
        }
    }
}

#[test]
fn bits_of_a_vector_do_not_depend_on_its_company() {
    let mut random = Random::new(6);
    for block in types() {
        let bytes = weight_bytes(&mut random, block, 37, 512);
        let weights = WeightView::new(block, 37, 512, &bytes).unwrap();
        for isa in Isa::available() {
            for n_vectors in 1..=9 {
                let xs: Vec<_> =
                    (0..n_vectors).map(|_| fixed(isa, &random.uniform(512, 4.0))).collect();
                let mut strange = xs.clone();
                // What is not finite stays with its own.
                strange[0] = fixed(isa, &[f32::NAN; 512]);
                for (xs, whole) in [(&xs, true), (&strange, false)] {
                    let mut ys = vec![vec![f32::NAN; 36]; n_vectors];
                    let mut vectors: Vec<_> =
                        xs.iter().zip(&mut ys).map(|(x, y)| Vector { x, y }).collect();
                    matvec_fixed(isa, &weights, 1..37, &mut vectors);
                    for (index, (x, y)) in xs.iter().zip(&ys).enumerate() {
                        let mut alone = vec![f32::NAN; 36];
                        one(isa, &weights, 1..37, x, &mut alone);
                        let name = format!("{block} {index} of {n_vectors} {}", isa.name());
                        match whole || index > 0 {
                            true => assert_eq!(bits(y), bits(&alone), "{name}"),
                            false => assert!(y.iter().all(|y| y.is_nan()), "{name}"),
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn vectors_that_are_not_finite_give_nan_and_zeros_zero() {
    let mut random = Random::new(5);
    for block in types() {
        let bytes = weight_bytes(&mut random, block, 3, 512);
        let weights = WeightView::new(block, 3, 512, &bytes).unwrap();
        for isa in Isa::available() {
            for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = random.uniform(512, 1.0);
                x[300] = strange;
                assert!(product(isa, &weights, &x).iter().all(|y| y.is_nan()), "{block} {strange}");
            }
            assert!(product(isa, &weights, &[0.0; 512]).iter().all(|&y| y == 0.0), "{block}");
            // Below the smallest run that is held.
            assert!(product(isa, &weights, &[1e-35; 512]).iter().all(|&y| y == 0.0), "{block}");
        }
    }
}

#[test]
fn other_types_are_refused() {
    for block in BlockType::ALL.into_iter().filter(|&block| !has_ints(block)) {
        let k = 256;
        let bytes = vec![0; block.row_bytes(k).unwrap()];
        let weights = WeightView::new(block, 1, k, &bytes).unwrap();
        let product = || one(Isa::detect(), &weights, 0..1, &[0.0; fixed_len(256)], &mut [0.0]);
        assert!(std::panic::catch_unwind(product).is_err(), "{block}");
    }
}

#[test]
#[should_panic(expected = "33 elements are no whole runs of 32")]
fn a_vector_of_no_whole_runs_is_refused() {
    fix_vector(Isa::detect(), &[0.0; 33], &mut [0.0; 18]);
}

#[test]
#[should_panic(expected = "x is the fixed point of one float per column")]
fn an_x_of_another_length_is_refused() {
    let weights = WeightView::new(BlockType::Q8_0, 1, 32, &[0; 34]).unwrap();
    one(Isa::detect(), &weights, 0..1, &[0.0; 32], &mut [0.0]);
}
