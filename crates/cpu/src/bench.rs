//! What the parts of prefill and decoding reach on this machine, in the code that runs them.
//!
//! Every measurement makes its own data, from a seed, and reports the best of several rounds: other
//! programs take time away and never add any.

use crate::attention::AttendRows;
use crate::backend::Cpu;
use crate::packed::{Operand, dims};
use crate::product::{RowsMut, VectorProduct};
use crate::sizes::{SLAB, kernel_element, query_rows};
use crate::weights::CpuWeights;
use std::hint::black_box;
use std::iter::Sum;
use std::time::{Duration, Instant};
use tidekv::Element;
use tidekv::model::Shape;
use tidekv_kernels::attention::attend_scratch_len;
use tidekv_kernels::gemm::{Epilogue, panel_width};
use tidekv_kernels::kv::{Append, KvLayout, append_k, append_v};
use tidekv_kernels::matvec::fixed::fixed_len;
use tidekv_kernels::quant::{BlockType, WeightView};
use tidekv_kernels::score::{RowStats, ScoreHead, score_block, score_scratch_len, score_stats};
use tidekv_kernels::{Isa, peak};

pub use tidekv_kernels::quant::BlockType as WeightType;

/// Work and how long it took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Floating-point operations, or bytes.
    pub work: f64,
    /// Seconds.
    pub seconds: f64,
}

impl Sample {
    /// Work per second.
    pub fn rate(&self) -> f64 {
        self.work / self.seconds
    }
}

impl Sum for Sample {
    fn sum<I: Iterator<Item = Sample>>(samples: I) -> Sample {
        samples.fold(Sample { work: 0.0, seconds: 0.0 }, |sum, sample| Sample {
            work: sum.work + sample.work,
            seconds: sum.seconds + sample.seconds,
        })
    }
}

/// Seconds of the fastest of several rounds: as many as fit into a time, and at least two.
fn best_seconds(mut work: impl FnMut()) -> f64 {
    const ENOUGH: Duration = Duration::from_secs(1);
    const LEAST: usize = 2;
    const MOST: usize = 9;
    let (began, mut best) = (Instant::now(), f64::INFINITY);
    for round in 1..=MOST {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
        if round >= LEAST && began.elapsed() > ENOUGH {
            break;
        }
    }
    best
}

/// Numbers in [-1, 1) of no particular pattern.
fn numbers(n: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Weights `[N, K]` of one type. Every 16-bit scale that the bytes can form is finite.
struct Weights {
    block: BlockType,
    n: usize,
    k: usize,
    bytes: Vec<u8>,
}

impl Weights {
    fn new(block: BlockType, n: usize, k: usize) -> Option<Weights> {
        let bytes = n.checked_mul(block.row_bytes(k)?)?;
        let byte = |at: usize| (at.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x3b;
        Some(Weights { block, n, k, bytes: (0..bytes).map(byte).collect() })
    }

    fn view(&self) -> WeightView<'_> {
        let Weights { block, n, k, ref bytes } = *self;
        WeightView::new(block, n, k, bytes).expect("the bytes were counted for this shape")
    }
}

/// Rates of loops that do nothing else, on all threads of `cpu`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peaks {
    /// f32 multiply-adds in registers, floating-point operations per second.
    pub f32_flops: f64,
    /// Sums of products of 16-bit integers in registers, operations per second.
    pub i16_ops: f64,
}

/// Measures the peaks of `isa` with as many threads as `cpu` has.
pub fn peaks(cpu: &Cpu, isa: Isa) -> Peaks {
    const STEPS: usize = 3_000_000;
    let rate = |kernel: fn(Isa, usize) -> f64| {
        let threads = cpu.pool.n_threads();
        let seconds = best_seconds(|| {
            cpu.pool.each(0..threads, |_| {
                black_box(kernel(isa, STEPS));
            });
        });
        threads as f64 * kernel(isa, 1) * STEPS as f64 / seconds
    };
    Peaks { f32_flops: rate(peak::multiply_adds), i16_ops: rate(peak::pair_products) }
}

/// Reading memory far beyond any cache, bytes per second.
pub fn read_bandwidth(cpu: &Cpu) -> f64 {
    /// 256 MiB in pieces that even out the threads.
    const PIECE: usize = 1 << 18;
    const PIECES: usize = 256;
    let data = vec![1.0f32; PIECE * PIECES];
    let seconds = best_seconds(|| {
        cpu.pool.each(data.chunks_exact(PIECE), |piece| {
            black_box(peak::read(cpu.isa, piece));
        });
    });
    (data.len() * size_of::<f32>()) as f64 / seconds
}

/// `rows` rows of activations times `[N, K]` weights of a type, packing included, as prefill does it.
/// `None` if K is no whole number of blocks.
pub fn product(cpu: &Cpu, weights: WeightType, [rows, n, k]: [usize; 3]) -> Option<Sample> {
    Some(product_of(cpu, &Weights::new(weights, n, k)?.view(), rows))
}

