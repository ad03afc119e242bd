//! The decoders against independent implementations of the same block formats: candle's, and for
//! the types that candle does not know the scalar code of `published`, written from their
//! specifications and itself compared with values of GGML's Python package and computed by hand.
//!
//! Blocks are random bytes, so every quant, packed scale and high bit takes every value; the scales
//! of the block are set apart, to ordinary values and to each extreme. Equality is of bits, for
//! every tier of this CPU: no format has more than one operation per element that rounds, so
//! nothing is left to tolerate.

use std::borrow::Cow;

use candle_core::Device;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use tidekv_kernels::Isa;
use tidekv_kernels::quant::{BlockType, dequantize};

#[path = "quant_oracle/published.rs"]
mod published;

/// Binary16 bit patterns of scales: zeros, least and greatest subnormal, least normal, one,
/// greatest, with signs.
const EXTREME_SCALES: [u16; 12] = [
    0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x83ff, 0x0400, 0x8400, 0x3c00, 0xbc00, 0x7bff, 0xfbff,
];
/// Infinity and NaN, quiet and signalling.
const NON_FINITE_SCALES: [u16; 5] = [0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xffff];

#[test]
fn random_blocks_decode_to_the_oracles_bits() {
    let mut random = Random(1);
    for block in BlockType::ALL {
        let mut bytes = random.bytes(400 * 256 / block.block_len() * block.block_bytes());
        // A scale of weights in practice: 2^-15 (subnormal) up to 1, either sign.
        set_scales(block, &mut bytes, || {
            random.below(0x3c00) as u16 | (random.below(2) as u16) << 15
        });
        check(block, &bytes);
    }
}

#[test]
fn every_binary16_and_bfloat16_decodes_to_the_oracles_bits() {
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    check(BlockType::F16, &bytes);
    check(BlockType::BF16, &bytes);
}

#[test]
fn every_scale_of_mxfp4_decodes_to_the_oracles_bits() {
    // Every scale with every code in every place.
    for shift in 0..16u8 {
        let bytes: Vec<u8> = (0..=u8::MAX)
            .flat_map(|scale| {
                let nibbles = (0..16u8).map(|j| (j + shift) % 16 + 16 * ((j * 7 + shift) % 16));
                std::iter::once(scale).chain(nibbles).collect::<Vec<u8>>()
            })
            .collect();
        check(BlockType::MXFP4, &bytes);
    }
}

#[test]
fn extreme_binary32_scales_of_q8_k_decode_to_the_oracles_bits() {
    let mut random = Random(5);
    let edges = [f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::NAN, 0.0].map(f32::to_bits);
    // The least and the greatest subnormal, one that the product makes normal, a signalling NaN.
    let patterns = edges.into_iter().chain([1, 0x007f_ffff, 0x0012_3456, 0x7f80_0001]);
    for pattern in patterns.chain((0..200).map(|_| random.next() as u32).collect::<Vec<u32>>()) {
        for sign in [0, 1 << 31] {
            let mut bytes = random.bytes(BlockType::Q8K.block_bytes());
            bytes[..4].copy_from_slice(&(pattern ^ sign).to_le_bytes());
            check(BlockType::Q8K, &bytes);
        }
    }
}

#[test]
fn extreme_scales_decode_to_the_oracles_bits() {
    let mut random = Random(2);
    for block in BlockType::ALL {
        for first in EXTREME_SCALES.into_iter().chain(NON_FINITE_SCALES) {
            for second in EXTREME_SCALES.into_iter().chain(NON_FINITE_SCALES) {
                let mut bytes = random.bytes(block.block_bytes() * 256 / block.block_len());
                let mut turn = [first, second].into_iter().cycle();
                set_scales(block, &mut bytes, || turn.next().unwrap());
                check(block, &bytes);
            }
        }
    }
}

