//! Eight lanes in a 256-bit register: AVX2, FMA and F16C.

use std::arch::x86_64::*;

use super::registers;
use crate::lanes::Lanes;

/// The lanes of `Tier::Avx2`; holding one proves that the CPU has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

const N: usize = 8;

impl Avx2 {
    /// The token.
    ///
    /// # Safety
    /// The CPU has AVX2, FMA and F16C.
    #[inline(always)]
    pub(super) unsafe fn new_unchecked() -> Avx2 {
        Avx2(())
    }

    /// The lower 16 bits of every lane, then the upper ones, as eight 16-bit values each.
    #[inline(always)]
    fn split_pairs(self, pairs: __m256i) -> (__m128i, __m128i) {
        registers!({
            let low = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff));
            let high = _mm256_srli_epi32::<16>(pairs);
            // packus works inside 128-bit halves: low 0-3, high 0-3 | low 4-7, high 4-7.
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
            (_mm256_castsi256_si128(packed), _mm256_extracti128_si256::<1>(packed))
        })
    }
}

impl Lanes for Avx2 {
    type V = __m256;
    type I = __m256i;
    type M = __m256;

    const N: usize = N;
    // 6 rows x 2 vectors + 2 of B + 1 broadcast = 15 of 16 registers.
    const ROW_TILE: usize = 6;

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        registers!(_mm256_set1_ps(x))
    }

    #[inline(always)]
    unsafe fn load_ptr(self, src: *const f32) -> __m256 {
        // SAFETY: `src` is valid for 8 floats by the caller's contract.
        unsafe { _mm256_loadu_ps(src) }
    }

    #[inline(always)]
    unsafe fn store_ptr(self, v: __m256, dst: *mut f32) {
        // SAFETY: `dst` is valid for 8 floats by the caller's contract.
        unsafe { _mm256_storeu_ps(dst, v) }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        registers!(_mm256_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        registers!(_mm256_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        registers!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        registers!(_mm256_div_ps(a, b))
    }

    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        registers!(_mm256_max_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        registers!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn lt(self, a: __m256, b: __m256) -> __m256 {
        registers!(_mm256_cmp_ps::<_CMP_LT_OQ>(a, b))
    }

    #[inline(always)]
    fn le(self, a: __m256, b: __m256) -> __m256 {
        registers!(_mm256_cmp_ps::<_CMP_LE_OQ>(a, b))
    }

    #[inline(always)]
    fn first(self, n: usize) -> __m256 {
        let n = n.min(N) as i32;
        registers!({
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane))
        })
    }

    #[inline(always)]
    fn select(self, mask: __m256, a: __m256, b: __m256) -> __m256 {
        registers!(_mm256_blendv_ps(b, a, mask))
    }

    #[inline(always)]
    fn reduce_add(self, v: __m256) -> f32 {
        registers!({
            let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }

    #[inline(always)]
    fn reduce_max(self, v: __m256) -> f32 {
        registers!({
            let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }

    #[inline(always)]
    fn to_bits(self, v: __m256) -> __m256i {
        registers!(_mm256_castps_si256(v))
    }

    #[inline(always)]
    fn of_bits(self, i: __m256i) -> __m256 {
        registers!(_mm256_castsi256_ps(i))
    }

    #[inline(always)]
    fn splat_i32(self, x: i32) -> __m256i {
        registers!(_mm256_set1_epi32(x))
    }

    #[inline(always)]
    fn add_i32(self, a: __m256i, b: __m256i) -> __m256i {
        registers!(_mm256_add_epi32(a, b))
    }

    #[inline(always)]
    fn max_i32(self, a: __m256i, b: __m256i) -> __m256i {
        registers!(_mm256_max_epi32(a, b))
    }

    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        registers!(_mm256_and_si256(a, b))
    }

    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        registers!(_mm256_or_si256(a, b))
    }

    #[inline(always)]
    fn shl(self, a: __m256i, bits: i32) -> __m256i {
        registers!(_mm256_sll_epi32(a, _mm_cvtsi32_si128(bits)))
    }

    #[inline(always)]
    fn shr(self, a: __m256i, bits: i32) -> __m256i {
        registers!(_mm256_srl_epi32(a, _mm_cvtsi32_si128(bits)))
    }

    #[inline(always)]
    fn to_f32(self, a: __m256i) -> __m256 {
        registers!(_mm256_cvtepi32_ps(a))
    }

    #[inline(always)]
    unsafe fn load_i32_ptr(self, src: *const i32) -> __m256i {
        // SAFETY: `src` is valid for 8 integers by the caller's contract.
        unsafe { _mm256_loadu_si256(src.cast()) }
    }

    #[inline(always)]
    fn dot_i16(self, a: __m256i, b: __m256i) -> __m256i {
        registers!(_mm256_madd_epi16(a, b))
    }

    #[inline(always)]
    fn load_u8(self, src: &[u8]) -> __m256i {
        assert!(src.len() >= N);
        // SAFETY: 8 readable bytes by the assertion; the token proves the instructions.
        unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(src.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_i8(self, src: &[u8]) -> __m256i {
        assert!(src.len() >= N);
        // SAFETY: 8 readable bytes by the assertion; the token proves the instructions.
        unsafe { _mm256_cvtepi8_epi32(_mm_loadl_epi64(src.as_ptr().cast())) }
    }

    #[inline(always)]
    fn lookup_nibbles(self, table: &[i8; 16], src: &[u8]) -> (__m256i, __m256i) {
        assert!(src.len() >= N);
        // SAFETY: 8 readable bytes by the assertion, 16 by the table's type; the token proves the
        // instructions.
        let (table, bytes) = unsafe {
            (_mm_loadu_si128(table.as_ptr().cast()), _mm_loadl_epi64(src.as_ptr().cast()))
        };
        registers!({
            let nibble = _mm_set1_epi8(15);
            let low = _mm_and_si128(bytes, nibble);
            let high = _mm_and_si128(_mm_srli_epi16::<4>(bytes), nibble);
            (
                _mm256_cvtepi8_epi32(_mm_shuffle_epi8(table, low)),
                _mm256_cvtepi8_epi32(_mm_shuffle_epi8(table, high)),
            )
        })
    }

    #[inline(always)]
    fn splat_f16(self, half: [u8; 2]) -> __m256 {
        registers!(_mm256_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes(half))))
    }

    #[inline(always)]
    fn load_bf16(self, src: &[u8]) -> __m256 {
        assert!(src.len() >= 2 * N);
        // SAFETY: 16 readable bytes by the assertion; the token proves the instructions.
        unsafe {
            let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(src.as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
        }
    }

    #[inline(always)]
    fn load_f16(self, src: &[u8]) -> __m256 {
        assert!(src.len() >= 2 * N);
        // SAFETY: 16 readable bytes by the assertion; the token proves the instructions.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(src.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_bf16_pairs(self, src: &[u8]) -> (__m256, __m256) {
        assert!(src.len() >= 4 * N);
        // SAFETY: 32 readable bytes by the assertion; the token proves the instructions.
        unsafe {
            let pairs = _mm256_loadu_si256(src.as_ptr().cast());
            let second = _mm256_and_si256(pairs, _mm256_set1_epi32(-0x1_0000));
            let first = _mm256_slli_epi32::<16>(pairs);
            (_mm256_castsi256_ps(first), _mm256_castsi256_ps(second))
        }
    }

    #[inline(always)]
    fn load_f16_pairs(self, src: &[u8]) -> (__m256, __m256) {
        assert!(src.len() >= 4 * N);
        // SAFETY: 32 readable bytes by the assertion; the token proves the instructions.
        let pairs = unsafe { _mm256_loadu_si256(src.as_ptr().cast()) };
        let (first, second) = self.split_pairs(pairs);
        registers!((_mm256_cvtph_ps(first), _mm256_cvtph_ps(second)))
    }

    #[inline(always)]
    fn store_bf16(self, v: __m256, dst: &mut [u8]) {
        assert!(dst.len() >= 2 * N);
        let halves = registers!({
            // Adding just under half a unit, and one more where the kept part is odd, carries into
            // the kept part exactly when rounding to nearest even goes up.
            let bits = _mm256_castps_si256(v);
            let high = _mm256_srli_epi32::<16>(bits);
            let odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
            let up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
            let rounded = _mm256_srli_epi32::<16>(up);
            let quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
            let wide = _mm256_blendv_epi8(rounded, quiet, nan);
            let packed = _mm256_packus_epi32(wide, wide);
            _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b11_01_10_00>(packed))
        });
        // SAFETY: 16 writable bytes by the assertion; the token proves the instruction.
        unsafe { _mm_storeu_si128(dst.as_mut_ptr().cast(), halves) }
    }

    #[inline(always)]
    fn store_f16(self, v: __m256, dst: &mut [u8]) {
        assert!(dst.len() >= 2 * N);
        let halves = registers!(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
        // SAFETY: 16 writable bytes by the assertion; the token proves the instruction.
        unsafe { _mm_storeu_si128(dst.as_mut_ptr().cast(), halves) }
    }

    #[inline(always)]
    fn transpose(self, src: &[f32], src_stride: usize, dst: &mut [f32], dst_stride: usize) {
        assert!(src.len() >= (N - 1) * src_stride + N);
        assert!(dst.len() >= (N - 1) * dst_stride + N);
        let mut row = [registers!(_mm256_setzero_ps()); N];
        for (i, row) in row.iter_mut().enumerate() {
            // SAFETY: row `i` ends at `i * src_stride + N`, inside `src` by the assertion.
            *row = unsafe { _mm256_loadu_ps(src.as_ptr().add(i * src_stride)) };
        }
        let column = registers!({
            // Pairs of rows interleaved, then quadruples, then the 128-bit halves exchanged.
            let [a, b, c, d, e, f, g, h] = row;
            let (ab0, ab1) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (cd0, cd1) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            let (ef0, ef1) = (_mm256_unpacklo_ps(e, f), _mm256_unpackhi_ps(e, f));
            let (gh0, gh1) = (_mm256_unpacklo_ps(g, h), _mm256_unpackhi_ps(g, h));
            const LOW: i32 = 0b01_00_01_00;
            const HIGH: i32 = 0b11_10_11_10;
            let (ad0, ad1) =
                (_mm256_shuffle_ps::<LOW>(ab0, cd0), _mm256_shuffle_ps::<HIGH>(ab0, cd0));
            let (ad2, ad3) =
                (_mm256_shuffle_ps::<LOW>(ab1, cd1), _mm256_shuffle_ps::<HIGH>(ab1, cd1));
            let (eh0, eh1) =
                (_mm256_shuffle_ps::<LOW>(ef0, gh0), _mm256_shuffle_ps::<HIGH>(ef0, gh0));
            let (eh2, eh3) =
                (_mm256_shuffle_ps::<LOW>(ef1, gh1), _mm256_shuffle_ps::<HIGH>(ef1, gh1));
            [
                _mm256_permute2f128_ps::<0x20>(ad0, eh0),
                _mm256_permute2f128_ps::<0x20>(ad1, eh1),
                _mm256_permute2f128_ps::<0x20>(ad2, eh2),
                _mm256_permute2f128_ps::<0x20>(ad3, eh3),
                _mm256_permute2f128_ps::<0x31>(ad0, eh0),
                _mm256_permute2f128_ps::<0x31>(ad1, eh1),
                _mm256_permute2f128_ps::<0x31>(ad2, eh2),
                _mm256_permute2f128_ps::<0x31>(ad3, eh3),
            ]
        });
        for (j, column) in column.into_iter().enumerate() {
            // SAFETY: column `j` ends at `j * dst_stride + N`, inside `dst` by the assertion.
            unsafe { _mm256_storeu_ps(dst.as_mut_ptr().add(j * dst_stride), column) }
        }
    }
}
