//! Sixteen 16-bit integers in a 256-bit register.

use std::arch::x86_64::*;

use super::avx2::Avx2;
use super::registers;
use crate::lanes::halves::{HALVES, Halves};

impl Halves for Avx2 {
    #[inline(always)]
    fn load_u8_halves(self, src: &[u8]) -> __m256i {
        assert!(src.len() >= HALVES);
        // SAFETY: 16 readable bytes by the assertion; the token proves the instructions.
        unsafe { _mm256_cvtepu8_epi16(_mm_loadu_si128(src.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_i8_halves(self, src: &[u8]) -> __m256i {
        assert!(src.len() >= HALVES);
        // SAFETY: 16 readable bytes by the assertion; the token proves the instructions.
        unsafe { _mm256_cvtepi8_epi16(_mm_loadu_si128(src.as_ptr().cast())) }
    }

    #[inline(always)]
    fn halves_where_clear(self, bits: u16) -> __m256i {
        registers!({
            let own = _mm256_setr_epi16(
                1,
                1 << 1,
                1 << 2,
                1 << 3,
                1 << 4,
                1 << 5,
                1 << 6,
                1 << 7,
                1 << 8,
                1 << 9,
                1 << 10,
                1 << 11,
                1 << 12,
                1 << 13,
                1 << 14,
                i16::MIN,
            );
            let bits = _mm256_set1_epi16(bits.cast_signed());
            _mm256_cmpeq_epi16(_mm256_and_si256(bits, own), _mm256_setzero_si256())
        })
    }

    #[inline(always)]
    fn add_halves(self, a: __m256i, b: __m256i) -> __m256i {
        registers!(_mm256_add_epi16(a, b))
    }

    #[inline(always)]
    fn pack_halves(self, a: __m256, b: __m256) -> __m256i {
        registers!({
            // packs works inside 128-bit halves: a 0-3, b 0-3 | a 4-7, b 4-7.
            let packed = _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
            _mm256_permute4x64_epi64::<0b11_01_10_00>(packed)
        })
    }
}
