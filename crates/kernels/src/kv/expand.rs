//! Expansion of one active K or V block to f32 panels for the micro-kernel of [`crate::tile`].

use super::{KEY_BLOCK, KvLayout};
use crate::element::Element;
use crate::lanes::{Lanes, MAX_LANES};
use crate::tile;

/// Floats of the expanded K block, `[KEY_BLOCK / width][D][width]`.
pub(crate) const fn k_panels_len(head_dim: usize) -> usize {
    KEY_BLOCK * head_dim
}

/// Floats of the expanded V block, `[ceil(D / width)][KEY_BLOCK][width]`.
pub(crate) const fn v_panels_len<L: Lanes>(head_dim: usize) -> usize {
    KEY_BLOCK * head_dim.next_multiple_of(tile::width::<L>())
}

/// Expands at least the first `keys` keys of a K block into panels of [`tile::width`] keys: panel `p` is
/// `[D, width]`, the right operand of Q·K for keys `p * width..`.
#[inline(always)]
pub(crate) fn expand_k<L: Lanes>(lanes: L, layout: KvLayout, block: &[u8], keys: usize, panels: &mut [f32]) {
    let (d, width) = (layout.head_dim, tile::width::<L>());
    assert!(panels.len() >= k_panels_len(d) && block.len() == layout.k_block_bytes());
    for key in (0..keys).step_by(L::N) {
        let panel = &mut panels[key / width * width * d + key % width..];
        match layout.element {
            Element::F32 => {
                for dim in 0..d {
                    let src = &block[(dim * KEY_BLOCK + key) * 4..];
                    lanes.store(load_f32(lanes, src), &mut panel[dim * width..]);
                }
            }
            _ => {
                for pair in 0..d / 2 {
                    let src = &block[(pair * KEY_BLOCK + key) * 4..];
                    let (even, odd) = load_pairs(lanes, layout.element, src);
                    lanes.store(even, &mut panel[2 * pair * width..]);
                    lanes.store(odd, &mut panel[(2 * pair + 1) * width..]);
                }
            }
        }
    }
}

/// Expands at least the first `keys` values of a V block into panels of [`tile::width`] dims, zero beyond D: panel
/// `p` is `[KEY_BLOCK, width]`, the right operand of P·V for dims `p * width..`.
#[inline(always)]
pub(crate) fn expand_v<L: Lanes>(lanes: L, layout: KvLayout, block: &[u8], keys: usize, panels: &mut [f32]) {
    let (d, width) = (layout.head_dim, tile::width::<L>());
    for (p, panel) in panels.chunks_exact_mut(KEY_BLOCK * width).enumerate() {
        for v in 0..tile::ROW_VECTORS {
            let (dim, at) = (p * width + v * L::N, v * L::N);
            let dims = d.saturating_sub(dim).min(L::N);
            match layout.element {
                Element::F32 => {
                    for key in 0..keys {
                        let padded = Padded::new(block, (key * d + dim) * 4, dims * 4, L::N * 4);
                        lanes.store(load_f32(lanes, padded.bytes()), &mut panel[key * width + at..]);
                    }
                }
                _ => {
                    for pair in 0..keys.div_ceil(2) {
                        let padded = Padded::new(block, (pair * d + dim) * 4, dims * 4, L::N * 4);
                        let (even, odd) = load_pairs(lanes, layout.element, padded.bytes());
                        lanes.store(even, &mut panel[2 * pair * width + at..]);
                        lanes.store(odd, &mut panel[(2 * pair + 1) * width + at..]);
                    }
                }
            }
        }
    }
}

/// Widens row-major `[rows, D]` elements to `[rows, stride]` f32, zero beyond D up to whole vectors.
#[inline(always)]
pub(crate) fn expand_rows<L: Lanes>(lanes: L, layout: KvLayout, rows: &[u8], stride: usize, out: &mut [f32]) {
    let (d, bytes) = (layout.head_dim, layout.element.bytes());
    for (row, out) in rows.chunks_exact(layout.row_bytes()).zip(out.chunks_exact_mut(stride)) {
        for (i, vector) in out.chunks_exact_mut(L::N).enumerate() {
            let dims = d.saturating_sub(i * L::N).min(L::N);
            let padded = Padded::new(row, i * L::N * bytes, dims * bytes, L::N * bytes);
            let widened = match layout.element {
                Element::Bf16 => lanes.load_bf16(padded.bytes()),
                Element::F16 => lanes.load_f16(padded.bytes()),
                Element::F32 => load_f32(lanes, padded.bytes()),
            };
            lanes.store(widened, vector);
        }
    }
}

/// The bytes of one vector: in place if all of them belong to the row, else a copy with zeros behind.
enum Padded<'a> {
    Whole(&'a [u8]),
    Tail([u8; MAX_LANES * 4]),
}

impl<'a> Padded<'a> {
    #[inline(always)]
    fn new(block: &'a [u8], from: usize, valid: usize, want: usize) -> Padded<'a> {
        if valid == want {
            return Padded::Whole(&block[from..from + want]);
        }
        let mut tail = [0; MAX_LANES * 4];
        if valid > 0 {
            tail[..valid].copy_from_slice(&block[from..from + valid]);
        }
        Padded::Tail(tail)
    }

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        match self {
            Padded::Whole(bytes) => bytes,
            Padded::Tail(bytes) => bytes,
        }
    }
}

/// `N` pairs of a 16-bit element, widened: the first of each pair, the second.
#[inline(always)]
fn load_pairs<L: Lanes>(lanes: L, element: Element, src: &[u8]) -> (L::V, L::V) {
    match element {
        Element::F16 => lanes.load_f16_pairs(src),
        _ => lanes.load_bf16_pairs(src),
    }
}

/// `N` little-endian f32.
#[inline(always)]
fn load_f32<L: Lanes>(lanes: L, src: &[u8]) -> L::V {
    let mut values = [0.0; MAX_LANES];
    for (x, bytes) in values[..L::N].iter_mut().zip(src.as_chunks::<4>().0) {
        *x = f32::from_le_bytes(*bytes);
    }
    lanes.load(&values)
}
