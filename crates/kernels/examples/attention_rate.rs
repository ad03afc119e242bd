//! Speed of prefill attention on one core: causal GFLOP/s for each tier of this CPU.
//!
//! Counts 4 D floating-point operations per query head and visible key (Q·K and P·V, a multiply and
//! an add each); the exponentials, the masked part of diagonal tiles and the expansion of K and V
//! are overhead.

use std::time::Instant;

use tidekv_kernels::Isa;
use tidekv_kernels::attention::{Attend, attend, attend_scratch_len};
use tidekv_kernels::element::Element;
use tidekv_kernels::kv::{Append, KvLayout, append_k, append_v};

/// Query rows, at the end of `KEYS` keys.
const ROWS: usize = 2048;
const KEYS: usize = 8192;
const REPEATS: usize = 5;

fn main() {
    for (head_dim, group) in [(64, 7), (64, 3), (64, 1), (80, 1), (128, 4), (256, 4)] {
        for element in [Element::Bf16, Element::F32] {
            for isa in Isa::available() {
                let rate = measure(isa, KvLayout { head_dim, element }, group);
                println!(
                    "{:>8} {element:?} D {head_dim:3} G {group}: {rate:6.1} GFLOP/s",
                    isa.name()
                );
            }
        }
    }
}

/// Values in [-1, 1) of no particular pattern.
fn values(n: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Best of [`REPEATS`] runs.
fn measure(isa: Isa, layout: KvLayout, group: usize) -> f64 {
    let d = layout.head_dim;
    let src = values(KEYS * d);
    let rows = Append { first_pos: 0, rows: KEYS, src: &src, stride: d };
    let mut k = vec![0u8; layout.blocks(KEYS) * layout.k_block_bytes()];
    let mut v = vec![0u8; layout.blocks(KEYS) * layout.v_block_bytes()];
    append_k(isa, layout, &mut k, &rows);
    append_v(isa, layout, &mut v, &rows);
    let call = Attend {
        layout,
        group,
        k: &k,
        v: &v,
        first_pos: KEYS - ROWS,
        rows: ROWS,
        scale: 1.0 / (d as f32).sqrt(),
        window: None,
        softcap: None,
        q_stride: group * d,
        col: 0,
    };
    let queries = values(ROWS * group * d);
    let mut scratch = vec![0.0; attend_scratch_len(isa, layout, ROWS, group)];
    let visible: usize = (KEYS - ROWS..KEYS).map(|pos| pos + 1).sum();
    let flops = (4 * d * group * visible) as f64;
    let mut best = f64::INFINITY;
    for _ in 0..REPEATS {
        let mut q = queries.clone();
        let start = Instant::now();
        attend(isa, &call, &mut q, &mut scratch);
        best = best.min(start.elapsed().as_secs_f64());
    }
    flops / best / 1e9
}
