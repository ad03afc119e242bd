//! Block-quantised weights: block types, decoding and the view of a weight matrix.
//!
//! The layouts and the decoding formulas are those of GGML (`ggml-quants.c`, `dequantize_row_*`),
//! so that GGUF tensors are used as they lie in the file. `MXFP4` alone departs from GGML's
//! decoder, for a NaN scale, which that takes for a number.
//!
//! Each format has one file with its layout and one decoder, written over vector lanes. It hands
//! vectors of weights to a sink: [`dequantize`] stores them, [`matvec`](crate::matvec) multiplies
//! them at once. In every format at most one operation per element rounds, so the values are the
//! same bits on every tier, with or without FMA.

mod bit_word;
pub(crate) mod float;
pub(crate) mod ints;
pub(crate) mod iq4_nl;
pub(crate) mod iq4_xs;
pub(crate) mod mxfp4;
mod nibble_table;
pub(crate) mod q2_k;
pub(crate) mod q3_k;
pub(crate) mod q4_0;
pub(crate) mod q4_1;
pub(crate) mod q4_k;
pub(crate) mod q5_0;
pub(crate) mod q5_1;
pub(crate) mod q5_k;
pub(crate) mod q6_k;
pub(crate) mod q8_0;
pub(crate) mod q8_1;
pub(crate) mod q8_k;
pub(crate) mod runs;
mod view;

use std::fmt;

pub use view::{RowOrder, WeightError, WeightView};

use crate::isa::Isa;
use crate::lanes::{Kernel, Lanes, dispatch};
use float::FloatFormat;

/// Storage type of a weight matrix, with GGML's names and byte layouts.
///
/// A row of a matrix is a whole number of blocks; the float types are blocks of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockType {
    /// IEEE 754 binary32, little-endian.
    F32,
    /// IEEE 754 binary16, little-endian.
    F16,
    /// bfloat16, little-endian.
    BF16,
    /// 32 elements of 4 bits, scale: 4.5 bits per weight.
    Q4_0,
    /// 32 elements of 4 bits, scale and minimum: 5.0 bits per weight.
    Q4_1,
    /// 32 elements of 5 bits, scale: 5.5 bits per weight.
    Q5_0,
    /// 32 elements of 5 bits, scale and minimum: 6.0 bits per weight.
    Q5_1,
    /// 32 elements of 8 bits, scale: 8.5 bits per weight.
    Q8_0,
    /// 32 elements of 8 bits, scale and a sum: 9.0 bits per weight.
    Q8_1,
    /// 256 elements of 2 bits, sixteen packed scales and minima: 2.625 bits per weight.
    Q2K,
    /// 256 elements of 3 bits, sixteen packed scales: 3.4375 bits per weight.
    Q3K,
    /// 256 elements of 4 bits, eight packed scales and minima: 4.5 bits per weight.
    Q4K,
    /// 256 elements of 5 bits, eight packed scales and minima: 5.5 bits per weight.
    Q5K,
    /// 256 elements of 6 bits, sixteen scales: 6.5625 bits per weight.
    Q6K,
    /// 256 elements of 8 bits, binary32 scale and sums: 9.125 bits per weight.
    Q8K,
    /// 32 elements of 4 bits, codes of uneven values, scale: 4.5 bits per weight.
    IQ4NL,
    /// 256 elements of 4 bits, codes of uneven values, eight packed scales: 4.25 bits per weight.
    IQ4XS,
    /// 32 floats of 4 bits, scale a power of two: 4.25 bits per weight.
    MXFP4,
}

impl BlockType {
    /// Every block type, in declaration order.
    pub const ALL: [Self; 18] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q8_1,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Q8K,
        Self::IQ4NL,
        Self::IQ4XS,
        Self::MXFP4,
    ];

    /// Elements of one block.
    #[must_use]
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 => q4_0::LEN,
            Self::Q4_1 => q4_1::LEN,
            Self::Q5_0 => q5_0::LEN,
            Self::Q5_1 => q5_1::LEN,
            Self::Q8_0 => q8_0::LEN,
            Self::Q8_1 => q8_1::LEN,
            Self::Q2K => q2_k::LEN,
            Self::Q3K => q3_k::LEN,
            Self::Q4K => q4_k::LEN,
            Self::Q5K => q5_k::LEN,
            Self::Q6K => q6_k::LEN,
            Self::Q8K => q8_k::LEN,
            Self::IQ4NL => iq4_nl::LEN,
            Self::IQ4XS => iq4_xs::LEN,
            Self::MXFP4 => mxfp4::LEN,
        }
    }

    /// Bytes of one block.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => float::F32::BYTES,
            Self::F16 => float::F16::BYTES,
            Self::BF16 => float::BF16::BYTES,
            Self::Q4_0 => q4_0::BYTES,
            Self::Q4_1 => q4_1::BYTES,
            Self::Q5_0 => q5_0::BYTES,
            Self::Q5_1 => q5_1::BYTES,
            Self::Q8_0 => q8_0::BYTES,
            Self::Q8_1 => q8_1::BYTES,
            Self::Q2K => q2_k::BYTES,
            Self::Q3K => q3_k::BYTES,
            Self::Q4K => q4_k::BYTES,
            Self::Q5K => q5_k::BYTES,
            Self::Q6K => q6_k::BYTES,
            Self::Q8K => q8_k::BYTES,
            Self::IQ4NL => iq4_nl::BYTES,
            Self::IQ4XS => iq4_xs::BYTES,
            Self::MXFP4 => mxfp4::BYTES,
        }
    }

    /// Bytes of a row of `cols` elements; `None` if `cols` is not a whole number of blocks or the
    /// product overflows.
    #[must_use]
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// GGML's name of the type, as in GGUF listings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q8_1 => "Q8_1",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Q8K => "Q8_K",
            Self::IQ4NL => "IQ4_NL",
            Self::IQ4XS => "IQ4_XS",
            Self::MXFP4 => "MXFP4",
        }
    }
}

