//! The x86-64 lanes, one file per register width.

mod avx2;
mod avx2_halves;
mod avx512;

pub(crate) use avx2::Avx2;
pub(crate) use avx512::Avx512;

use super::Kernel;
use super::halves::HalvesKernel;

/// Entry point of the AVX2 tier.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
pub(super) unsafe fn enter_avx2<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: this function's own contract.
    kernel.run(unsafe { Avx2::new_unchecked() })
}

/// [`enter_avx2`] for kernels on halves.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
pub(super) unsafe fn enter_avx2_halves<K: HalvesKernel>(kernel: K) -> K::Output {
    // SAFETY: this function's own contract.
    kernel.run(unsafe { Avx2::new_unchecked() })
}

/// Entry point of the AVX-512 tier.
///
/// # Safety
/// The CPU has AVX-512F, AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
#[inline(never)]
pub(super) unsafe fn enter_avx512<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: this function's own contract.
    kernel.run(unsafe { Avx512::<false>::new_unchecked() })
}

/// Entry point of the AVX512-VNNI tier.
///
/// # Safety
/// The CPU has AVX-512F, AVX512-VNNI, AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512vnni,avx2,fma,f16c")]
#[inline(never)]
pub(super) unsafe fn enter_avx512_vnni<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: this function's own contract.
    kernel.run(unsafe { Avx512::<true>::new_unchecked() })
}

/// Evaluates an expression of intrinsics that work on registers only, as a method of lanes tokens.
macro_rules! registers {
    ($expression:expr) => {
        // SAFETY: the intrinsics touch no memory, and holding the lanes token, which only the
        // entry points above make, proves that the CPU has their instructions.
        unsafe { $expression }
    };
}
use registers;
