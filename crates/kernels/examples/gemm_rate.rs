//! Prints the speed of prefill's matrix product on one core, beside the multiply-add peak of the
//! same core measured in the same minute: `cargo run --release -p tidekv-kernels --example gemm_rate`.
//!
//! The shapes are those of Qwen2.5-Coder-0.5B with a chunk of 512 tokens. Best of several rounds,
//! since other programs share the machine.

use std::time::Instant;

use tidekv_kernels::fixed::fix_rows;
use tidekv_kernels::gemm::{Epilogue, Factors, PanelGemm, gemm_panels, pack_panel, panel_width};
use tidekv_kernels::quant::{BlockType, WeightView};
use tidekv_kernels::{Isa, Tier};

const ROWS: usize = 512;
/// K and N: attention's projections, the MLP's gate and up, and its down projection.
const SHAPES: [(usize, usize); 4] = [(896, 896), (896, 4864), (4864, 896), (896, 128)];
const ROUNDS: usize = 7;

fn main() {
    for isa in Isa::available() {
        let peak = fma_peak(isa);
        println!("{isa}: multiply-add peak {peak:.1} GFLOP/s", isa = isa.name());
        for factors in [Factors::F32, Factors::Fixed] {
            for (k, n) in SHAPES {
                let (multiply, pack) = gemm_rate(isa, factors, k, n);
                println!(
                    "  {factors:?} M {ROWS} K {k:4} N {n:4}: {multiply:6.1} GFLOP/s, {:3.0} % of \
                     the peak; packing {pack:.2} G weights/s",
                    100.0 * multiply / peak
                );
            }
        }
    }
}

/// GFLOP/s of the product and 10^9 weights per second of packing Q8_0.
fn gemm_rate(isa: Isa, factors: Factors, k: usize, n: usize) -> (f64, f64) {
    let bytes: Vec<u8> = (0..n * k / 32 * 34).map(|i| (i % 34 / 2 % 60) as u8).collect();
    let weights = WeightView::new(BlockType::Q8_0, n, k, &bytes).expect("a shape of whole blocks");
    let width = panel_width(isa);
    let panel = factors.floats(k) * width;
    let mut panels = vec![0.0; n.div_ceil(width) * panel];
    let mut a: Vec<f32> = (0..ROWS * k).map(|i| (i % 17) as f32 - 8.0).collect();
    if factors == Factors::Fixed {
        fix_rows(isa, &mut a, k, k);
    }
    let mut c = vec![0.0; ROWS * n];

    let pack_s = best_seconds(|| {
        for (p, panel) in panels.chunks_exact_mut(panel).enumerate() {
            pack_panel(isa, factors, &weights, p * width, panel);
        }
    });
    let epilogue = Epilogue::Store;
    let gemm = PanelGemm {
        factors,
        a: &a,
        lda: k,
        rows: ROWS,
        k,
        panels: &panels,
        n0: 0,
        cols: n,
        epilogue,
    };
    let multiply_s = best_seconds(|| gemm_panels(isa, gemm, &mut c, n));
    assert!(c.iter().all(|x| x.is_finite()));
    (2.0 * (ROWS * n * k) as f64 / multiply_s / 1e9, (n * k) as f64 / pack_s / 1e9)
}

fn best_seconds(mut work: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

/// GFLOP/s of independent multiply-adds in registers.
fn fma_peak(isa: Isa) -> f64 {
    const STEPS: usize = 10_000_000;
    let mut flops = 0;
    let seconds = best_seconds(|| {
        flops = match isa.tier() {
            Tier::Portable => peak::portable(STEPS),
            // SAFETY: the token proves that the CPU has the tier's instructions.
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2 => unsafe { peak::avx2(STEPS) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512 => unsafe { peak::avx512(STEPS) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => 0,
        }
    });
    flops as f64 / seconds / 1e9
}

/// Loops of multiply-adds that return the number of floating-point operations.
mod peak {
    use std::hint::black_box;

    /// Accumulators: latency 4 to 5 times two units, with some to spare.
    const CHAINS: usize = 12;

    pub fn portable(steps: usize) -> usize {
        let (x, y) = black_box(([0.5f32; 4], [0.25f32; 4]));
        let mut sums = black_box([[0.0f32; 4]; CHAINS]);
        for _ in 0..steps {
            for sum in &mut sums {
                for lane in 0..4 {
                    sum[lane] = sum[lane] * x[lane] + y[lane];
                }
            }
        }
        black_box(sums);
        steps * CHAINS * 4 * 2
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    pub fn avx2(steps: usize) -> usize {
        use std::arch::x86_64::*;
        let (x, y) = black_box((_mm256_set1_ps(0.5), _mm256_set1_ps(0.25)));
        let mut sums = black_box([_mm256_setzero_ps(); CHAINS]);
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, x, y);
            }
        }
        black_box(sums);
        steps * CHAINS * 8 * 2
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    pub fn avx512(steps: usize) -> usize {
        use std::arch::x86_64::*;
        let (x, y) = black_box((_mm512_set1_ps(0.5), _mm512_set1_ps(0.25)));
        let mut sums = black_box([_mm512_setzero_ps(); CHAINS]);
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, x, y);
            }
        }
        black_box(sums);
        steps * CHAINS * 16 * 2
    }
}
