//! Eight lanes in an array: plain Rust that LLVM vectorises for any target.

use super::halves::{HALVES, Halves, HalvesKernel};
use super::{Kernel, Lanes};
use crate::element::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// The lanes of `Tier::Portable`. `fma` multiplies and adds with two roundings: `f32::mul_add`
/// would call the C library where the target has no FMA.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

const N: usize = 8;

/// Entry point of the portable tier.
#[inline(never)]
pub(super) fn enter<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Portable)
}

/// [`enter`] for kernels on halves.
#[inline(never)]
pub(super) fn enter_halves<K: HalvesKernel>(kernel: K) -> K::Output {
    kernel.run(Portable)
}

/// `out[i] = f(a[i], b[i])`.
#[inline(always)]
fn zip<A: Copy, B: Copy, T: Copy + Default>(a: [A; N], b: [B; N], f: impl Fn(A, B) -> T) -> [T; N] {
    let mut out = [T::default(); N];
    for i in 0..N {
        out[i] = f(a[i], b[i]);
    }
    out
}

/// `out[i] = f(a[i])`.
#[inline(always)]
fn map<A: Copy, T: Copy + Default>(a: [A; N], f: impl Fn(A) -> T) -> [T; N] {
    let mut out = [T::default(); N];
    for i in 0..N {
        out[i] = f(a[i]);
    }
    out
}

/// The `N` 16-bit values at the start of every `stride` bytes of `src`.
#[inline(always)]
fn halves(src: &[u8], stride: usize) -> [u16; N] {
    let src = &src[..stride * (N - 1) + 2];
    let mut out = [0; N];
    for i in 0..N {
        out[i] = u16::from_le_bytes([src[stride * i], src[stride * i + 1]]);
    }
    out
}

/// Writes 16-bit values to the first `2 * N` bytes of `dst`.
#[inline(always)]
fn store_halves(halves: [u16; N], dst: &mut [u8]) {
    let dst = &mut dst[..2 * N];
    for i in 0..N {
        dst[2 * i..2 * i + 2].copy_from_slice(&halves[i].to_le_bytes());
    }
}

impl Lanes for Portable {
    type V = [f32; N];
    type I = [i32; N];
    type M = [bool; N];

