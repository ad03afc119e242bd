//! Lanes as pairs of 16-bit integers, *halves*: what products of integers are written with.
//!
//! A vector of halves has [`HALVES`] of them in element order, the even ones in the lower 16 bits
//! of their lanes. Only tiers of eight lanes have them; the AVX-512 tiers take the AVX2 code, which
//! their CPUs run as well.

use super::{Lanes, portable};
use crate::isa::{Isa, Tier};

/// Halves in a vector.
pub(crate) const HALVES: usize = 16;

/// Operations on the vector of [`HALVES`] 16-bit integers that [`Lanes::I`] is.
pub(crate) trait Halves: Lanes {
    /// The first 16 bytes of `src`, each zero-extended.
    fn load_u8_halves(self, src: &[u8]) -> Self::I;
    /// The first 16 bytes of `src` as two's complement, each sign-extended.
    fn load_i8_halves(self, src: &[u8]) -> Self::I;
    /// All ones in the halves whose bit is clear, bit `j` for half `j`; zero in the others.
    fn halves_where_clear(self, bits: u16) -> Self::I;
    /// Wrapping `a + b` of every half.
    fn add_halves(self, a: Self::I, b: Self::I) -> Self::I;
    /// The floats of `a`, then those of `b`, as integers, rounded to nearest, halves to even. They
    /// are within 16 bits; NaN becomes any integer.
    fn pack_halves(self, a: Self::V, b: Self::V) -> Self::I;

    /// `x` in every half.
    #[inline(always)]
    fn splat_half(self, x: i16) -> Self::I {
        let half = u32::from(x.cast_unsigned());
        self.splat_i32((half << 16 | half).cast_signed())
    }
}

/// A [`super::Kernel`] on halves.
pub(crate) trait HalvesKernel {
    /// What the call returns.
    type Output;

    /// The kernel. Implementations are `#[inline(always)]`.
    fn run<L: Halves>(self, lanes: L) -> Self::Output;
}

/// Runs `kernel` with the halves of `isa`.
#[inline]
pub(crate) fn dispatch_halves<K: HalvesKernel>(isa: Isa, kernel: K) -> K::Output {
    match isa.tier() {
        Tier::Portable => portable::enter_halves(kernel),
        // SAFETY: an `Isa` of these tiers exists only if `isa::cpu_has` found AVX2, FMA and F16C.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 | Tier::Avx512 | Tier::Avx512Vnni => unsafe {
            super::x86::enter_avx2_halves(kernel)
        },
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("isa::cpu_has grants x86 tiers on x86-64 only"),
    }
}

#[cfg(test)]
mod tests;
