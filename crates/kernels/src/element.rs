//! The storage types of K/V and of the hidden-state bridge, and their conversions to and from f32.
//!
//! Conversions give the same bits on every tier. Stored values are little-endian.

use crate::isa::Isa;
use crate::lanes::{Kernel, Lanes, dispatch};

/// Storage type of one element of K, V or the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// The upper half of an f32: 8 exponent bits, 7 mantissa bits.
    Bf16,
    /// IEEE binary16: 5 exponent bits, 10 mantissa bits.
    F16,
    /// IEEE binary32.
    F32,
}

impl Element {
    /// Size of one element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Element::Bf16 | Element::F16 => 2,
            Element::F32 => 4,
        }
    }
}

/// Rounds `src` `[n]` to `element` and writes it to `dst`, `n * element.bytes()` bytes.
///
/// Rounding is to nearest even; values beyond the type's range become infinite, NaN stays NaN.
///
/// # Panics
/// If `dst` has another length.
pub fn store(isa: Isa, element: Element, src: &[f32], dst: &mut [u8]) {
    assert_eq!(dst.len(), src.len() * element.bytes(), "bytes for {} {element:?}", src.len());
    dispatch(isa, Store { element, src, dst });
}

/// Widens the elements in `src`, `n * element.bytes()` bytes, to `dst` `[n]`, exactly.
///
/// # Panics
/// If `src` has another length.
pub fn load(isa: Isa, element: Element, src: &[u8], dst: &mut [f32]) {
    assert_eq!(src.len(), dst.len() * element.bytes(), "bytes for {} {element:?}", dst.len());
    dispatch(isa, Load { element, src, dst });
}

/// Whether no element of `values` is infinite or NaN.
pub fn all_finite(isa: Isa, values: &[f32]) -> bool {
    dispatch(isa, AllFinite(values))
}

struct Store<'a> {
    element: Element,
    src: &'a [f32],
    dst: &'a mut [u8],
}

impl Kernel for Store<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Store { element, src, dst } = self;
        if element == Element::F32 {
            for (bytes, x) in dst.chunks_exact_mut(4).zip(src) {
                bytes.copy_from_slice(&x.to_le_bytes());
            }
            return;
        }
        let mut dst_vectors = dst.chunks_exact_mut(2 * L::N);
        let mut src_vectors = src.chunks_exact(L::N);
        for (bytes, x) in dst_vectors.by_ref().zip(src_vectors.by_ref()) {
            let v = lanes.load(x);
            match element {
                Element::Bf16 => lanes.store_bf16(v, bytes),
                _ => lanes.store_f16(v, bytes),
            }
        }
        let tail = dst_vectors.into_remainder().chunks_exact_mut(2);
        for (bytes, &x) in tail.zip(src_vectors.remainder()) {
            let half = match element {
                Element::Bf16 => f32_to_bf16(x),
                _ => f32_to_f16(x),
            };
            bytes.copy_from_slice(&half.to_le_bytes());
        }
    }
}

struct Load<'a> {
    element: Element,
    src: &'a [u8],
    dst: &'a mut [f32],
}

impl Kernel for Load<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Load { element, src, dst } = self;
        if element == Element::F32 {
            for (x, bytes) in dst.iter_mut().zip(src.chunks_exact(4)) {
                *x = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
            return;
        }
        let mut dst_vectors = dst.chunks_exact_mut(L::N);
        let mut src_vectors = src.chunks_exact(2 * L::N);
        for (x, bytes) in dst_vectors.by_ref().zip(src_vectors.by_ref()) {
            let v = match element {
                Element::Bf16 => lanes.load_bf16(bytes),
                _ => lanes.load_f16(bytes),
            };
            lanes.store(v, x);
        }
        let tail = src_vectors.remainder().chunks_exact(2);
        for (x, bytes) in dst_vectors.into_remainder().iter_mut().zip(tail) {
            let half = u16::from_le_bytes([bytes[0], bytes[1]]);
            *x = match element {
                Element::Bf16 => bf16_to_f32(half),
                _ => f16_to_f32(half),
            };
        }
    }
}

struct AllFinite<'a>(&'a [f32]);

impl Kernel for AllFinite<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) -> bool {
        const EXPONENT: u32 = 0x7f80_0000;
        // Without an early exit the loop becomes vector code; blocks bound what is read in vain.
        for block in self.0.chunks(1024) {
            let mut finite = true;
            for x in block {
                finite &= x.to_bits() & EXPONENT != EXPONENT;
            }
            if !finite {
                return false;
            }
        }
        true
    }
}

/// The f32 with the value of a bf16.
#[inline(always)]
pub(crate) fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// The bf16 nearest to `x`, ties to even; NaN stays NaN, made quiet with its payload cut.
#[inline(always)]
pub(crate) fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let high = bits >> 16;
    let half = if x.is_nan() { high | 0x40 } else { (bits + 0x7fff + (high & 1)) >> 16 };
    half as u16
}

/// The f32 with the value of an f16; NaN gets quiet, as the F16C instruction has it.
///
/// Without branches and without arithmetic on f32 subnormals: the scales of quantised weights are
/// often subnormal in f16, a branch on that would be mispredicted, and several CPUs take 100 cycles
/// for a subnormal operand.
#[inline(always)]
pub(crate) fn f16_to_f32(half: u16) -> f32 {
    /// Difference of the exponent biases (127 - 15), in place.
    const REBIAS: u32 = 112 << 23;
    /// 2^-14: with the ten bits of a subnormal as its mantissa, it exceeds itself by the
    /// subnormal's value.
    const SMALLEST_NORMAL: u32 = 113 << 23;
    const EXPONENT: u32 = 0x7f80_0000;
    const QUIET: u32 = 0x0040_0000;

    let half = u32::from(half);
    let sign = (half & 0x8000) << 16;
    let magnitude = half & 0x7fff;
    let shifted = magnitude << 13;

    let normal = shifted + REBIAS;
    let above = f32::from_bits(shifted + SMALLEST_NORMAL);
    let subnormal = (above - f32::from_bits(SMALLEST_NORMAL)).to_bits();
    let finite = if magnitude < 0x0400 { subnormal } else { normal };
    let quiet = if magnitude > 0x7c00 { QUIET } else { 0 };
    let non_finite = shifted | EXPONENT | quiet;
    f32::from_bits(sign | if magnitude < 0x7c00 { finite } else { non_finite })
}

/// The f16 nearest to `x`, ties to even; NaN stays NaN, made quiet with its payload cut.
#[inline(always)]
pub(crate) fn f32_to_f16(x: f32) -> u16 {
    /// Smallest f32 that rounds to infinity: 65,520.
    const OVERFLOW: u32 = 0x477f_f000;
    /// Smallest normal f16 as f32: 2^-14.
    const NORMAL: u32 = 0x3880_0000;
    let sign = (x.to_bits() >> 16) & 0x8000;
    let magnitude = x.to_bits() & 0x7fff_ffff;
    let half = if x.is_nan() {
        0x7e00 | (magnitude >> 13 & 0x3ff)
    } else if magnitude >= OVERFLOW {
        0x7c00
    } else if magnitude < NORMAL {
        // A unit of 0.5 is 2^-24, the unit of the subnormal f16: the addition rounds to it.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits()
    } else {
        let rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
        (rounded - (112 << 23)) >> 13
    };
    (sign | half) as u16
}

#[cfg(test)]
mod tests;
