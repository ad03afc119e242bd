//! Expansion of one active K or V block to f32 panels for the micro-kernel of [`crate::tile`].

pub(crate) mod fixed;

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

/// Expands at least the first `keys` keys of a K block into panels of [`tile::width`] keys: panel
/// `p` is `[D, width]`, the right operand of Q·K for keys `p * width..`.
#[inline(always)]
pub(crate) fn expand_k<L: Lanes>(
    lanes: L,
    layout: KvLayout,
    block: &[u8],
    keys: usize,
    panels: &mut [f32],
) {
    let (d, width) = (layout.head_dim, tile::width::<L>());
    assert!(panels.len() >= k_panels_len(d) && block.len() == layout.k_block_bytes());
    match layout.element {
        Element::F32 => {
            for (dim, row) in block.chunks_exact(4 * KEY_BLOCK).enumerate() {
                for key in (0..keys).step_by(L::N) {
                    let at = key / width * width * d + key % width + dim * width;
                    lanes.store(load_f32(lanes, &row[4 * key..]), &mut panels[at..]);
                }
            }
        }
        element => {
            for (pair, row) in block.chunks_exact(4 * KEY_BLOCK).enumerate() {
                for key in (0..keys).step_by(L::N) {
                    let at = key / width * width * d + key % width + 2 * pair * width;
                    let (even, odd) = load_pairs(lanes, element, &row[4 * key..]);
                    lanes.store(even, &mut panels[at..]);
                    lanes.store(odd, &mut panels[at + width..]);
                }
            }
        }
    }
}

/// Expands at least the first `keys` values of a V block into panels of [`tile::width`] dims, zero
/// beyond D: panel `p` is `[KEY_BLOCK, width]`, the right operand of P·V for dims `p * width..`.
#[inline(always)]
pub(crate) fn expand_v<L: Lanes>(
    lanes: L,
    layout: KvLayout,
    block: &[u8],
    keys: usize,
    panels: &mut [f32],
) {
    let (d, width) = (layout.head_dim, tile::width::<L>());
    let padded = d.next_multiple_of(width);
    assert!(
        panels.len() >= v_panels_len::<L>(d)
            && block.len() == layout.v_block_bytes()
            && keys <= KEY_BLOCK
    );
    // One key (F32) or key pair (16 bit) of the block is 4 D bytes.
    let row_keys = 4 / layout.element.bytes();
    for (i, row) in block.chunks_exact(4 * d).enumerate().take(keys.div_ceil(row_keys)) {
        for dim in (0..padded).step_by(L::N) {
            let at = dim / width * width * KEY_BLOCK + dim % width + i * row_keys * width;
            let dims = Padded::new(row, 4 * dim, 4 * d.saturating_sub(dim).min(L::N), 4 * L::N);
            match layout.element {
                Element::F32 => lanes.store(load_f32(lanes, dims.bytes()), &mut panels[at..]),
                element => {
                    let (even, odd) = load_pairs(lanes, element, dims.bytes());
                    lanes.store(even, &mut panels[at..]);
                    lanes.store(odd, &mut panels[at + width..]);
                }
            }
        }
    }
}

/// Widens row-major `[rows, D]` elements to `[rows, stride]` f32, zero beyond D up to whole
/// vectors.
#[inline(always)]
pub(crate) fn expand_rows<L: Lanes>(
    lanes: L,
    layout: KvLayout,
    rows: &[u8],
    stride: usize,
    out: &mut [f32],
) {
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

/// Transposes at least the first `keys` rows of `[KEY_BLOCK, dims]` into panels of [`tile::width`]
/// keys, each `[dims, width]` as [`expand_k`] makes them; `dims` is whole vectors.
#[inline(always)]
pub(crate) fn transpose_rows<L: Lanes>(
    lanes: L,
    dims: usize,
    rows: &[f32],
    keys: usize,
    panels: &mut [f32],
) {
    let width = tile::width::<L>();
    for key in (0..keys).step_by(L::N) {
        let panel = &mut panels[key / width * width * dims + key % width..];
        for dim in (0..dims).step_by(L::N) {
            lanes.transpose(&rows[key * dims + dim..], dims, &mut panel[dim * width..], width);
        }
    }
}

/// The bytes of one vector: in place if all of them belong to the row, else a copy with zeros
/// behind.
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
    assert!(src.len() >= 4 * L::N);
    if cfg!(target_endian = "little") {
        // SAFETY: `src` has the bytes of `N` floats by the assertion; every bit pattern is a float.
        return unsafe { lanes.load_ptr(src.as_ptr().cast()) };
    }
    let mut values = [0.0; MAX_LANES];
    for (x, bytes) in values[..L::N].iter_mut().zip(src.as_chunks::<4>().0) {
        *x = f32::from_le_bytes(*bytes);
    }
    lanes.load(&values)
}
