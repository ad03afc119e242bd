//! Sixteen lanes in a 512-bit register: AVX-512F alone (no BW, DQ or VL instruction), beside AVX2
//! for what works on halves; with `VNNI` products of 16-bit integers as AVX512-VNNI adds them up.

use std::arch::x86_64::*;

use super::{Avx2, registers};
use crate::lanes::Lanes;

/// The lanes of `Tier::Avx512` and, with `VNNI`, of `Tier::Avx512Vnni`; holding one proves that the
/// CPU has AVX-512F, AVX2, FMA and F16C, and with `VNNI` AVX512-VNNI too.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const VNNI: bool>(());

const N: usize = 16;

impl<const VNNI: bool> Avx512<VNNI> {
    /// The token.
    ///
    /// # Safety
    /// The CPU has AVX-512F, AVX2, FMA and F16C, and AVX512-VNNI if `VNNI`.
    #[inline(always)]
    pub(super) unsafe fn new_unchecked() -> Self {
        Avx512(())
    }

    /// The lanes of the half width, which this token proves too.
    #[inline(always)]
    fn avx2(self) -> Avx2 {
        // SAFETY: the contract of `Avx512::new_unchecked` includes that of `Avx2`.
        unsafe { Avx2::new_unchecked() }
    }

    /// Lanes 0-7 and lanes 8-15.
    #[inline(always)]
    fn halves(self, v: __m512) -> (__m256, __m256) {
        registers!({
            let high = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v));
            (_mm512_castps512_ps256(v), _mm256_castpd_ps(high))
        })
    }
}

impl<const VNNI: bool> Lanes for Avx512<VNNI> {
    type V = __m512;
    type I = __m512i;
    type M = __mmask16;

