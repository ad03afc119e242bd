//! Vector lanes: the only code that differs between instruction sets.
//!
//! [`Lanes`] names the operations on `N` f32 lanes that the kernels are written with;
//! [`Portable`], `Avx2` and `Avx512` (with VNNI or without) implement it. A kernel is a [`Kernel`] whose `run` is generic
//! over `Lanes`; [`dispatch`] matches the [`Isa`] once and enters `run` inside a function compiled
//! with the tier's `target_feature`s.
//!
//! Two rules make this fast. Every method here and every function between `Kernel::run` and them
//! is `#[inline(always)]`: what is not inlined into the entry point is compiled without the
//! features and passes vectors through memory. For the same reason kernels use loops, not
//! closures handed to iterator adapters, around lane operations.
//!
//! A value of an x86 lanes type is a proof like [`Isa`]: only [`dispatch`] makes one, so its
//! methods may use the instructions.

pub(crate) mod halves;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::isa::{Isa, Tier};

/// Most lanes of any tier; stack buffers for one vector have this length.
pub(crate) const MAX_LANES: usize = 16;

/// Operations on a vector of [`Lanes::N`] f32 lanes.
///
/// Arithmetic is IEEE f32, round to nearest even, with subnormals. Only [`Lanes::fma`] may differ
/// between tiers (one rounding or two), and [`Lanes::reduce_add`], whose order depends on `N`; the
/// conversions give the same bits on every tier.
pub(crate) trait Lanes: Copy {
    /// `N` f32 lanes.
    type V: Copy;
    /// `N` 32-bit integer lanes.
    type I: Copy;
    /// One truth value per lane.
    type M: Copy;

    /// Lanes in a vector: a power of two, at most [`MAX_LANES`].
    const N: usize;

    /// Most rows of the micro-kernel in [`crate::tile`]: with two vectors per row, the
    /// accumulators, one row of B and one broadcast fill the register file.
    const ROW_TILE: usize;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::V;

    /// The `N` floats at `src`.
    ///
    /// # Safety
    /// `src` is valid for reading `N` f32 (no alignment needed).
    unsafe fn load_ptr(self, src: *const f32) -> Self::V;

    /// Writes the `N` lanes to `dst`.
    ///
    /// # Safety
    /// `dst` is valid for writing `N` f32 (no alignment needed).
    unsafe fn store_ptr(self, v: Self::V, dst: *mut f32);

    /// The first `N` elements of `src`.
    #[inline(always)]
    fn load(self, src: &[f32]) -> Self::V {
        assert!(src.len() >= Self::N);
        // SAFETY: the assertion above.
        unsafe { self.load_ptr(src.as_ptr()) }
    }

    /// Writes the lanes to the first `N` elements of `dst`.
    #[inline(always)]
    fn store(self, v: Self::V, dst: &mut [f32]) {
        assert!(dst.len() >= Self::N);
        // SAFETY: the assertion above.
        unsafe { self.store_ptr(v, dst.as_mut_ptr()) }
    }

    /// The first `min(N, src.len())` elements of `src`, zero in the other lanes.
    #[inline(always)]
    fn load_first(self, src: &[f32]) -> Self::V {
        if src.len() >= Self::N {
            return self.load(src);
        }
        let mut lanes = [0.0; MAX_LANES];
        lanes[..src.len()].copy_from_slice(src);
        self.load(&lanes)
    }

    /// Writes the first `min(N, dst.len())` lanes to `dst`.
    #[inline(always)]
    fn store_first(self, v: Self::V, dst: &mut [f32]) {
        if dst.len() >= Self::N {
            return self.store(v, dst);
        }
        let mut lanes = [0.0; MAX_LANES];
        self.store(v, &mut lanes);
        dst.copy_from_slice(&lanes[..dst.len()]);
    }

    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `if a > b { a } else { b }`: `b` where either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once on the x86 tiers and twice on the portable one.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;

    /// `a < b`, false where either is NaN.
    fn lt(self, a: Self::V, b: Self::V) -> Self::M;
    /// `a <= b`, false where either is NaN.
    fn le(self, a: Self::V, b: Self::V) -> Self::M;
    /// True in the lanes below `n`.
    fn first(self, n: usize) -> Self::M;
    /// `a` where `mask` is true, else `b`; what is in the lanes not chosen has no effect.
    fn select(self, mask: Self::M, a: Self::V, b: Self::V) -> Self::V;

    /// `x` without its sign.
    #[inline(always)]
    fn abs(self, x: Self::V) -> Self::V {
        self.of_bits(self.and(self.to_bits(x), self.splat_i32(i32::MAX)))
    }

    /// Lane 0.
    #[inline(always)]
    fn first_lane(self, v: Self::V) -> f32 {
        let mut lanes = [0.0; MAX_LANES];
        self.store(v, &mut lanes);
        lanes[0]
    }

