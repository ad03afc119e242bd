//! One place for each size: plan and allocation call the same functions.
//!
//! Sizes are `u64` and saturate; a saturated size fits no limit, so it is
//! refused by the plan instead of wrapping around.

use crate::element::Element;
use crate::model::Shape;

/// Product of `factors`, saturating.
pub fn product(factors: &[usize]) -> u64 {
    factors.iter().fold(1, |bytes, &factor| u64::saturating_mul(bytes, factor as u64))
}

/// Buffers start at multiples of this and are charged in multiples of it: the
/// width of a cache line and of the widest vector.
pub const ALIGNMENT: u64 = 64;

/// `bytes` as a backend's buffer: rounded up to [`ALIGNMENT`].
pub fn buffer(bytes: u64) -> u64 {
    bytes.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT)
}

/// Prompt ids, `[S]` u32.
pub fn tokens(n_tokens: usize) -> u64 {
    product(&[n_tokens, size_of::<u32>()])
}

/// Hidden states, `[rows, d_model]`.
pub fn bridge(shape: &Shape, element: Element, rows: usize) -> u64 {
    buffer(product(&[rows, shape.d_model, element.bytes()]))
}

/// Window queries `[Hq, W, D]` f32 with the maximum and normaliser of each,
/// `[2, Hq, W]` f32.
pub fn observation(shape: &Shape, window: usize) -> u64 {
    buffer(product(&[shape.n_heads, window, shape.head_dim + 2, size_of::<f32>()]))
}

/// Keys and values `[Hkv, n, D]` of a block and their scores `[Hkv, n]`, f32.
pub fn key_block(shape: &Shape, n_keys: usize) -> u64 {
    product(&[shape.n_kv_heads, n_keys, 2 * shape.head_dim + 1, size_of::<f32>()])
}

/// Retained keys of one layer, `[rows, D]` flattened over heads; values take
/// the same. `rows` is the sum over KV heads.
pub fn retained_half(shape: &Shape, element: Element, rows: usize) -> u64 {
    buffer(product(&[rows, shape.head_dim, element.bytes()]))
}

/// Absolute positions of retained rows, `[rows]` u32.
pub fn positions(rows: usize) -> u64 {
    product(&[rows, size_of::<u32>()])
}

/// Keys of generated tokens of one layer, `[Hkv, T, D]`; values take the same.
pub fn tail_half(shape: &Shape, element: Element, new_tokens: usize) -> u64 {
    buffer(product(&[shape.n_kv_heads, new_tokens, shape.head_dim, element.bytes()]))
}

/// Rows of logits, `[rows, vocab]` f32.
pub fn logits(shape: &Shape, rows: usize) -> u64 {
    buffer(product(&[rows, shape.vocab, size_of::<f32>()]))
}

/// Rows of logits that are computed together where those of every token are
/// wanted: what fits 16 MiB, one at least, and no more than a `chunk` has. The
/// head's weights are unpacked once for all of them.
pub fn logit_tile_rows(shape: &Shape, chunk: usize) -> usize {
    const TILE: u64 = 16 << 20;
    let fitting = TILE / logits(shape, 1).max(1);
    usize::try_from(fitting).unwrap_or(usize::MAX).min(chunk).max(1)
}

/// Logits of every token on their way to the observer: the rows that are computed
/// together and the one that is shown.
pub fn logit_stream(shape: &Shape, chunk: usize) -> u64 {
    logits(shape, logit_tile_rows(shape, chunk)).saturating_add(logits(shape, 1))
}

/// Vectors held in memory: two norms per layer and the final one. Biases, where
/// a file has them, are counted from the file.
pub fn norm_vectors(shape: &Shape) -> u64 {
    product(&[2 * shape.n_layers + 1, shape.d_model, size_of::<f32>()])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Design section 6: Llama-3.1-8B, S = 131,072, BF16, K = 4,096.
    #[test]
    fn golden_sizes_of_an_8b_model_at_128k() {
        const GIB: u64 = 1 << 30;
        let shape = Shape::named("llama-3.1-8b").unwrap();
        assert_eq!(bridge(&shape, Element::Bf16, 131_072), GIB);
        let rows = 8 * 4096;
        assert_eq!(32 * 2 * retained_half(&shape, Element::Bf16, rows), GIB / 2);
        assert_eq!(32 * positions(rows), 4 << 20);
    }

    #[test]
    fn streamed_logits_fill_a_tile_and_no_more() {
        let shape = Shape::named("llama-3.1-8b").unwrap();
        let row = 4 * shape.vocab as u64;
        // 128,256 ids: 32 rows are 15.7 MiB.
        assert_eq!(logit_tile_rows(&shape, 2048), 32);
        assert_eq!(logit_stream(&shape, 2048), 33 * row);
        // Never more rows than are there, and never none.
        assert_eq!(logit_tile_rows(&shape, 5), 5);
        let wide = Shape { vocab: 1 << 30, ..shape };
        assert_eq!(logit_tile_rows(&wide, 2048), 1);
    }

    #[test]
    fn products_saturate_instead_of_wrapping() {
        assert_eq!(product(&[usize::MAX, 3]), u64::MAX);
        assert_eq!(product(&[0, usize::MAX]), 0);
    }
}
