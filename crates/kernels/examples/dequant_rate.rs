//! Prints how fast each block type decodes and multiplies on one core, for every tier of this CPU.
//!
//! `cargo run --release -p tidekv-kernels --example dequant_rate`
//!
//! `dequantize` decodes a row that stays in cache (what the GEMM packer does); `matvec` streams a
//! matrix of 4864 x 1024 from cache or memory, as it fits. The best of several runs counts, so that
//! other load on the machine does not.

use std::hint::black_box;
use std::time::Instant;

use tidekv_kernels::Isa;
use tidekv_kernels::matvec::matvec;
use tidekv_kernels::quant::{BlockType, WeightView, dequantize};

/// Weight matrix `[N, K]` for `matvec`; K is a whole number of blocks of every type.
const ROWS: usize = 4864;
const COLS: usize = 1024;
/// Elements decoded by one `dequantize` call.
const ROW: usize = 4096;
const RUNS: usize = 15;

fn main() {
    println!(
        "{:<10} {:<6} {:>14} {:>14} {:>12}",
        "isa", "type", "dequant Gel/s", "matvec Gw/s", "matvec GB/s"
    );
    for isa in Isa::available() {
        for block in BlockType::ALL {
            let bytes = test_bytes(ROWS * row_bytes(block, COLS));
            let decode = decode_rate(isa, block, &bytes);
            let multiply = matvec_rate(isa, block, &bytes);
            let bandwidth = multiply * bytes.len() as f64 / (ROWS * COLS) as f64;
            println!(
                "{:<10} {:<6} {:>14.2} {:>14.2} {:>12.2}",
                isa.name(),
                block,
                decode / 1e9,
                multiply / 1e9,
                bandwidth / 1e9
            );
        }
    }
}

fn row_bytes(block: BlockType, cols: usize) -> usize {
    block.row_bytes(cols).unwrap_or_else(|| panic!("{cols} elements are not whole {block} blocks"))
}

/// Bytes without NaN and infinity in any type: every 16-bit scale that they can form is finite.
fn test_bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x3b).collect()
}

/// Elements per second of `dequantize`.
fn decode_rate(isa: Isa, block: BlockType, bytes: &[u8]) -> f64 {
    const REPEATS: usize = 1000;
    let bytes = &bytes[..row_bytes(block, ROW)];
    let mut out = vec![0.0; ROW];
    let seconds = best_seconds(|| {
        for _ in 0..REPEATS {
            dequantize(isa, block, black_box(bytes), &mut out);
            black_box(&out);
        }
    });
    (ROW * REPEATS) as f64 / seconds
}

/// Weights per second of `matvec`.
fn matvec_rate(isa: Isa, block: BlockType, bytes: &[u8]) -> f64 {
    let weights = match WeightView::new(block, ROWS, COLS, bytes) {
        Ok(weights) => weights,
        Err(error) => panic!("{error}"),
    };
    let x: Vec<f32> = (0..COLS).map(|at| (at % 17) as f32 - 8.0).collect();
    let mut y = vec![0.0; ROWS];
    let seconds = best_seconds(|| {
        matvec(isa, &weights, 0..ROWS, black_box(&x), &mut y);
        black_box(&y);
    });
    (ROWS * COLS) as f64 / seconds
}

fn best_seconds(mut work: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}
