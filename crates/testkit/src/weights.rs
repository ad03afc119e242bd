//! Random weight rows in the storage types of model files.
//!
//! Floats, Q8_0 and Q4_1 are normal numbers, encoded. In the other block types every bit pattern of
//! the quantised part is valid, so the bits themselves are drawn and the block scales are set to give
//! the wanted spread: cheaper than an encoder, and it reaches codes that an encoder seldom emits.
//! Block layouts: the `block_*` structs of ggml (`ggml-common.h`).

use std::io::{self, Write};

use half::{bf16, f16};
use tidekv_format::TensorType;

use crate::random::Random;

/// Mean and standard deviation of weights. Only what [`can_encode`] knows can have a mean.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) mean: f32,
    pub(crate) std: f32,
}

/// Seeded weights, `rows` x `cols`.
#[derive(Debug, Clone)]
pub(crate) struct SeededRows {
    /// Name of the tensor, which picks the random stream.
    pub(crate) name: String,
    pub(crate) seed: u64,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) ty: TensorType,
    pub(crate) spread: Spread,
}

impl SeededRows {
    /// Writes the encoded rows one by one.
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut random = Random::named(self.seed, &self.name);
        let (mut row, mut encoded) = (vec![0f32; self.cols], Vec::new());
        for _ in 0..self.rows {
            encoded.clear();
            if can_encode(self.ty) {
                row.fill_with(|| random.normal() * self.spread.std + self.spread.mean);
                encode_row(self.ty, &row, &mut encoded);
            } else {
                random_blocks(self.ty, self.cols, self.spread.std, &mut random, &mut encoded);
            }
            out.write_all(&encoded)?;
        }
        Ok(())
    }
}

/// Whether [`encode_row`] knows the type.
pub fn can_encode(ty: TensorType) -> bool {
    matches!(
        ty,
        TensorType::F32 | TensorType::F16 | TensorType::BF16 | TensorType::Q8_0 | TensorType::Q4_1
    )
}

/// Appends `row` in the storage type `ty`, rounded to nearest.
///
/// # Panics
///
/// If [`can_encode`] says no, or the row is not a whole number of blocks.
pub fn encode_row(ty: TensorType, row: &[f32], out: &mut Vec<u8>) {
    assert!(
        ty.row_bytes(row.len() as u64).is_some(),
        "rows of {} cannot be stored as {ty}",
        row.len()
    );
    match ty {
        TensorType::F32 => out.extend(row.iter().flat_map(|x| x.to_le_bytes())),
        TensorType::F16 => out.extend(row.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes())),
        TensorType::BF16 => out.extend(row.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes())),
        TensorType::Q8_0 => row.as_chunks().0.iter().for_each(|block| encode_q8_0(block, out)),
        TensorType::Q4_1 => row.as_chunks().0.iter().for_each(|block| encode_q4_1(block, out)),
        _ => panic!("no encoder for {ty}"),
    }
}

/// A scale `d` as f16, then 32 signed bytes: x = d q.
fn encode_q8_0(block: &[f32; 32], out: &mut Vec<u8>) {
    let largest = block.iter().fold(0f32, |m, x| m.max(x.abs()));
    let d = f16::from_f32(largest / 127.0);
    out.extend(d.to_le_bytes());
    // Against the stored scale, so that its rounding is not added to that of the codes.
    out.extend(block.map(|x| code(x, d).clamp(-127.0, 127.0) as i8 as u8));
}

/// A scale `d` and a minimum `m` as f16, then 32 nibbles: x = d q + m. Byte i holds element i in its
/// low and element i + 16 in its high half.
fn encode_q4_1(block: &[f32; 32], out: &mut Vec<u8>) {
    let (low, high) =
        block.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), &x| (l.min(x), h.max(x)));
    let (d, m) = (f16::from_f32((high - low) / 15.0), f16::from_f32(low));
    out.extend(d.to_le_bytes());
    out.extend(m.to_le_bytes());
    let nibble = |x: f32| code(x - m.to_f32(), d).clamp(0.0, 15.0) as u8;
    out.extend((0..16).map(|i| nibble(block[i]) | nibble(block[i + 16]) << 4));
}

/// The code nearest to `x` for the scale `d`; 0 for a block of zeros.
fn code(x: f32, d: f16) -> f32 {
    let d = d.to_f32();
    if d == 0.0 { 0.0 } else { (x / d).round() }
}

/// Where a block type keeps its f16 scales and what uniformly drawn codes make of them.
struct Scales {
    d_at: usize,
    /// Place of the second scale, and its value as a multiple of `d` that centres the weights on 0.
    min: Option<(usize, f32)>,
    /// Standard deviation of the weights for d = 1.
    std: f32,
}

/// The standard deviations follow from independent uniform codes. A 4-bit q has mean 7.5 and mean
/// square 77.5; a 6-bit sub-block scale s 31.5 and 1333.5. For Q4_K, x = d s q - dmin s' and
/// dmin = 7.5 d: variance (1333.5 * 77.5 - (31.5 * 7.5)^2) + 7.5^2 (1333.5 - 31.5^2) = 66728.
/// The others likewise, each from its own formula.
fn scales(ty: TensorType) -> Scales {
    match ty {
        TensorType::Q4_0 => Scales { d_at: 0, min: None, std: 4.64 }, // d (q - 8), q < 16
        TensorType::Q5_0 => Scales { d_at: 0, min: None, std: 9.25 }, // d (q - 16), q < 32
        TensorType::Q5_1 => Scales { d_at: 0, min: Some((2, -15.5)), std: 9.23 }, // d q + m, q < 32
        TensorType::Q2_K => Scales { d_at: 80, min: Some((82, 1.5)), std: 13.9 }, // d s q - dmin s', s < 16, q < 4
        TensorType::Q3_K => Scales { d_at: 108, min: None, std: 43.3 }, // d (s - 32) (q - 4), s < 64, q < 8
        TensorType::Q4_K => Scales { d_at: 0, min: Some((2, 7.5)), std: 258.0 },
        TensorType::Q5_K => Scales { d_at: 0, min: Some((2, 15.5)), std: 527.0 }, // as Q4_K, q < 32
        TensorType::Q6_K => Scales { d_at: 208, min: None, std: 1366.0 }, // d s (q - 32), s an i8, q < 64
        _ => panic!("no random blocks for {ty}"),
    }
}