/// [`product`] of every matrix of a layer of a loaded model, summed.
pub fn layer_products(cpu: &Cpu, weights: &CpuWeights, layer: usize, rows: usize) -> Sample {
    let matrices = weights.matrices(layer).matrices();
    matrices.into_iter().map(|matrix| product_of(cpu, &weights.view(matrix), rows)).sum()
}

fn product_of(cpu: &Cpu, weights: &WeightView<'_>, rows: usize) -> Sample {
    let (n, k) = (weights.rows(), weights.cols());
    let compute = cpu.compute();
    let panel = compute.factors.floats(k) * panel_width(cpu.isa);
    let mut slab = vec![0.0; SLAB.max(panel)];
    let mut data = numbers(rows * k);
    let a = compute.rows(RowsMut { data: &mut data, stride: k }, k);
    let mut c = vec![0.0; rows * n];
    let seconds = best_seconds(|| {
        let operand = Operand { weights: *weights, panels: None };
        let c = RowsMut { data: &mut c, stride: n };
        cpu.pool.enter(|| compute.product(operand, (a, rows), c, Epilogue::Store, &mut slab));
    });
    Sample { work: 2.0 * (rows * n) as f64 * k as f64, seconds }
}

/// Bringing `[N, K]` weights of a type into the form that products take; the work is weights. `None`
/// if K is no whole number of blocks.
pub fn packing(cpu: &Cpu, weights: WeightType, [n, k]: [usize; 2]) -> Option<Sample> {
    let weights = Weights::new(weights, n, k)?;
    let compute = cpu.compute();
    let width = panel_width(cpu.isa);
    let mut panels = vec![0.0; compute.factors.floats(k) * width * n.div_ceil(width)];
    let seconds = best_seconds(|| cpu.pool.enter(|| compute.pack(&weights.view(), 0, &mut panels)));
    Some(Sample { work: n as f64 * k as f64, seconds })
}

/// N and K of the matrices of a layer: query, key, value, output, gate, up and down.
pub fn matrices(shape: &Shape) -> [[usize; 2]; 7] {
    dims(shape).map(|(n, k)| [n, k])
}

/// Keys and values of a model's heads, and queries at their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// D.
    pub head_dim: usize,
    /// Hkv.
    pub n_kv_heads: usize,
    /// G, query heads per KV head.
    pub group: usize,
    /// Storage of keys and values.
    pub element: Element,
}

/// Blocks of `n_keys` keys and values.
struct Cached {
    k: Vec<u8>,
    v: Vec<u8>,
}

impl Heads {
    /// Dimensions of the heads of `shape`.
    pub fn of(shape: &Shape, element: Element) -> Heads {
        let (head_dim, n_kv_heads, group) = (shape.head_dim, shape.n_kv_heads, shape.group());
        Heads { head_dim, n_kv_heads, group, element }
    }

    fn layout(&self) -> KvLayout {
        let element = kernel_element(self.element);
        KvLayout { head_dim: self.head_dim, element }
    }

    fn cache(&self, cpu: &Cpu, n_keys: usize) -> Cached {
        let (layout, d) = (self.layout(), self.head_dim);
        let blocks = layout.blocks(n_keys);
        let (k_bytes, v_bytes) = (blocks * layout.k_block_bytes(), blocks * layout.v_block_bytes());
        let mut k = vec![0u8; self.n_kv_heads * k_bytes];
        let mut v = vec![0u8; self.n_kv_heads * v_bytes];
        let src = numbers(n_keys * d);
        let rows = Append { first_pos: 0, rows: n_keys, src: &src, stride: d };
        for (k, v) in k.chunks_exact_mut(k_bytes).zip(v.chunks_exact_mut(v_bytes)) {
            append_k(cpu.isa, layout, k, &rows);
            append_v(cpu.isa, layout, v, &rows);
        }
        Cached { k, v }
    }
}

/// Causal attention of `n_queries` positions at the end of `n_keys`. Operations of the keys that a
/// query sees are counted, 4 D each.
pub fn attention(cpu: &Cpu, heads: &Heads, n_queries: usize, n_keys: usize) -> Sample {
    let (layout, group, d) = (heads.layout(), heads.group, heads.head_dim);
    let cached = heads.cache(cpu, n_keys);
    let rows = AttendRows {
        layout,
        kv: [&cached.k, &cached.v],
        n_kv_heads: heads.n_kv_heads,
        group,
        first_pos: n_keys - n_queries,
        n_rows: n_queries,
        scale: 1.0 / (d as f32).sqrt(),
        window: None,
        softcap: None,
    };
    let stride = heads.n_kv_heads * group * d;
    let queries = numbers(n_queries * stride);
    let n_threads = cpu.pool.n_threads();
    let most = query_rows(group, n_threads);
    let per_thread = attend_scratch_len(cpu.isa, layout, most, group);
    let mut threads = vec![0.0; n_threads * per_thread];
    let mut q = queries.clone();
    let compute = cpu.compute();
    let seconds = best_seconds(|| {
        q.copy_from_slice(&queries);
        cpu.pool.enter(|| compute.attend(&rows, (&mut q, stride), &mut threads));
    });
    let seen: f64 = (n_keys - n_queries..n_keys).map(|position| (position + 1) as f64).sum();
    Sample { work: 4.0 * seen * stride as f64, seconds }
}