impl fmt::Display for BlockType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The longest block of any type, in elements: every block length divides it, so buffers of this
/// length hold whole blocks of every type.
pub(crate) const MAX_BLOCK_LEN: usize = 256;
const _: () = {
    let mut at = 0;
    while at < BlockType::ALL.len() {
        assert!(MAX_BLOCK_LEN.is_multiple_of(BlockType::ALL[at].block_len()));
        at += 1;
    }
};

/// Decodes whole blocks to f32: `bytes` is `[blocks * block_bytes]`, `out` is
/// `[blocks * block_len]`.
///
/// The values are bit-equal to GGML's reference decoders on every tier (a NaN scale gives NaN, of
/// unspecified payload, for `MXFP4` too).
///
/// # Panics
/// If `out` is not a whole number of blocks or `bytes` has another number of blocks than `out`.
pub fn dequantize(isa: Isa, block: BlockType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        Some(bytes.len()),
        block.row_bytes(out.len()),
        "{} bytes of {block} do not decode to {} elements",
        bytes.len(),
        out.len()
    );
    dispatch(isa, Dequantize { block, bytes, out });
}

struct Dequantize<'a> {
    block: BlockType,
    bytes: &'a [u8],
    out: &'a mut [f32],
}

impl Kernel for Dequantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        decode(lanes, self.block, self.bytes, self.out);
    }
}

/// The body of [`dequantize`], for kernels that decode on the way; the numbers of blocks agree.
#[inline(always)]
pub(crate) fn decode<L: Lanes>(lanes: L, block: BlockType, bytes: &[u8], out: &mut [f32]) {
    match block {
        BlockType::F32 => float::decode::<float::F32, L>(lanes, bytes, out),
        BlockType::F16 => float::decode::<float::F16, L>(lanes, bytes, out),
        BlockType::BF16 => float::decode::<float::BF16, L>(lanes, bytes, out),
        BlockType::Q4_0 => runs::decode::<q4_0::Q4_0, L, _, _>(lanes, bytes, out),
        BlockType::Q4_1 => runs::decode::<q4_1::Q4_1, L, _, _>(lanes, bytes, out),
        BlockType::Q5_0 => runs::decode::<q5_0::Q5_0, L, _, _>(lanes, bytes, out),
        BlockType::Q5_1 => runs::decode::<q5_1::Q5_1, L, _, _>(lanes, bytes, out),
        BlockType::Q8_0 => runs::decode::<q8_0::Q8_0, L, _, _>(lanes, bytes, out),
        BlockType::Q8_1 => runs::decode::<q8_1::Q8_1, L, _, _>(lanes, bytes, out),
        BlockType::Q2K => runs::decode::<q2_k::Q2K, L, _, _>(lanes, bytes, out),
        BlockType::Q3K => runs::decode::<q3_k::Q3K, L, _, _>(lanes, bytes, out),
        BlockType::Q4K => runs::decode::<q4_k::Q4K, L, _, _>(lanes, bytes, out),
        BlockType::Q5K => runs::decode::<q5_k::Q5K, L, _, _>(lanes, bytes, out),
        BlockType::Q6K => runs::decode::<q6_k::Q6K, L, _, _>(lanes, bytes, out),
        BlockType::Q8K => runs::decode::<q8_k::Q8K, L, _, _>(lanes, bytes, out),
        BlockType::IQ4NL => runs::decode::<iq4_nl::IQ4NL, L, _, _>(lanes, bytes, out),
        BlockType::IQ4XS => runs::decode::<iq4_xs::IQ4XS, L, _, _>(lanes, bytes, out),
        BlockType::MXFP4 => runs::decode::<mxfp4::MXFP4, L, _, _>(lanes, bytes, out),
    }
}