    /// Sum of the lanes: upper half onto lower half until one is left.
    fn reduce_add(self, v: Self::V) -> f32;
    /// Largest lane; no lane may be NaN.
    fn reduce_max(self, v: Self::V) -> f32;

    /// The `N` integers at `src`.
    ///
    /// # Safety
    /// `src` is valid for reading `N` i32 (no alignment needed).
    unsafe fn load_i32_ptr(self, src: *const i32) -> Self::I;
    /// Every lane as two signed 16-bit halves: `low(a) * low(b) + high(a) * high(b)`, wrapping.
    fn dot_i16(self, a: Self::I, b: Self::I) -> Self::I;
    /// `sum + dot_i16(a, b)`, wrapping.
    #[inline(always)]
    fn add_dot_i16(self, sum: Self::I, a: Self::I, b: Self::I) -> Self::I {
        self.add_i32(sum, self.dot_i16(a, b))
    }

    /// The bits of `v`.
    fn to_bits(self, v: Self::V) -> Self::I;
    /// The floats with bits `i`.
    fn of_bits(self, i: Self::I) -> Self::V;
    /// `x` in every lane.
    fn splat_i32(self, x: i32) -> Self::I;
    /// Wrapping `a + b`.
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// The larger of the signed `a` and `b`.
    fn max_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a & b`.
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a | b`.
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a << bits`, for a constant `bits` below 32.
    fn shl(self, a: Self::I, bits: i32) -> Self::I;
    /// `a >> bits` filling with zeros, for a constant `bits` below 32.
    fn shr(self, a: Self::I, bits: i32) -> Self::I;
    /// Signed integers as floats; exact below 2^24.
    fn to_f32(self, a: Self::I) -> Self::V;

    /// The first `N` bytes of `src`, each zero-extended.
    fn load_u8(self, src: &[u8]) -> Self::I;
    /// The first `N` bytes of `src` as two's complement, each sign-extended.
    fn load_i8(self, src: &[u8]) -> Self::I;
    /// The entries of `table` that the low nibbles of the first `N` bytes of `src` index, and those
    /// that the high nibbles do, each sign-extended.
    fn lookup_nibbles(self, table: &[i8; 16], src: &[u8]) -> (Self::I, Self::I);

    /// The value of one f16 (little-endian), widened exactly, in every lane; NaN gets quiet.
    fn splat_f16(self, half: [u8; 2]) -> Self::V;
    /// The first `N` bf16 of `src` (2 bytes each, little-endian), widened exactly.
    fn load_bf16(self, src: &[u8]) -> Self::V;
    /// The first `N` f16 of `src` (2 bytes each, little-endian), widened exactly; NaN gets quiet.
    fn load_f16(self, src: &[u8]) -> Self::V;
    /// The first `N` pairs of bf16 of `src` (4 bytes each): the first of each pair, the second.
    fn load_bf16_pairs(self, src: &[u8]) -> (Self::V, Self::V);
    /// The first `N` pairs of f16 of `src` (4 bytes each): the first of each pair, the second.
    fn load_f16_pairs(self, src: &[u8]) -> (Self::V, Self::V);
    /// Writes the lanes as `N` bf16 to the first `2 * N` bytes of `dst`, rounded to nearest even;
    /// NaN stays NaN (quiet, payload cut).
    fn store_bf16(self, v: Self::V, dst: &mut [u8]);
    /// Writes the lanes as `N` f16 to the first `2 * N` bytes of `dst`, rounded to nearest even,
    /// from 65,520 up to infinity; NaN stays NaN (quiet, payload cut).
    fn store_f16(self, v: Self::V, dst: &mut [u8]);

    /// Transposes an `N x N` block: `dst[j * dst_stride + i] = src[i * src_stride + j]`.
    fn transpose(self, src: &[f32], src_stride: usize, dst: &mut [f32], dst_stride: usize);
}

/// One kernel call: its arguments, and its code for any lanes.
pub(crate) trait Kernel {
    /// What the call returns.
    type Output;

    /// The kernel. Implementations are `#[inline(always)]`.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// Runs `kernel` with the lanes of `isa`.
#[inline]
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa.tier() {
        Tier::Portable => portable::enter(kernel),
        // SAFETY: an `Isa` of this tier exists only if `isa::cpu_has` found AVX2, FMA and F16C.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 => unsafe { x86::enter_avx2(kernel) },
        // SAFETY: as above, with AVX-512F beside them.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512 => unsafe { x86::enter_avx512(kernel) },
        // SAFETY: as above, with AVX512-VNNI beside them.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512Vnni => unsafe { x86::enter_avx512_vnni(kernel) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("isa::cpu_has grants x86 tiers on x86-64 only"),
    }
}

#[cfg(test)]
mod tests;