/// Both passes of layer-end scoring: a window of `window` queries against `n_keys` keys.
pub fn scoring(cpu: &Cpu, heads: &Heads, window: usize, n_keys: usize) -> Sample {
    let (layout, d) = (heads.layout(), heads.head_dim);
    let cached = heads.cache(cpu, n_keys);
    let q = numbers(window * d);
    let per_thread = score_scratch_len(layout, window);
    let mut threads = vec![0.0; cpu.pool.n_threads() * per_thread];
    let head_bytes = cached.k.len() / heads.n_kv_heads;
    let n_heads = heads.n_kv_heads * heads.group;
    let mut scores = vec![0.0; n_heads * n_keys];
    let seconds = best_seconds(|| {
        let tasks = scores.chunks_exact_mut(n_keys).enumerate();
        cpu.pool.each_with(tasks, &mut threads, |(head, scores), scratch| {
            let head = ScoreHead {
                layout,
                k: &cached.k[head / heads.group * head_bytes..][..head_bytes],
                n_keys,
                q: &q,
                rows: window,
                scale: 1.0 / (d as f32).sqrt(),
                softcap: None,
            };
            let (mut max, mut sum) = (vec![0.0; window], vec![0.0; window]);
            score_stats(cpu.isa, &head, &mut max, &mut sum, scratch);
            let stats = RowStats { max: &max, sum: &sum };
            score_block(cpu.isa, &head, stats, 0..n_keys, scores, scratch);
        });
    });
    Sample { work: 4.0 * (window * n_keys) as f64 * (n_heads * d) as f64, seconds }
}

/// `[N, K]` weights of a type times `n_vectors` vectors at once, as decoding that many sequences
/// does it; the work is the weights' bytes once for each. `None` if K is no whole number of
/// blocks.
pub fn vectors(
    cpu: &Cpu,
    weights: WeightType,
    [n, k]: [usize; 2],
    n_vectors: usize,
) -> Option<Sample> {
    let weights = Weights::new(weights, n, k)?;
    let (xs, mut ys) = (numbers(n_vectors * k), vec![0.0; n_vectors * n]);
    let mut fixed = vec![vec![0.0; fixed_len(k)]; n_vectors];
    let compute = cpu.compute();
    let seconds = best_seconds(|| {
        let vectors = xs.chunks_exact(k).zip(&mut fixed).zip(ys.chunks_exact_mut(n));
        let vectors = vectors.map(|((x, fixed), y)| VectorProduct { x, fixed, y });
        cpu.pool.enter(|| compute.vectors(&weights.view(), vectors));
    });
    Some(Sample { work: (weights.bytes.len() * n_vectors) as f64, seconds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::CpuConfig;
    use std::num::NonZeroUsize;

    fn cpu() -> Cpu {
        Cpu::new(CpuConfig { threads: NonZeroUsize::new(2), ..CpuConfig::default() }).unwrap()
    }

    #[test]
    fn work_is_that_of_the_shapes() {
        let cpu = cpu();
        let heads = Heads { head_dim: 16, n_kv_heads: 2, group: 3, element: Element::Bf16 };
        let product = product(&cpu, WeightType::Q8_0, [5, 40, 64]).unwrap();
        assert_eq!(product.work, 2.0 * 5.0 * 40.0 * 64.0);
        // Three queries at the end of ten keys see 8, 9 and 10 of them.
        let attention = attention(&cpu, &heads, 3, 10);
        assert_eq!(attention.work, 4.0 * 16.0 * 6.0 * 27.0);
        let scoring = scoring(&cpu, &heads, 4, 10);
        assert_eq!(scoring.work, 4.0 * 16.0 * 6.0 * 40.0);
        let vectors = vectors(&cpu, WeightType::Q8_0, [40, 64], 3).unwrap();
        assert_eq!(vectors.work, 3.0 * 40.0 * 2.0 * 34.0);
        let packing = packing(&cpu, WeightType::Q8_0, [40, 64]).unwrap();
        assert_eq!(packing.work, 40.0 * 64.0);
        for sample in [product, packing, attention, scoring, vectors] {
            assert!(sample.seconds > 0.0 && sample.rate().is_finite(), "{sample:?}");
        }
        assert_eq!(super::product(&cpu, WeightType::Q4K, [5, 40, 64]), None);
        assert_eq!(super::packing(&cpu, WeightType::Q4K, [40, 64]), None);
        assert_eq!(super::vectors(&cpu, WeightType::Q4K, [40, 64], 1), None);
    }

    #[test]
    fn a_type_of_every_kind_has_finite_weights() {
        for block in BlockType::ALL {
            let weights = Weights::new(block, 3, 256).unwrap();
            let mut row = vec![0.0; 256];
            tidekv_kernels::quant::dequantize(cpu().isa, block, weights.view().row(2), &mut row);
            assert!(row.iter().all(|w| w.is_finite()), "{block}");
        }
    }
}
