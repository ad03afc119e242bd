//! One bit of each of 32 elements in a word, as `Q5_0` and `Q5_1` store their fifth bits.

use crate::lanes::{Lanes, MAX_LANES};

/// `lower`, plus in lane i `value` if bit i of `word` is set, for the `units` of that value.
///
/// All bits are tested at once: bit i alone, as a number, is `2^i`, and `units` scales it to the
/// value. The integers are small and the units powers of two, so that nothing rounds.
#[inline(always)]
pub(super) fn add_where_set<L: Lanes>(
    lanes: L,
    lower: L::I,
    word: L::I,
    units: &[f32; MAX_LANES],
) -> L::V {
    let bits = lanes.and(word, lanes.to_bits(lanes.load(&LANE_BIT)));
    lanes.fma(lanes.to_f32(bits), lanes.load(units), lanes.to_f32(lower))
}

/// What times `2^i` is `value`, in each lane i, for a power of two `value`.
pub(super) const fn units(value: f32) -> [f32; MAX_LANES] {
    let mut units = [0.0; MAX_LANES];
    let mut lane = 0;
    while lane < MAX_LANES {
        units[lane] = value / (1 << lane) as f32;
        lane += 1;
    }
    units
}

/// An integer with bit i set in lane i, in the guise of a float, which is what can be loaded.
const LANE_BIT: [f32; MAX_LANES] = {
    let mut bits = [0.0; MAX_LANES];
    let mut lane = 0;
    while lane < MAX_LANES {
        bits[lane] = f32::from_bits(1 << lane);
        lane += 1;
    }
    bits
};
