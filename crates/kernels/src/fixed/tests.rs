use super::*;
use crate::test_data::{Random, bits};

/// A row in fixed point with integers up to `q`, as the module describes it.
pub(crate) fn fixed_row(row: &[f32], q: f32) -> Vec<f32> {
    let mut fixed = Vec::new();
    for block in row.chunks(BLOCK) {
        let largest = block.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let (scale, inverse) =
            if largest < ZERO_BELOW { (0.0, 0.0) } else { (largest * (1.0 / q), q / largest) };
        let half = block.len().div_ceil(2);
        let integer =
            |x: Option<&f32>| x.map_or(0, |x| (x * inverse).round_ties_even() as i32 as i16 as u16);
        fixed.push(scale);
        fixed.extend((0..half).map(|i| {
            let (low, high) = (integer(block.get(i)), integer(block.get(i + half)));
            f32::from_bits(u32::from(low) | u32::from(high) << 16)
        }));
    }
    fixed
}

/// Lengths around the edges of blocks, and the halves of odd ones.
const LENGTHS: [usize; 12] = [2, 3, 7, 33, 63, 64, 65, 66, 127, 128, 129, 1024 + 31];

#[test]
fn rows_become_their_fixed_point_form_in_place_and_alone() {
    for isa in Isa::available() {
        for k in LENGTHS {
            let (rows, stride) = (3, k + 2);
            let data = Random::new(k as u64).uniform(rows * stride, 3.0);
            let mut fixed = data.clone();
            fix_rows(isa, &mut fixed, stride, k);
            for r in 0..rows {
                let row = &data[r * stride..][..k];
                let want = fixed_row(row, 8191.0);
                assert_eq!(want.len(), row_len(k));
                let got = &fixed[r * stride..][..want.len()];
                assert_eq!(bits(got), bits(&want), "{} k {k} row {r}", isa.name());
                let mut alone = row.to_vec();
                fix_rows(isa, &mut alone, k, k);
                assert_eq!(bits(&alone[..want.len()]), bits(&want), "{} k {k}", isa.name());
                // Nothing is written behind the form.
                let behind = r * stride + want.len()..(r + 1) * stride;
                assert_eq!(bits(&fixed[behind.clone()]), bits(&data[behind]), "{k}");
            }
        }
    }
}

#[test]
fn the_last_row_may_end_where_its_elements_do() {
    for isa in Isa::available() {
        let mut data = vec![1.0; 70 + 66];
        fix_rows(isa, &mut data, 70, 66);
        assert_eq!(data[70], 1.0f32 / 8191.0, "{}", isa.name());
        let short = std::panic::catch_unwind(|| fix_rows(isa, &mut [1.0; 70 + 65], 70, 66));
        assert!(
            short.is_err()
                && std::panic::catch_unwind(|| {
                    fix_rows(isa, &mut [1.0; 4], 1, 1);
                })
                .is_err()
        );
    }
}

#[test]
fn zeros_and_what_counts_as_zero_have_no_scale() {
    for isa in Isa::available() {
        for tiny in [0.0, -0.0, 1e-45, 7.8e-31] {
            let mut row = [tiny; 64];
            fix_rows(isa, &mut row, 64, 64);
            assert_eq!(row[..33], [0.0; 33], "{} {tiny}", isa.name());
        }
        let mut row = [7.9e-31; 64];
        fix_rows(isa, &mut row, 64, 64);
        assert!(row[0] > 0.0, "{}", isa.name());
        // The largest finite number has a scale and a reciprocal.
        let mut row = [f32::MAX; 64];
        fix_rows(isa, &mut row, 64, 64);
        assert_eq!(bits(&row[..33]), bits(&fixed_row(&[f32::MAX; 64], 8191.0)), "{}", isa.name());
    }
}

#[test]
fn a_block_fits_in_32_bits() {
    let most = BLOCK as i64 * Q_ROWS as i64 * Q_WEIGHTS as i64;
    assert!(most <= i64::from(i32::MAX) && 2 * most > i64::from(i32::MAX));
}
