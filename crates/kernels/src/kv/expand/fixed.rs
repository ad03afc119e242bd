//! Expansion of one active K or V block to panels of [`crate::fixed`].
//!
//! A scale may depend on nothing but what a single key holds: keys of a block come in one after the
//! other, and a row must not notice which of them are there. So a key's dims share scales, in K as
//! columns of the product's right operand; in V, where keys are what the product sums over, the
//! scale of a value goes to the weight that it is multiplied by.

use super::{Padded, load_f32, load_pairs};
use crate::element::Element;
use crate::fixed::{self, BLOCK, Largest, Q_WEIGHTS, Scale};
use crate::kv::{KEY_BLOCK, KvLayout};
use crate::lanes::{Lanes, MAX_LANES};
use crate::tile;

/// Words of one column of V: two fixed-point blocks of keys.
const COLUMN: usize = fixed::row_len(KEY_BLOCK);
/// Keys whose values share words: the first and second half of a fixed-point block.
const HALF: usize = BLOCK / 2;
const _: () = assert!(KEY_BLOCK.is_multiple_of(BLOCK));

/// Expands at least the first `keys` keys of a K block: panel `p` is the right operand of Q·K for
/// keys `p * width..`, [`fixed::row_len`] of D rows of [`tile::width`] words.
#[inline(always)]
pub(crate) fn expand_k<L: Lanes>(
    lanes: L,
    layout: KvLayout,
    block: &[u8],
    keys: usize,
    panels: &mut [f32],
) {
    let (d, width) = (layout.head_dim, tile::width::<L>());
    let panel_len = fixed::row_len(d) * width;
    assert!(panels.len() >= KEY_BLOCK / width * panel_len);
    assert!(block.len() == layout.k_block_bytes() && keys <= KEY_BLOCK);
    // One dim (F32) or dim pair (16 bit) of all keys is 4 KEY_BLOCK bytes.
    let row_dims = 4 / layout.element.bytes();
    let mut columns = [0.0; BLOCK * MAX_LANES];
    for key in (0..keys).step_by(L::N) {
        let panel = &mut panels[key / width * panel_len + key % width..];
        for first in (0..d).step_by(BLOCK) {
            let columns = &mut columns[..BLOCK.min(d - first) * L::N];
            let rows = block[first / row_dims * 4 * KEY_BLOCK..].chunks_exact(4 * KEY_BLOCK);
            for (to, row) in columns.chunks_exact_mut(row_dims * L::N).zip(rows) {
                match layout.element {
                    Element::F32 => lanes.store(load_f32(lanes, &row[4 * key..]), to),
                    element => {
                        let (even, odd) = load_pairs(lanes, element, &row[4 * key..]);
                        lanes.store(even, to);
                        lanes.store(odd, &mut to[L::N..]);
                    }
                }
            }
            fixed::fix_columns(lanes, columns, &mut panel[fixed::row_len(first) * width..]);
        }
    }
}

/// Expands a V block: panel `p` is the right operand of P·V for dims `p * width..`, two blocks of
/// keys, zero beyond D. A value is its integer times the scale of its key, which goes to `scales`,
/// `[KEY_BLOCK]`; the panels' own scales are 1.
#[inline(always)]
pub(crate) fn expand_v<L: Lanes>(
    lanes: L,
    layout: KvLayout,
    block: &[u8],
    panels: &mut [f32],
    scales: &mut [f32],
) {
    let (d, width) = (layout.head_dim, tile::width::<L>());
    let padded = d.next_multiple_of(width);
    assert!(panels.len() >= padded * COLUMN && scales.len() >= KEY_BLOCK);
    assert!(block.len() == layout.v_block_bytes());
    let values = Values { layout, block };
    let mut inverses = [0.0; KEY_BLOCK];
    for first in (0..KEY_BLOCK).step_by(L::N) {
        let Scale { scale, inverse } = values.scale_of_keys(lanes, first);
        lanes.store(scale, &mut scales[first..]);
        lanes.store(inverse, &mut inverses[first..]);
    }
    let one = lanes.splat(1.0);
    for dim in (0..padded).step_by(L::N) {
        let panel = &mut panels[dim / width * width * COLUMN + dim % width..];
        for first in (0..KEY_BLOCK).step_by(BLOCK) {
            let panel = &mut panel[fixed::row_len(first) * width..];
            lanes.store(one, panel);
            for word in (0..HALF).step_by(2) {
                let low = values.two_keys(lanes, first + word, dim);
                let high = values.two_keys(lanes, first + word + HALF, dim);
                for i in 0..2 {
                    let key = first + word + i;
                    let low = lanes.mul(low[i], lanes.splat(inverses[key]));
                    let high = lanes.mul(high[i], lanes.splat(inverses[key + HALF]));
                    let pair = fixed::pair(lanes, low, high);
                    lanes.store(lanes.of_bits(pair), &mut panel[(1 + word + i) * width..]);
                }
            }
        }
    }
}

/// A V block, read by keys.
#[derive(Clone, Copy)]
struct Values<'a> {
    layout: KvLayout,
    block: &'a [u8],
}

impl Values<'_> {
    /// Dims `dim..dim + N` of keys `key` (even) and `key + 1`, zero beyond D.
    #[inline(always)]
    fn two_keys<L: Lanes>(&self, lanes: L, key: usize, dim: usize) -> [L::V; 2] {
        match self.layout.element {
            Element::F32 => {
                let first = self.units::<L>(key, dim);
                let second = self.units::<L>(key + 1, dim);
                [load_f32(lanes, first.bytes()), load_f32(lanes, second.bytes())]
            }
            element => {
                let pairs = self.units::<L>(key / 2, dim);
                let (even, odd) = load_pairs(lanes, element, pairs.bytes());
                [even, odd]
            }
        }
    }

    /// Dims `dim..dim + N` of a row of the block, which holds a key (F32) or two (16 bit): 4 bytes
    /// a dim, zeros beyond D.
    #[inline(always)]
    fn units<L: Lanes>(&self, row: usize, dim: usize) -> Padded<'_> {
        let d = self.layout.head_dim;
        let row = &self.block[row * 4 * d..][..4 * d];
        Padded::new(row, 4 * dim, 4 * d.saturating_sub(dim).min(L::N), 4 * L::N)
    }

    /// The scales of N keys from `first` on, a key in a lane.
    #[inline(always)]
    fn scale_of_keys<L: Lanes>(&self, lanes: L, first: usize) -> Scale<L> {
        let mut by_key = [0.0; MAX_LANES * MAX_LANES];
        for key in (0..L::N).step_by(2) {
            let mut largest = [Largest::new(lanes), Largest::new(lanes)];
            for dim in (0..self.layout.head_dim).step_by(L::N) {
                let values = self.two_keys(lanes, first + key, dim);
                largest[0].see(lanes, values[0]);
                largest[1].see(lanes, values[1]);
            }
            for (i, largest) in largest.iter().enumerate() {
                lanes.store(largest.magnitude(lanes), &mut by_key[(key + i) * L::N..]);
            }
        }
        let mut by_lane = [0.0; MAX_LANES * MAX_LANES];
        lanes.transpose(&by_key, L::N, &mut by_lane, L::N);
        let mut largest = Largest::new(lanes);
        for lane in by_lane.chunks_exact(L::N).take(L::N) {
            largest.see(lanes, lanes.load(lane));
        }
        largest.scale(lanes, Q_WEIGHTS)
    }
}
