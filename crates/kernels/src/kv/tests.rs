use super::*;
use half::{bf16, f16};

const ELEMENTS: [Element; 3] = [Element::Bf16, Element::F16, Element::F32];

/// Distinct values that all three elements hold exactly (integers below 256).
fn row_value(pos: usize, dim: usize) -> f32 {
    ((pos * 31 + dim * 7) % 251) as f32
}

fn read(element: Element, bytes: &[u8], index: usize) -> f32 {
    let at = index * element.bytes();
    match element {
        Element::Bf16 => bf16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
        Element::F16 => f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
        Element::F32 => {
            f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        }
    }
}

/// The documented block forms, written out index by index.
fn k_index(layout: KvLayout, key: usize, dim: usize) -> usize {
    match layout.element {
        Element::F32 => dim * KEY_BLOCK + key,
        _ => (dim / 2 * KEY_BLOCK + key) * 2 + dim % 2,
    }
}

fn v_index(layout: KvLayout, key: usize, dim: usize) -> usize {
    match layout.element {
        Element::F32 => key * layout.head_dim + dim,
        _ => (key / 2 * layout.head_dim + dim) * 2 + key % 2,
    }
}

#[test]
fn appended_rows_lie_where_the_layout_says_and_tails_stay_zero() {
    for element in ELEMENTS {
        for (d, n_keys, split) in
            [(2, 5, 2), (64, 130, 127), (80, 256, 1), (128, 129, 128), (66, 3, 0)]
        {
            let layout = KvLayout { head_dim: d, element };
            let stride = d + 3;
            let src: Vec<f32> =
                (0..n_keys).flat_map(|p| (0..stride).map(move |i| row_value(p, i))).collect();
            for isa in Isa::available() {
                let mut k = vec![0u8; layout.k_bytes(n_keys).unwrap()];
                let mut v = vec![0u8; layout.v_bytes(n_keys).unwrap()];
                for (first_pos, rows) in [(0, split), (split, n_keys - split)] {
                    let rows = Append { first_pos, rows, src: &src[first_pos * stride..], stride };
                    append_k(isa, layout, &mut k, &rows);
                    append_v(isa, layout, &mut v, &rows);
                }
                for pos in 0..layout.blocks(n_keys) * KEY_BLOCK {
                    for dim in 0..d {
                        let want = if pos < n_keys { row_value(pos, dim) } else { 0.0 };
                        let block = pos / KEY_BLOCK * KEY_BLOCK * d;
                        let key = pos % KEY_BLOCK;
                        assert_eq!(
                            read(element, &k, block + k_index(layout, key, dim)),
                            want,
                            "K {element:?} {pos} {dim}"
                        );
                        assert_eq!(
                            read(element, &v, block + v_index(layout, key, dim)),
                            want,
                            "V {element:?} {pos} {dim}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn gather_returns_the_stored_bits_in_the_order_asked_for() {
    let isa = Isa::detect();
    for element in ELEMENTS {
        let layout = KvLayout { head_dim: 80, element };
        let n_keys = 300;
        let mut src: Vec<f32> = (0..n_keys * 80).map(|i| (i as f32 * 0.37).sin()).collect();
        src[7 * 80] = f32::NAN;
        src[7 * 80 + 1] = f32::NEG_INFINITY;
        let mut stored = vec![0u8; src.len() * element.bytes()];
        element::store(isa, element, &src, &mut stored);
        let mut k = vec![0u8; layout.k_bytes(n_keys).unwrap()];
        let mut v = vec![0u8; layout.v_bytes(n_keys).unwrap()];
        let rows = Append { first_pos: 0, rows: n_keys, src: &src, stride: 80 };
        append_k(isa, layout, &mut k, &rows);
        append_v(isa, layout, &mut v, &rows);
        let positions = [0, 7, 127, 128, 299, 5];
        let want: Vec<u8> = positions
            .iter()
            .flat_map(|&p| stored[p as usize * layout.row_bytes()..][..layout.row_bytes()].to_vec())
            .collect();
        let mut out = vec![0u8; want.len()];
        gather_k(layout, &k, &positions, &mut out);
        assert!(out == want, "K {element:?}");
        out.fill(0);
        gather_v(layout, &v, &positions, &mut out);
        assert!(out == want, "V {element:?}");
        gather_v(layout, &v, &[], &mut []);
    }
}

#[test]
fn sizes_count_whole_blocks_and_do_not_wrap() {
    let layout = KvLayout { head_dim: 64, element: Element::Bf16 };
    assert_eq!(layout.k_bytes(0), Some(0));
    assert_eq!(layout.k_bytes(1), Some(128 * 64 * 2));
    assert_eq!(layout.v_bytes(129), Some(2 * 128 * 64 * 2));
    assert_eq!(layout.k_bytes(usize::MAX), None);
}

#[test]
#[should_panic(expected = "blocks too short")]
fn appending_beyond_the_blocks_is_refused() {
    let layout = KvLayout { head_dim: 2, element: Element::F32 };
    let mut k = vec![0u8; layout.k_bytes(128).unwrap()];
    let src = [0.0; 4];
    append_k(
        Isa::detect(),
        layout,
        &mut k,
        &Append { first_pos: 127, rows: 2, src: &src, stride: 2 },
    );
}
