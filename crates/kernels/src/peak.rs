//! What a core reaches at most: loops beside which the rates of kernels are shown.

use std::hint::black_box;

use crate::isa::Isa;
use crate::lanes::{Kernel, Lanes, dispatch};

/// `steps` rounds of independent f32 multiply-adds in registers; returns the floating-point
/// operations, two per multiply-add.
pub fn multiply_adds(isa: Isa, steps: usize) -> f64 {
    struct MultiplyAdds(usize);
    impl Kernel for MultiplyAdds {
        type Output = f64;

        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) -> f64 {
            let zero = lanes.splat(black_box(0.0));
            let (x, y) = (lanes.splat(black_box(0.5)), lanes.splat(black_box(0.25)));
            let step = |sum| lanes.fma(sum, x, y);
            let sums = chains(lanes, self.0, zero, step);
            black_box(lanes.reduce_add(sums));
            2.0 * (self.0 * n_chains::<L>() * L::N) as f64
        }
    }
    dispatch(isa, MultiplyAdds(steps))
}

/// `steps` rounds of independent sums of products of 16-bit integers in registers; returns the
/// operations, two per product.
pub fn pair_products(isa: Isa, steps: usize) -> f64 {
    struct PairProducts(usize);
    impl Kernel for PairProducts {
        type Output = f64;

        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) -> f64 {
            let zero = lanes.splat(black_box(0.0));
            let x = lanes.splat_i32(black_box(0x0003_0005));
            let step = |sum| {
                let sum = lanes.to_bits(sum);
                lanes.of_bits(lanes.add_dot_i16(sum, sum, x))
            };
            let sums = chains(lanes, self.0, zero, step);
            black_box(lanes.reduce_add(sums));
            2.0 * (self.0 * n_chains::<L>() * 2 * L::N) as f64
        }
    }
    dispatch(isa, PairProducts(steps))
}

/// The sum of `data`, whose length is a multiple of 64: with `data` beyond the caches, the rate at
/// which memory is read.
///
/// # Panics
/// If the length is no multiple of 64.
pub fn read(isa: Isa, data: &[f32]) -> f32 {
    struct Read<'a>(&'a [f32]);
    impl Kernel for Read<'_> {
        type Output = f32;

        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) -> f32 {
            const SUMS: usize = 4;
            let mut sums = [lanes.splat(0.0); SUMS];
            for data in self.0.chunks_exact(SUMS * L::N) {
                for (sum, data) in sums.iter_mut().zip(data.chunks_exact(L::N)) {
                    *sum = lanes.add(*sum, lanes.load(data));
                }
            }
            let mut total = 0.0;
            for sum in sums {
                total += lanes.reduce_add(sum);
            }
            total
        }
    }
    assert!(data.len().is_multiple_of(64), "{} floats", data.len());
    dispatch(isa, Read(data))
}

/// Chains of a loop: as many as the accumulators of the micro-kernel, which hide the latency and
/// leave registers for operands.
const fn n_chains<L: Lanes>() -> usize {
    match L::ROW_TILE {
        0..=2 => 4,
        3..=6 => 12,
        _ => 28,
    }
}

/// Runs `step` on every chain `steps` times; returns one sum of all, so that none can be left out.
#[inline(always)]
fn chains<L: Lanes>(lanes: L, steps: usize, zero: L::V, step: impl Fn(L::V) -> L::V) -> L::V {
    /// The number is a constant for the compiler, which keeps the chains in registers.
    #[inline(always)]
    fn of<L: Lanes, const C: usize>(
        lanes: L,
        steps: usize,
        zero: L::V,
        step: impl Fn(L::V) -> L::V,
    ) -> L::V {
        let mut sums = [zero; C];
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = step(*sum);
            }
        }
        let mut total = zero;
        for sum in sums {
            total = lanes.add(total, sum);
        }
        total
    }
    match n_chains::<L>() {
        4 => of::<L, 4>(lanes, steps, zero, step),
        12 => of::<L, 12>(lanes, steps, zero, step),
        _ => of::<L, 28>(lanes, steps, zero, step),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted_per_lane() {
        for isa in Isa::available() {
            let per_step = multiply_adds(isa, 1);
            assert_eq!(multiply_adds(isa, 1000), 1000.0 * per_step, "{}", isa.name());
            assert_eq!(pair_products(isa, 1000), 2.0 * 1000.0 * per_step, "{}", isa.name());
        }
    }

    #[test]
    fn reading_sums_every_float() {
        let data: Vec<f32> = (0..640).map(|i| i as f32).collect();
        for isa in Isa::available() {
            assert_eq!(read(isa, &data), 204_480.0, "{}", isa.name());
        }
    }
}