/// Appends `n` weights as blocks of random codes. Block scales vary by a factor of up to 3, as in real
/// files, around the one that gives `std`.
fn random_blocks(ty: TensorType, n: usize, std: f32, random: &mut Random, out: &mut Vec<u8>) {
    let row_bytes =
        ty.row_bytes(n as u64).unwrap_or_else(|| panic!("rows of {n} cannot be stored as {ty}"));
    let block_bytes = ty.block_bytes().expect("a type with row bytes has block bytes") as usize;
    let scales = scales(ty);
    for _ in 0..row_bytes as usize / block_bytes {
        let start = out.len();
        let words = std::iter::repeat_with(|| random.next_u64().to_le_bytes());
        out.extend(words.flatten().take(block_bytes));
        // Uniform in [0.5, 1.5) has mean square 13/12.
        let spread = (random.uniform() + 0.5) / (13f32 / 12.0).sqrt();
        let d = spread * std / scales.std;
        let mut put = |at: usize, scale: f32| {
            out[start + at..start + at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        };
        put(scales.d_at, d);
        if let Some((at, ratio)) = scales.min {
            put(at, d * ratio);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normals(n: usize) -> Vec<f32> {
        let mut random = Random::new(5);
        (0..n).map(|_| random.normal()).collect()
    }

    fn half_at(bytes: &[u8], at: usize) -> f32 {
        f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
    }

    #[test]
    fn q8_0_is_within_half_a_step() {
        let row = normals(320);
        let mut bytes = Vec::new();
        encode_row(TensorType::Q8_0, &row, &mut bytes);
        assert_eq!(bytes.len(), 340);
        for (block, encoded) in row.chunks(32).zip(bytes.chunks(34)) {
            let d = half_at(encoded, 0);
            let largest = block.iter().fold(0f32, |m, x| m.max(x.abs()));
            // The stored scale may be 2^-11 too small, which the largest value feels 127-fold.
            let bound = 0.5 * d + largest / 2048.0;
            for (x, &q) in block.iter().zip(&encoded[2..]) {
                assert!(
                    (x - d * f32::from(q as i8)).abs() <= bound,
                    "{x} as {} steps of {d}",
                    q as i8
                );
            }
        }
    }

    #[test]
    fn q4_1_is_within_half_a_step() {
        let row = normals(320);
        let mut bytes = Vec::new();
        encode_row(TensorType::Q4_1, &row, &mut bytes);
        assert_eq!(bytes.len(), 200);
        for (block, encoded) in row.chunks(32).zip(bytes.chunks(20)) {
            let (d, m) = (half_at(encoded, 0), half_at(encoded, 2));
            // The stored scale may be 2^-11 too small, which the largest value feels 15-fold, and
            // the stored minimum too large by 2^-11 of itself.
            let bound = 0.5 * d + (15.0 * d + m.abs()) / 2048.0;
            for (i, x) in block.iter().enumerate() {
                let q = if i < 16 { encoded[4 + i] & 15 } else { encoded[4 + i - 16] >> 4 };
                assert!(
                    (x - (d * f32::from(q) + m)).abs() <= bound,
                    "{x} as {q} steps of {d} from {m}"
                );
            }
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        for ty in
            [TensorType::F32, TensorType::F16, TensorType::BF16, TensorType::Q8_0, TensorType::Q4_1]
        {
            let mut bytes = Vec::new();
            encode_row(ty, &[0.0; 64], &mut bytes);
            assert!(bytes.iter().all(|&b| b == 0), "{ty}");
        }
    }

    #[test]
    fn floats_are_rounded_to_nearest() {
        let mut bytes = Vec::new();
        encode_row(TensorType::BF16, &[1.0 + 1.5 / 256.0], &mut bytes);
        assert_eq!(bytes, bf16::from_f32(1.0 + 1.0 / 128.0).to_le_bytes());
    }

    #[test]
    fn random_blocks_have_finite_small_scales() {
        use TensorType::*;
        for ty in [Q4_0, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K] {
            let mut bytes = Vec::new();
            random_blocks(ty, 2048, 0.1, &mut Random::new(1), &mut bytes);
            assert_eq!(bytes.len() as u64, ty.row_bytes(2048).unwrap());
            let scales = scales(ty);
            for block in bytes.chunks(ty.block_bytes().unwrap() as usize) {
                let d = half_at(block, scales.d_at);
                assert!((0.4..1.6).contains(&(d * scales.std / 0.1)), "{ty}: {d}");
                if let Some((at, ratio)) = scales.min {
                    // Two roundings to f16, of which small scales are subnormal.
                    assert!((half_at(block, at) / (d * ratio) - 1.0).abs() < 0.01, "{ty}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "rows of 40 cannot be stored as Q8_0")]
    fn broken_blocks_are_a_contract_violation() {
        encode_row(TensorType::Q8_0, &[0.0; 40], &mut Vec::new());
    }

    #[test]
    #[should_panic(expected = "no encoder for Q4_K")]
    fn an_unknown_encoder_is_a_contract_violation() {
        encode_row(TensorType::Q4_K, &[0.0; 256], &mut Vec::new());
    }
}