    const N: usize = N;
    const ROW_TILE: usize = 2;

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; N] {
        [x; N]
    }

    #[inline(always)]
    unsafe fn load_ptr(self, src: *const f32) -> [f32; N] {
        // SAFETY: `src` is valid for `N` floats by the caller's contract.
        unsafe { src.cast::<[f32; N]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_ptr(self, v: [f32; N], dst: *mut f32) {
        // SAFETY: `dst` is valid for `N` floats by the caller's contract.
        unsafe { dst.cast::<[f32; N]>().write_unaligned(v) }
    }

    #[inline(always)]
    fn add(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn max(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn fma(self, a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] {
        let mut out = c;
        for i in 0..N {
            out[i] += a[i] * b[i];
        }
        out
    }

    #[inline(always)]
    fn lt(self, a: [f32; N], b: [f32; N]) -> [bool; N] {
        zip(a, b, |a, b| a < b)
    }

    #[inline(always)]
    fn le(self, a: [f32; N], b: [f32; N]) -> [bool; N] {
        zip(a, b, |a, b| a <= b)
    }

    #[inline(always)]
    fn first(self, n: usize) -> [bool; N] {
        let mut out = [false; N];
        for (i, lane) in out.iter_mut().enumerate() {
            *lane = i < n;
        }
        out
    }

    #[inline(always)]
    fn select(self, mask: [bool; N], a: [f32; N], b: [f32; N]) -> [f32; N] {
        let mut out = b;
        for i in 0..N {
            out[i] = if mask[i] { a[i] } else { b[i] };
        }
        out
    }

    #[inline(always)]
    fn reduce_add(self, v: [f32; N]) -> f32 {
        let [a, b, c, d, e, f, g, h] = v;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }

    #[inline(always)]
    fn reduce_max(self, v: [f32; N]) -> f32 {
        let mut largest = v[0];
        for x in v {
            largest = if x > largest { x } else { largest };
        }
        largest
    }

    #[inline(always)]
    fn to_bits(self, v: [f32; N]) -> [i32; N] {
        map(v, |x| x.to_bits().cast_signed())
    }

    #[inline(always)]
    fn of_bits(self, i: [i32; N]) -> [f32; N] {
        map(i, |x| f32::from_bits(x.cast_unsigned()))
    }

    #[inline(always)]
    fn splat_i32(self, x: i32) -> [i32; N] {
        [x; N]
    }

    #[inline(always)]
    fn add_i32(self, a: [i32; N], b: [i32; N]) -> [i32; N] {
        zip(a, b, |a, b| a.wrapping_add(b))
    }

    #[inline(always)]
    fn max_i32(self, a: [i32; N], b: [i32; N]) -> [i32; N] {
        zip(a, b, |a, b| a.max(b))
    }

    #[inline(always)]
    fn and(self, a: [i32; N], b: [i32; N]) -> [i32; N] {
        zip(a, b, |a, b| a & b)
    }

    #[inline(always)]
    fn or(self, a: [i32; N], b: [i32; N]) -> [i32; N] {
        zip(a, b, |a, b| a | b)
    }

    #[inline(always)]
    fn shl(self, a: [i32; N], bits: i32) -> [i32; N] {
        map(a, |a| a << bits)
    }

    #[inline(always)]
    fn shr(self, a: [i32; N], bits: i32) -> [i32; N] {
        map(a, |a| (a.cast_unsigned() >> bits).cast_signed())
    }

    #[inline(always)]
    fn to_f32(self, a: [i32; N]) -> [f32; N] {
        map(a, |a| a as f32)
    }

    #[inline(always)]
    unsafe fn load_i32_ptr(self, src: *const i32) -> [i32; N] {
        // SAFETY: `src` is valid for `N` integers by the caller's contract.
        unsafe { src.cast::<[i32; N]>().read_unaligned() }
    }

    #[inline(always)]
    fn dot_i16(self, a: [i32; N], b: [i32; N]) -> [i32; N] {
        let half = |x: i32| (i32::from(x as i16), x >> 16);
        zip(a, b, |a, b| {
            let ((a0, a1), (b0, b1)) = (half(a), half(b));
            (a0 * b0).wrapping_add(a1 * b1)
        })
    }

    #[inline(always)]
    fn load_u8(self, src: &[u8]) -> [i32; N] {
        let src = &src[..N];
        let mut out = [0; N];
        for i in 0..N {
            out[i] = i32::from(src[i]);
        }
        out
    }

    #[inline(always)]
    fn load_i8(self, src: &[u8]) -> [i32; N] {
        let src = &src[..N];
        let mut out = [0; N];
        for i in 0..N {
            out[i] = i32::from(src[i].cast_signed());
        }
        out
    }

    #[inline(always)]
    fn lookup_nibbles(self, table: &[i8; 16], src: &[u8]) -> ([i32; N], [i32; N]) {
        let bytes = self.load_u8(src);
        let low = map(bytes, |byte| i32::from(table[(byte & 15) as usize]));
        let high = map(bytes, |byte| i32::from(table[(byte >> 4) as usize]));
        (low, high)
    }

    #[inline(always)]
    fn splat_f16(self, half: [u8; 2]) -> [f32; N] {
        [f16_to_f32(u16::from_le_bytes(half)); N]
    }

    #[inline(always)]
    fn load_bf16(self, src: &[u8]) -> [f32; N] {
        map(halves(src, 2), bf16_to_f32)
    }

    #[inline(always)]
    fn load_f16(self, src: &[u8]) -> [f32; N] {
        map(halves(src, 2), f16_to_f32)
    }

    #[inline(always)]
    fn load_bf16_pairs(self, src: &[u8]) -> ([f32; N], [f32; N]) {
        let (first, second) = (halves(src, 4), halves(&src[2..], 4));
        (map(first, bf16_to_f32), map(second, bf16_to_f32))
    }

    #[inline(always)]
    fn load_f16_pairs(self, src: &[u8]) -> ([f32; N], [f32; N]) {
        let (first, second) = (halves(src, 4), halves(&src[2..], 4));
        (map(first, f16_to_f32), map(second, f16_to_f32))
    }

    #[inline(always)]
    fn store_bf16(self, v: [f32; N], dst: &mut [u8]) {
        store_halves(map(v, f32_to_bf16), dst);
    }

    #[inline(always)]
    fn store_f16(self, v: [f32; N], dst: &mut [u8]) {
        store_halves(map(v, f32_to_f16), dst);
    }

    #[inline(always)]
    fn transpose(self, src: &[f32], src_stride: usize, dst: &mut [f32], dst_stride: usize) {
        for i in 0..N {
            let row = &src[i * src_stride..][..N];
            for (j, &x) in row.iter().enumerate() {
                dst[j * dst_stride + i] = x;
            }
        }
    }
}

/// Two neighbours in one lane.
#[inline(always)]
fn join_halves(halves: [i16; HALVES]) -> [i32; N] {
    let mut out = [0; N];
    for i in 0..N {
        let [low, high] = [halves[2 * i], halves[2 * i + 1]].map(i16::cast_unsigned);
        out[i] = (u32::from(high) << 16 | u32::from(low)).cast_signed();
    }
    out
}

impl Halves for Portable {
    #[inline(always)]
    fn load_u8_halves(self, src: &[u8]) -> [i32; N] {
        let src = &src[..HALVES];
        let mut out = [0; HALVES];
        for i in 0..HALVES {
            out[i] = i16::from(src[i]);
        }
        join_halves(out)
    }

    #[inline(always)]
    fn load_i8_halves(self, src: &[u8]) -> [i32; N] {
        let src = &src[..HALVES];
        let mut out = [0; HALVES];
        for i in 0..HALVES {
            out[i] = i16::from(src[i].cast_signed());
        }
        join_halves(out)
    }

    #[inline(always)]
    fn halves_where_clear(self, bits: u16) -> [i32; N] {
        let mut out = [0; HALVES];
        for (j, out) in out.iter_mut().enumerate() {
            *out = (bits >> j & 1) as i16 - 1;
        }
        join_halves(out)
    }

    #[inline(always)]
    fn add_halves(self, a: [i32; N], b: [i32; N]) -> [i32; N] {
        zip(a, b, |a, b| {
            let low = (a as i16).wrapping_add(b as i16);
            let high = ((a >> 16) as i16).wrapping_add((b >> 16) as i16);
            i32::from(high) << 16 | i32::from(low.cast_unsigned())
        })
    }

    #[inline(always)]
    fn pack_halves(self, a: [f32; N], b: [f32; N]) -> [i32; N] {
        let mut out = [0; HALVES];
        for i in 0..N {
            out[i] = a[i].round_ties_even() as i16;
            out[N + i] = b[i].round_ties_even() as i16;
        }
        join_halves(out)
    }
}
