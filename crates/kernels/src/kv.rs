//! Storage layout of the *active* K and V of one KV head, and how rows enter and leave it.
//!
//! Keys are grouped in blocks of [`KEY_BLOCK`] absolute positions; position `p` is key `p %
//! KEY_BLOCK` of block `p / KEY_BLOCK`. Inside a block:
//!
//! | element | K block | V block |
//! |---|---|---|
//! | 16 bit | `[D/2][KEY_BLOCK keys][2 dims]` | `[KEY_BLOCK/2 key pairs][D][2 keys]` |
//! | F32 | `[D][KEY_BLOCK]` | `[KEY_BLOCK][D]` |
//!
//! Both products of attention reduce over the innermost pair (dims in Q·K, keys in P·V), so a
//! 16-bit block is what pairwise bf16 dot instructions read without a repack, and a 32-bit word of
//! it splits into two f32 lanes with a shift and a mask.

pub(crate) mod expand;

use crate::element::{self, Element};
use crate::isa::Isa;

/// Keys per block: the fixed grid of absolute positions that every attention and scoring reduction
/// follows.
pub const KEY_BLOCK: usize = 128;

/// Elements converted at a time when a row is appended (a stack buffer, so appending needs no
/// scratch).
const CONVERT: usize = 64;

/// Shape of one KV head's active K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// D, elements per key or value row; even.
    pub head_dim: usize,
    /// Storage type of K and V.
    pub element: Element,
}

impl KvLayout {
    /// Bytes of one K block, `KEY_BLOCK * D` elements.
    pub fn k_block_bytes(&self) -> usize {
        KEY_BLOCK * self.row_bytes()
    }

    /// Bytes of one V block, `KEY_BLOCK * D` elements.
    pub fn v_block_bytes(&self) -> usize {
        KEY_BLOCK * self.row_bytes()
    }

    /// Bytes of one row-major row of D elements (the form of retained rows).
    pub fn row_bytes(&self) -> usize {
        self.head_dim * self.element.bytes()
    }

    /// Blocks that hold `n_keys` keys.
    pub fn blocks(&self, n_keys: usize) -> usize {
        n_keys.div_ceil(KEY_BLOCK)
    }

    /// Bytes of the K blocks of `n_keys` keys of one head; `None` if they exceed `usize`.
    pub fn k_bytes(&self, n_keys: usize) -> Option<usize> {
        self.blocks(n_keys).checked_mul(KEY_BLOCK)?.checked_mul(self.row_bytes())
    }

    /// Bytes of the V blocks of `n_keys` keys of one head; `None` if they exceed `usize`.
    pub fn v_bytes(&self, n_keys: usize) -> Option<usize> {
        self.k_bytes(n_keys)
    }

    /// Panics unless D is even (16-bit blocks store dims in pairs) and positive.
    pub(crate) fn assert_valid(&self) {
        assert!(
            self.head_dim > 0 && self.head_dim.is_multiple_of(2),
            "head_dim must be even, got {}",
            self.head_dim
        );
    }

    /// Where one key lies inside its K block: a dim pair (16 bit) or a dim (F32) is 4 bytes in both
    /// block forms.
    fn key_units(&self, key: usize) -> Units {
        Units { first: 4 * key, stride: 4 * KEY_BLOCK, bytes: 4 }
    }

    /// Where one value lies inside its V block.
    fn value_units(&self, key: usize) -> Units {
        match self.element.bytes() {
            2 => Units { first: key / 2 * (4 * self.head_dim) + key % 2 * 2, stride: 4, bytes: 2 },
            _ => Units { first: key * self.row_bytes(), stride: 4, bytes: 4 },
        }
    }
}

/// A row scattered inside a block as units of `bytes` (2 or 4) bytes: unit `i` starts at byte
/// `first + i * stride`.
#[derive(Clone, Copy)]
struct Units {
    first: usize,
    stride: usize,
    bytes: usize,
}

impl Units {
    /// Copies part of a row into the block; `at` is the byte of the row where `part` starts, a
    /// multiple of the unit.
    fn scatter(self, block: &mut [u8], at: usize, part: &[u8]) {
        let first = self.first + at / self.bytes * self.stride;
        match self.bytes {
            2 => scatter_units::<2>(&mut block[first..], self.stride, part),
            _ => scatter_units::<4>(&mut block[first..], self.stride, part),
        }
    }

    /// Copies a whole row out of the block.
    fn gather(self, block: &[u8], row: &mut [u8]) {
        match self.bytes {
            2 => gather_units::<2>(&block[self.first..], self.stride, row),
            _ => gather_units::<4>(&block[self.first..], self.stride, row),
        }
    }
}

