use super::*;
use crate::isa::Tier;
use crate::quant::dequantize;
use crate::test_data::{Random, assert_close, is_close};

/// Weight bytes of `rows` x `cols`: random quants, scales and floats of about 2^-8.
///
/// What is set is the upper byte of each scale, at the stated places: sign and low mantissa bits at
/// random, the exponent near 2^-8 in binary16 (2^-45 in bfloat16) and in the binary32 of `Q8_K`;
/// for `MXFP4` the exponent.
pub(super) fn weight_bytes(
    random: &mut Random,
    block: BlockType,
    rows: usize,
    cols: usize,
) -> Vec<u8> {
    let len = rows * block.row_bytes(cols).unwrap();
    let mut bytes: Vec<u8> = (0..len).map(|_| random.bits() as u8).collect();
    let (places, keep, set): (&[usize], u8, u8) = match block {
        BlockType::F32 => {
            let floats = random.uniform(rows * cols, 0.1);
            return floats.into_iter().flat_map(f32::to_le_bytes).collect();
        }
        BlockType::F16 | BlockType::BF16 => (&[1], 0x83, 0x1c),
        BlockType::Q4_0 | BlockType::Q5_0 | BlockType::Q8_0 => (&[1], 0x83, 0x1c),
        BlockType::Q8_1 | BlockType::IQ4NL | BlockType::IQ4XS => (&[1], 0x83, 0x1c),
        BlockType::Q4_1 | BlockType::Q5_1 => (&[1, 3], 0x83, 0x1c),
        BlockType::Q4K | BlockType::Q5K => (&[1, 3], 0x83, 0x1c),
        BlockType::Q2K => (&[81, 83], 0x83, 0x1c),
        BlockType::Q3K => (&[109], 0x83, 0x1c),
        BlockType::Q6K => (&[209], 0x83, 0x1c),
        BlockType::Q8K => (&[3], 0x80, 0x3b),
        BlockType::MXFP4 => (&[0], 0x03, 0x74),
    };
    for block in bytes.chunks_exact_mut(block.block_bytes()) {
        for &at in places {
            block[at] = block[at] & keep | set;
        }
    }
    bytes
}

pub(super) fn decoded(weights: &WeightView) -> Vec<f32> {
    let mut out = vec![f32::NAN; weights.rows() * weights.cols()];
    dequantize(Isa::detect(), weights.block(), weights.bytes(), &mut out);
    out
}

/// All rows, with outputs that start as NaN, so that one not written is seen.
fn product(isa: Isa, weights: &WeightView, x: &[f32]) -> Vec<f32> {
    let mut y = vec![f32::NAN; weights.rows()];
    one(isa, weights, 0..weights.rows(), x, &mut y);
    y
}

/// The call for one vector.
fn one(isa: Isa, weights: &WeightView, rows: Range<usize>, x: &[f32], y: &mut [f32]) {
    matvec(isa, weights, rows, &mut [Vector { x, y }]);
}

pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Column counts below, at and above the edges of a vector, of a step of four vectors, and of real
/// models.
pub(super) fn column_counts(block: BlockType) -> Vec<usize> {
    match block.block_len() {
        1 => (0..=17).chain([31, 32, 33, 63, 64, 65, 127, 128, 129, 896, 1001]).collect(),
        32 => vec![0, 32, 64, 96, 128, 160, 576, 896, 4864],
        _ => vec![0, 256, 512, 768, 4864],
    }
}

/// The dot product in f64 and the bound of the module documentation on an f32 result.
///
/// Products of two f32 are exact in f64, and the sum's own error is at most `K 2^-53 sum |w x|`,
/// added to the bound.
fn reference(w: &[f32], x: &[f32]) -> (f64, f64) {
    let (mut sum, mut magnitude) = (0.0, 0.0);
    for (&w, &x) in w.iter().zip(x) {
        let product = f64::from(w) * f64::from(x);
        sum += product;
        magnitude += product.abs();
    }
    let roundings = (w.len().div_ceil(32) + 6) as f64 * 2f64.powi(-24);
    let gamma = roundings / (1.0 - roundings);
    (sum, magnitude * (gamma + w.len() as f64 * 2f64.powi(-53)))
}

#[test]
fn outputs_are_within_the_stated_bound() {
    let mut random = Random::new(1);
    for block in BlockType::ALL {
        for cols in column_counts(block) {
            let bytes = weight_bytes(&mut random, block, 5, cols);
            let weights = WeightView::new(block, 5, cols, &bytes).unwrap();
            let x = random.uniform(cols, 4.0);
            let w = decoded(&weights);
            for isa in Isa::available() {
                for (n, y) in product(isa, &weights, &x).into_iter().enumerate() {
                    let (want, bound) = reference(&w[n * cols..][..cols], &x);
                    assert_close(
                        &format!("{block} K {cols} row {n} {}", isa.name()),
                        y,
                        want,
                        bound,
                    );
                }
            }
        }
    }
}