#[test]
fn every_number_of_blocks_and_every_alignment_decodes_alike() {
    let mut random = Random(3);
    for block in BlockType::ALL {
        // Float types: below, at and above one vector of 8 or 16 lanes.
        for blocks in (0..=35).chain([64, 65]) {
            let mut bytes = random.bytes(blocks * block.block_bytes());
            set_scales(block, &mut bytes, || random.below(0x3c00) as u16);
            let expected = oracle(block, &bytes);
            for offset in 0..4 {
                let mut shifted = vec![0xff; offset];
                shifted.extend(&bytes);
                for isa in Isa::available() {
                    let actual = decode(isa, block, &shifted[offset..]);
                    let same = same_values(&actual, &expected);
                    assert_eq!(
                        same,
                        Ok(()),
                        "{block}, {blocks} blocks at offset {offset}, {}",
                        isa.name()
                    );
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "33 bytes of Q8_0 do not decode to 32 elements")]
fn a_cut_block_is_refused() {
    dequantize(Isa::detect(), BlockType::Q8_0, &[0; 33], &mut [0.0; 32]);
}

#[test]
#[should_panic(expected = "34 bytes of Q8_0 do not decode to 31 elements")]
fn a_cut_output_is_refused() {
    dequantize(Isa::detect(), BlockType::Q8_0, &[0; 34], &mut [0.0; 31]);
}

#[test]
fn the_comparison_fails_on_any_other_bit() {
    assert_eq!(same_values(&[1.0, f32::NAN, -0.0], &[1.0, -f32::NAN, -0.0]), Ok(()));
    assert!(same_values(&[1.0], &[f32::from_bits(1.0f32.to_bits() + 1)]).is_err());
    assert!(same_values(&[0.0], &[-0.0]).is_err());
    assert!(same_values(&[f32::NAN], &[f32::INFINITY]).is_err());
    assert!(same_values(&[1.0], &[1.0, 2.0]).is_err());
}

#[test]
fn the_oracle_sees_every_byte_of_a_block() {
    // Were a byte without effect on the oracle, no test here could find a decoder that misreads it.
    let mut random = Random(4);
    for block in BlockType::ALL {
        // Sums for dot products, which are no part of the weights.
        let sums = match block {
            BlockType::Q8_1 => 2..4,
            BlockType::Q8K => 260..292,
            _ => 0..0,
        };
        let mut bytes = random.bytes(block.block_bytes());
        set_scales(block, &mut bytes, || 0x3c01);
        let before = oracle(block, &bytes);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x11;
            let seen = same_values(&oracle(block, &changed), &before).is_err();
            assert_eq!(seen, !sums.contains(&at), "{block}, byte {at}");
        }
    }
}

/// Decodes `bytes` with the oracle and on every tier, and compares bits.
fn check(block: BlockType, bytes: &[u8]) {
    let expected = oracle(block, bytes);
    for isa in Isa::available() {
        let same = same_values(&decode(isa, block, bytes), &expected);
        assert_eq!(same, Ok(()), "{block}, {}", isa.name());
    }
}

fn decode(isa: Isa, block: BlockType, bytes: &[u8]) -> Vec<f32> {
    // NaN, so that an element not written is seen.
    let mut out = vec![f32::NAN; bytes.len() / block.block_bytes() * block.block_len()];
    dequantize(isa, block, bytes, &mut out);
    out
}

/// What the independent implementation decodes `bytes` to.
fn oracle(block: BlockType, bytes: &[u8]) -> Vec<f32> {
    let dtype = match block {
        BlockType::F32 => GgmlDType::F32,
        BlockType::F16 => GgmlDType::F16,
        BlockType::BF16 => GgmlDType::BF16,
        BlockType::Q4_0 => GgmlDType::Q4_0,
        BlockType::Q4_1 => GgmlDType::Q4_1,
        BlockType::Q5_0 => GgmlDType::Q5_0,
        BlockType::Q5_1 => GgmlDType::Q5_1,
        BlockType::Q8_0 => GgmlDType::Q8_0,
        BlockType::Q8_1 => GgmlDType::Q8_1,
        BlockType::Q2K => GgmlDType::Q2K,
        BlockType::Q3K => GgmlDType::Q3K,
        BlockType::Q4K => GgmlDType::Q4K,
        BlockType::Q5K => GgmlDType::Q5K,
        BlockType::Q6K => GgmlDType::Q6K,
        BlockType::Q8K => GgmlDType::Q8K,
        BlockType::IQ4NL => return published::iq4_nl(bytes),
        BlockType::IQ4XS => return published::iq4_xs(bytes),
        BlockType::MXFP4 => return published::mxfp4(bytes),
    };
    candle(block, dtype, bytes)
}

/// What candle decodes `bytes` to.
#[expect(
    clippy::unwrap_used,
    reason = "test code; clippy's exemption covers only #[test] functions"
)]
fn candle(block: BlockType, dtype: GgmlDType, bytes: &[u8]) -> Vec<f32> {
    if bytes.is_empty() {
        return Vec::new();
    }
    let len = bytes.len() / block.block_bytes() * block.block_len();
    let storage = QStorage::from_data(Cow::Owned(bytes.to_vec()), &Device::Cpu, dtype).unwrap();
    let tensor = QTensor::new(storage, len).unwrap().dequantize(&Device::Cpu).unwrap();
    tensor.to_vec1().unwrap()
}

/// `Ok` if the values have the same bits; NaN equals NaN, whose payload the formats leave open.
fn same_values(actual: &[f32], expected: &[f32]) -> Result<(), String> {
    if actual.len() != expected.len() {
        return Err(format!("{} values, expected {}", actual.len(), expected.len()));
    }
    for (at, (a, e)) in actual.iter().zip(expected).enumerate() {
        if a.to_bits() != e.to_bits() && !(a.is_nan() && e.is_nan()) {
            return Err(format!("element {at} is {a:?}, expected {e:?}"));
        }
    }
    Ok(())
}

/// Overwrites the scales of every block with the binary16 values of `next`, widened to binary32
/// where they are that, and the exponent of `MXFP4` with the lower byte; the float types keep their
/// random bits.
fn set_scales(block: BlockType, bytes: &mut [u8], mut next: impl FnMut() -> u16) {
    let places: &[usize] = match block {
        BlockType::F32 | BlockType::F16 | BlockType::BF16 => &[],
        BlockType::Q4_0 | BlockType::Q5_0 | BlockType::Q8_0 => &[0],
        BlockType::Q8_1 | BlockType::Q8K => &[0],
        BlockType::IQ4NL | BlockType::IQ4XS | BlockType::MXFP4 => &[0],
        BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4K | BlockType::Q5K => &[0, 2],
        BlockType::Q2K => &[80, 82],
        BlockType::Q3K => &[108],
        BlockType::Q6K => &[208],
    };
    for bytes in bytes.chunks_exact_mut(block.block_bytes()) {
        for &at in places {
            let scale = next();
            match block {
                BlockType::Q8K => {
                    let wide = half::f16::from_bits(scale).to_f32();
                    bytes[at..at + 4].copy_from_slice(&wide.to_le_bytes());
                }
                BlockType::MXFP4 => bytes[at] = scale as u8,
                _ => bytes[at..at + 2].copy_from_slice(&scale.to_le_bytes()),
            }
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// An integer in `0..bound`; `bound` is far below 2^64, so the bias does not matter.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}