    const N: usize = N;
    // 14 rows x 2 vectors + 2 of B + 1 broadcast = 31 of 32 registers.
    const ROW_TILE: usize = 14;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        registers!(_mm512_set1_ps(x))
    }

    #[inline(always)]
    unsafe fn load_ptr(self, src: *const f32) -> __m512 {
        // SAFETY: `src` is valid for 16 floats by the caller's contract.
        unsafe { _mm512_loadu_ps(src) }
    }

    #[inline(always)]
    unsafe fn store_ptr(self, v: __m512, dst: *mut f32) {
        // SAFETY: `dst` is valid for 16 floats by the caller's contract.
        unsafe { _mm512_storeu_ps(dst, v) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        registers!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        registers!(_mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        registers!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        registers!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        registers!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        registers!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn lt(self, a: __m512, b: __m512) -> __mmask16 {
        registers!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b))
    }

    #[inline(always)]
    fn le(self, a: __m512, b: __m512) -> __mmask16 {
        registers!(_mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, b))
    }

    #[inline(always)]
    fn first(self, n: usize) -> __mmask16 {
        ((1u32 << n.min(N)) - 1) as __mmask16
    }

    #[inline(always)]
    fn select(self, mask: __mmask16, a: __m512, b: __m512) -> __m512 {
        // The blend takes its second vector where the mask is set.
        registers!(_mm512_mask_blend_ps(mask, b, a))
    }

    #[inline(always)]
    fn reduce_add(self, v: __m512) -> f32 {
        let (low, high) = self.halves(v);
        self.avx2().reduce_add(registers!(_mm256_add_ps(low, high)))
    }

    #[inline(always)]
    fn reduce_max(self, v: __m512) -> f32 {
        let (low, high) = self.halves(v);
        self.avx2().reduce_max(registers!(_mm256_max_ps(low, high)))
    }

    #[inline(always)]
    fn to_bits(self, v: __m512) -> __m512i {
        registers!(_mm512_castps_si512(v))
    }

    #[inline(always)]
    fn of_bits(self, i: __m512i) -> __m512 {
        registers!(_mm512_castsi512_ps(i))
    }

    #[inline(always)]
    fn splat_i32(self, x: i32) -> __m512i {
        registers!(_mm512_set1_epi32(x))
    }

    #[inline(always)]
    fn add_i32(self, a: __m512i, b: __m512i) -> __m512i {
        registers!(_mm512_add_epi32(a, b))
    }

    #[inline(always)]
    fn max_i32(self, a: __m512i, b: __m512i) -> __m512i {
        registers!(_mm512_max_epi32(a, b))
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        registers!(_mm512_and_si512(a, b))
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        registers!(_mm512_or_si512(a, b))
    }

    #[inline(always)]
    fn shl(self, a: __m512i, bits: i32) -> __m512i {
        registers!(_mm512_sll_epi32(a, _mm_cvtsi32_si128(bits)))
    }

    #[inline(always)]
    fn shr(self, a: __m512i, bits: i32) -> __m512i {
        registers!(_mm512_srl_epi32(a, _mm_cvtsi32_si128(bits)))
    }

    #[inline(always)]
    fn to_f32(self, a: __m512i) -> __m512 {
        registers!(_mm512_cvtepi32_ps(a))
    }

    #[inline(always)]
    unsafe fn load_i32_ptr(self, src: *const i32) -> __m512i {
        // SAFETY: `src` is valid for 16 integers by the caller's contract.
        unsafe { _mm512_loadu_si512(src.cast()) }
    }

    #[inline(always)]
    fn dot_i16(self, a: __m512i, b: __m512i) -> __m512i {
        // The 512-bit form belongs to AVX-512BW; the halves need AVX2 only.
        registers!({
            let half = |x| (_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64::<1>(x));
            let ((a0, a1), (b0, b1)) = (half(a), half(b));
            let low = _mm512_castsi256_si512(_mm256_madd_epi16(a0, b0));
            _mm512_inserti64x4::<1>(low, _mm256_madd_epi16(a1, b1))
        })
    }

    #[inline(always)]
    fn add_dot_i16(self, sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        match VNNI {
            true => registers!(_mm512_dpwssd_epi32(sum, a, b)),
            false => self.add_i32(sum, self.dot_i16(a, b)),
        }
    }

    #[inline(always)]
    fn load_u8(self, src: &[u8]) -> __m512i {
        assert!(src.len() >= N);
        // SAFETY: 16 readable bytes by the assertion; the token proves the instructions.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(src.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_i8(self, src: &[u8]) -> __m512i {
        assert!(src.len() >= N);
        // SAFETY: 16 readable bytes by the assertion; the token proves the instructions.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(src.as_ptr().cast())) }
    }

    #[inline(always)]
    fn lookup_nibbles(self, table: &[i8; 16], src: &[u8]) -> (__m512i, __m512i) {
        assert!(src.len() >= N);
        // SAFETY: 16 readable bytes by the assertion and by the table's type; the token proves the
        // instructions.
        let (table, bytes) = unsafe {
            (_mm_loadu_si128(table.as_ptr().cast()), _mm_loadu_si128(src.as_ptr().cast()))
        };
        registers!({
            let nibble = _mm_set1_epi8(15);
            let low = _mm_and_si128(bytes, nibble);
            let high = _mm_and_si128(_mm_srli_epi16::<4>(bytes), nibble);
            (
                _mm512_cvtepi8_epi32(_mm_shuffle_epi8(table, low)),
                _mm512_cvtepi8_epi32(_mm_shuffle_epi8(table, high)),
            )
        })
    }

    #[inline(always)]
    fn splat_f16(self, half: [u8; 2]) -> __m512 {
        registers!(_mm512_cvtph_ps(_mm256_set1_epi16(i16::from_le_bytes(half))))
    }

    #[inline(always)]
    fn load_bf16(self, src: &[u8]) -> __m512 {
        assert!(src.len() >= 2 * N);
        // SAFETY: 32 readable bytes by the assertion; the token proves the instructions.
        unsafe {
            let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(src.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
        }
    }

    #[inline(always)]
    fn load_f16(self, src: &[u8]) -> __m512 {
        assert!(src.len() >= 2 * N);
        // SAFETY: 32 readable bytes by the assertion; the token proves the instructions.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(src.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_bf16_pairs(self, src: &[u8]) -> (__m512, __m512) {
        assert!(src.len() >= 4 * N);
        // SAFETY: 64 readable bytes by the assertion; the token proves the instructions.
        unsafe {
            let pairs = _mm512_loadu_si512(src.as_ptr().cast());
            let second = _mm512_and_si512(pairs, _mm512_set1_epi32(-0x1_0000));
            let first = _mm512_slli_epi32::<16>(pairs);
            (_mm512_castsi512_ps(first), _mm512_castsi512_ps(second))
        }
    }

    #[inline(always)]
    fn load_f16_pairs(self, src: &[u8]) -> (__m512, __m512) {
        assert!(src.len() >= 4 * N);
        // SAFETY: 64 readable bytes by the assertion; the token proves the instructions.
        unsafe {
            let pairs = _mm512_loadu_si512(src.as_ptr().cast());
            let first = _mm512_cvtepi32_epi16(pairs);
            let second = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(pairs));
            (_mm512_cvtph_ps(first), _mm512_cvtph_ps(second))
        }
    }

    #[inline(always)]
    fn store_bf16(self, v: __m512, dst: &mut [u8]) {
        assert!(dst.len() >= 2 * N);
        let halves = registers!({
            // Rounding as in `Avx2::store_bf16`.
            let bits = _mm512_castps_si512(v);
            let high = _mm512_srli_epi32::<16>(bits);
            let odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
            let up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
            let rounded = _mm512_srli_epi32::<16>(up);
            let quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
            _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quiet))
        });
        // SAFETY: 32 writable bytes by the assertion; the token proves the instruction.
        unsafe { _mm256_storeu_si256(dst.as_mut_ptr().cast(), halves) }
    }

    #[inline(always)]
    fn store_f16(self, v: __m512, dst: &mut [u8]) {
        assert!(dst.len() >= 2 * N);
        let halves = registers!(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
        // SAFETY: 32 writable bytes by the assertion; the token proves the instruction.
        unsafe { _mm256_storeu_si256(dst.as_mut_ptr().cast(), halves) }
    }

    #[inline(always)]
    fn transpose(self, src: &[f32], src_stride: usize, dst: &mut [f32], dst_stride: usize) {
        let half = N / 2;
        for (i, j) in [(0, 0), (0, half), (half, 0), (half, half)] {
            let from = &src[i * src_stride + j..];
            let to = &mut dst[j * dst_stride + i..];
            self.avx2().transpose(from, src_stride, to, dst_stride);
        }
    }
}