fn scatter_units<const U: usize>(block: &mut [u8], stride: usize, part: &[u8]) {
    for (unit, to) in part.as_chunks::<U>().0.iter().zip(block.chunks_mut(stride)) {
        to[..U].copy_from_slice(unit);
    }
}

fn gather_units<const U: usize>(block: &[u8], stride: usize, row: &mut [u8]) {
    for (unit, from) in row.as_chunks_mut::<U>().0.iter_mut().zip(block.chunks(stride)) {
        unit.copy_from_slice(&from[..U]);
    }
}

/// Rows to append: row `r` is the D floats at `src[r * stride..]` and becomes the key (or value) at
/// absolute position `first_pos + r`.
#[derive(Clone, Copy)]
pub struct Append<'a> {
    /// Absolute position of row 0.
    pub first_pos: usize,
    /// Number of rows.
    pub rows: usize,
    /// f32 source, `[rows, stride]` of which the first D columns are read.
    pub src: &'a [f32],
    /// Floats from one source row to the next, at least D.
    pub stride: usize,
}

/// Appends post-RoPE keys to one head's K blocks, rounding to nearest even into the layout's
/// element.
///
/// `blocks` covers positions from 0 and starts zeroed; positions that were never appended stay
/// zero.
pub fn append_k(isa: Isa, layout: KvLayout, blocks: &mut [u8], rows: &Append) {
    append(isa, layout, blocks, rows, KvLayout::key_units);
}

/// Appends values to one head's V blocks, rounding to nearest even into the layout's element.
///
/// `blocks` covers positions from 0 and starts zeroed; positions that were never appended stay
/// zero.
pub fn append_v(isa: Isa, layout: KvLayout, blocks: &mut [u8], rows: &Append) {
    append(isa, layout, blocks, rows, KvLayout::value_units);
}

fn append(
    isa: Isa,
    layout: KvLayout,
    blocks: &mut [u8],
    rows: &Append,
    units: fn(&KvLayout, usize) -> Units,
) {
    layout.assert_valid();
    let d = layout.head_dim;
    let block_bytes = KEY_BLOCK * layout.row_bytes();
    let last = rows.first_pos + rows.rows;
    assert!(layout.blocks(last) * block_bytes <= blocks.len(), "blocks too short for {last} keys");
    assert!(rows.stride >= d, "source stride {} below head_dim {d}", rows.stride);
    assert!(
        rows.rows == 0 || (rows.rows - 1) * rows.stride + d <= rows.src.len(),
        "source rows too short"
    );

    let mut buffer = [0u8; CONVERT * 4];
    for r in 0..rows.rows {
        let pos = rows.first_pos + r;
        let block = &mut blocks[pos / KEY_BLOCK * block_bytes..][..block_bytes];
        let to = units(&layout, pos % KEY_BLOCK);
        let src = &rows.src[r * rows.stride..][..d];
        for (i, piece) in src.chunks(CONVERT).enumerate() {
            let converted = &mut buffer[..piece.len() * layout.element.bytes()];
            element::store(isa, layout.element, piece, converted);
            to.scatter(block, i * CONVERT * layout.element.bytes(), converted);
        }
    }
}

/// Copies the keys at `positions` (absolute, any order) out of one head's K blocks.
///
/// `out` is row-major `[positions.len(), D]` of the layout's element; the bits are unchanged.
pub fn gather_k(layout: KvLayout, blocks: &[u8], positions: &[u32], out: &mut [u8]) {
    gather(layout, blocks, positions, out, KvLayout::key_units);
}

/// Copies the values at `positions` (absolute, any order) out of one head's V blocks.
///
/// `out` is row-major `[positions.len(), D]` of the layout's element; the bits are unchanged.
pub fn gather_v(layout: KvLayout, blocks: &[u8], positions: &[u32], out: &mut [u8]) {
    gather(layout, blocks, positions, out, KvLayout::value_units);
}

fn gather(
    layout: KvLayout,
    blocks: &[u8],
    positions: &[u32],
    out: &mut [u8],
    units: fn(&KvLayout, usize) -> Units,
) {
    layout.assert_valid();
    let (row_bytes, block_bytes) = (layout.row_bytes(), KEY_BLOCK * layout.row_bytes());
    assert_eq!(out.len(), positions.len() * row_bytes, "gather output length");
    for (&pos, row) in positions.iter().zip(out.chunks_exact_mut(row_bytes)) {
        let pos = pos as usize;
        let block = &blocks[pos / KEY_BLOCK * block_bytes..][..block_bytes];
        units(&layout, pos % KEY_BLOCK).gather(block, row);
    }
}

#[cfg(test)]
mod tests;