#[test]
fn the_bound_rejects_a_lost_element_and_bf16_weights() {
    let mut random = Random::new(2);
    let (w, x) = (random.uniform(896, 0.1), random.uniform(896, 4.0));
    let (want, bound) = reference(&w, &x);
    let dot = |w: &[f32]| w.iter().zip(&x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum::<f64>();
    assert!(is_close(dot(&w) as f32, want, bound));
    let mut lost = w.clone();
    lost[895] = 0.0;
    assert!(!is_close(dot(&lost) as f32, want, bound));
    let rounded: Vec<f32> = w.iter().map(|w| f32::from_bits(w.to_bits() & 0xffff_0000)).collect();
    assert!(!is_close(dot(&rounded) as f32, want, bound));
}

/// The order of the sum as the module documentation states it, in scalar code.
fn in_stated_order(tier: Tier, block: BlockType, w: &[f32], x: &[f32]) -> f32 {
    let lanes = if tier >= Tier::Avx512 { 16 } else { 8 };
    let chains = if block.block_len() == 1 { SUMS * lanes } else { RUN };
    let mut sums = [0.0f32; SUMS * MAX_LANES];
    for (k, (&w, &x)) in w.iter().zip(x).enumerate() {
        let sum = &mut sums[k % chains];
        *sum = if tier == Tier::Portable { *sum + w * x } else { w.mul_add(x, *sum) };
    }
    let lane = |i: usize| (sums[i] + sums[lanes + i]) + (sums[2 * lanes + i] + sums[3 * lanes + i]);
    let mut joined: Vec<f32> = (0..lanes).map(lane).collect();
    while joined.len() > 1 {
        let upper = joined.split_off(joined.len() / 2);
        joined.iter_mut().zip(upper).for_each(|(lower, upper)| *lower += upper);
    }
    joined[0]
}

#[test]
fn the_sum_has_the_stated_order() {
    let mut random = Random::new(3);
    for block in BlockType::ALL {
        for cols in column_counts(block) {
            let bytes = weight_bytes(&mut random, block, 3, cols);
            let weights = WeightView::new(block, 3, cols, &bytes).unwrap();
            let x = random.uniform(cols, 4.0);
            let w = decoded(&weights);
            for isa in Isa::available() {
                let rows = (0..3).map(|n| &w[n * cols..][..cols]);
                let expected: Vec<f32> =
                    rows.map(|w| in_stated_order(isa.tier(), block, w, &x)).collect();
                let actual = product(isa, &weights, &x);
                assert_eq!(bits(&actual), bits(&expected), "{block} K {cols} {}", isa.name());
            }
        }
    }
}

#[test]
fn bits_of_a_row_do_not_depend_on_the_range() {
    let mut random = Random::new(4);
    for block in BlockType::ALL {
        let bytes = weight_bytes(&mut random, block, 13, 768);
        let weights = WeightView::new(block, 13, 768, &bytes).unwrap();
        let x = random.uniform(768, 4.0);
        for isa in Isa::available() {
            let whole = product(isa, &weights, &x);
            for start in 0..=13 {
                for end in start..=13 {
                    let mut part = vec![f32::NAN; end - start];
                    one(isa, &weights, start..end, &x, &mut part);
                    let same = bits(&part) == bits(&whole[start..end]);
                    assert!(same, "{block} rows {start}..{end} {}", isa.name());
                }
            }
        }
    }
}

#[test]
fn bits_of_a_row_do_not_depend_on_the_other_rows() {
    let mut random = Random::new(5);
    for block in BlockType::ALL {
        let bytes = weight_bytes(&mut random, block, 3, 512);
        let row_bytes = bytes.len() / 3;
        // All ones: NaN in the float types and NaN scales in the others.
        let mut alone = vec![0xff; bytes.len()];
        alone[row_bytes..2 * row_bytes].copy_from_slice(&bytes[row_bytes..2 * row_bytes]);
        let x = random.uniform(512, 4.0);
        for isa in Isa::available() {
            let all = product(isa, &WeightView::new(block, 3, 512, &bytes).unwrap(), &x);
            let one = product(isa, &WeightView::new(block, 3, 512, &alone).unwrap(), &x);
            assert_eq!(one[1].to_bits(), all[1].to_bits(), "{block} {}", isa.name());
            assert!(one[0].is_nan() && one[2].is_nan(), "{block} {}: NaN is not lost", isa.name());
        }
    }
}

/// The call for several vectors, with outputs that start as NaN.
fn together(isa: Isa, weights: &WeightView, rows: Range<usize>, xs: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let mut ys = vec![vec![f32::NAN; rows.len()]; xs.len()];
    let mut vectors: Vec<Vector> = xs.iter().zip(&mut ys).map(|(x, y)| Vector { x, y }).collect();
    matvec(isa, weights, rows, &mut vectors);
    ys
}

/// Vectors in a call: up to three tiles.
const COMPANY: std::ops::RangeInclusive<usize> = 0..=9;

#[test]
fn a_vector_has_the_bits_that_it_has_alone_in_any_company() {
    let mut random = Random::new(6);
    for block in BlockType::ALL {
        for cols in column_counts(block) {
            let bytes = weight_bytes(&mut random, block, 5, cols);
            let weights = WeightView::new(block, 5, cols, &bytes).unwrap();
            let xs: Vec<Vec<f32>> = COMPANY.map(|_| random.uniform(cols, 4.0)).collect();
            for isa in Isa::available() {
                let alone: Vec<Vec<f32>> = xs.iter().map(|x| product(isa, &weights, x)).collect();
                for n in COMPANY {
                    let last = xs.len() - n;
                    for first in [0, last] {
                        let ys = together(isa, &weights, 0..5, &xs[first..first + n]);
                        for (y, alone) in ys.iter().zip(&alone[first..]) {
                            let what = format!("{block} K {cols}, {n} vectors, {}", isa.name());
                            assert_eq!(bits(y), bits(alone), "{what}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn rows_may_be_split_for_several_vectors_too() {
    let mut random = Random::new(7);
    for block in BlockType::ALL {
        let bytes = weight_bytes(&mut random, block, 40, 768);
        let weights = WeightView::new(block, 40, 768, &bytes).unwrap();
        let xs: Vec<Vec<f32>> = (0..9).map(|_| random.uniform(768, 4.0)).collect();
        for isa in Isa::available() {
            for n in [2, 3, 4, 9] {
                let whole = together(isa, &weights, 0..40, &xs[..n]);
                for (start, end) in [(0, 0), (0, 1), (1, 17), (3, 36), (5, 40), (39, 40)] {
                    let part = together(isa, &weights, start..end, &xs[..n]);
                    for (part, whole) in part.iter().zip(&whole) {
                        let same = bits(part) == bits(&whole[start..end]);
                        assert!(same, "{block} rows {start}..{end} of {n}, {}", isa.name());
                    }
                }
            }
        }
    }
}

/// Neither a vector that overflows nor a row that is no number reaches its neighbours.
#[test]
fn nan_stays_in_its_vector_and_its_row() {
    let mut random = Random::new(8);
    for block in BlockType::ALL {
        let mut bytes = weight_bytes(&mut random, block, 5, 256);
        let row_bytes = bytes.len() / 5;
        bytes[2 * row_bytes..3 * row_bytes].fill(0xff);
        let weights = WeightView::new(block, 5, 256, &bytes).unwrap();
        for isa in Isa::available() {
            for n in [2, 3, 4, 5, 8, 9] {
                let mut xs: Vec<Vec<f32>> = (0..n).map(|_| random.uniform(256, 4.0)).collect();
                xs[1][77] = f32::NAN;
                for (t, y) in together(isa, &weights, 0..5, &xs).iter().enumerate() {
                    let nan: Vec<bool> = y.iter().map(|y| y.is_nan()).collect();
                    let expected = [t == 1, t == 1, true, t == 1, t == 1];
                    assert_eq!(nan, expected, "{block}, vector {t} of {n}, {}", isa.name());
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "rows 1..4 of a matrix of 3 rows")]
fn rows_beyond_the_matrix_are_refused() {
    let weights = WeightView::new(BlockType::F32, 3, 1, &[0; 12]).unwrap();
    one(Isa::detect(), &weights, 1..4, &[1.0], &mut [0.0; 3]);
}

#[test]
#[should_panic(expected = "one element per column")]
fn an_x_of_another_length_is_refused() {
    let weights = WeightView::new(BlockType::F32, 3, 1, &[0; 12]).unwrap();
    one(Isa::detect(), &weights, 0..3, &[1.0; 2], &mut [0.0; 3]);
}

#[test]
#[should_panic(expected = "one element per row of the range")]
fn a_y_of_another_length_is_refused() {
    let weights = WeightView::new(BlockType::F32, 3, 1, &[0; 12]).unwrap();
    one(Isa::detect(), &weights, 0..3, &[1.0], &mut [0.0; 2]);
}
