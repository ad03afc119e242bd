//! Sliding windows of prefill attention.

use super::*;
use crate::attention::logits::Stack;

/// Smallest, below and at a vector, at and around the key block, and beyond the prompt.
const WINDOWS: [usize; 10] = [1, 2, 16, 127, 128, 129, 130, 200, 300, 5000];
/// Tokens of the prompts: two whole key blocks and a part of a third.
const N: usize = 300;

fn window(keys: usize) -> Option<NonZeroUsize> {
    NonZeroUsize::new(keys)
}

/// Head dims, group sizes and elements, in pairs that meet every value of each.
fn shapes() -> impl Iterator<Item = (KvLayout, usize)> {
    [(64, 7), (80, 3), (96, 2), (128, 1), (256, 3), (8, 40), (16, 1)]
        .into_iter()
        .enumerate()
        .map(|(i, (head_dim, group))| (KvLayout { head_dim, element: ELEMENTS[i % 3] }, group))
}

#[test]
fn the_rows_of_a_key_are_those_whose_windows_hold_it() {
    for (first_pos, group, positions) in [(0, 1, 9), (3, 2, 7), (125, 3, 12), (300, 5, 3)] {
        for keys in [0, 1, 2, 5, 127, 128, 300, usize::MAX] {
            let rows = group * positions;
            let stack = Stack { first_pos, group, rows, window: window(keys) };
            // No window where `keys` is 0.
            let sees = |row: usize, key: usize| {
                let pos = first_pos + row / group;
                key <= pos && (keys == 0 || pos - key < keys)
            };
            for key in 0..first_pos + positions + 2 {
                let seeing = stack.first_seeing(key)..stack.first_past(key);
                for row in 0..rows {
                    assert_eq!(seeing.contains(&row), sees(row, key), "{seeing:?} {row} {key}");
                }
            }
            for row in 0..rows {
                assert!(sees(row, stack.first_key(row)));
                assert!(stack.first_key(row) == 0 || !sees(row, stack.first_key(row) - 1));
                for base in (0..first_pos + positions + KEY_BLOCK).step_by(KEY_BLOCK) {
                    let visible = stack.visible(row, base);
                    assert!(visible.start <= visible.end && visible.end <= KEY_BLOCK);
                    for key in 0..KEY_BLOCK {
                        assert_eq!(visible.contains(&key), sees(row, base + key), "{row} {key}");
                    }
                }
            }
        }
    }
}

#[test]
fn rows_match_the_dense_reference_over_their_window() {
    for on in arithmetics() {
        for (layout, group) in shapes() {
            let d = layout.head_dim;
            let mut head = Head::new(layout, N, d as u64);
            let q = values(91, N * group * d);
            for keys in WINDOWS {
                head.window = window(keys);
                let mut out = q.clone();
                run(on, &head, group, &mut out, (0, N), (group * d, 0));
                for r in 0..N {
                    // One head of each row, another one in each.
                    let at = (r * group + r % group) * d;
                    let (want, bound) = head.dense(&q[at..at + d], r + 1, on.1);
                    let e = excess(&out[at..at + d], &want, bound);
                    assert!(e <= 1.0, "{} {layout:?} G {group} w {keys} row {r}: {e}", name(on));
                }
            }
        }
    }
}

#[test]
fn the_bound_notices_a_window_that_is_one_key_off() {
    let mut head = Head::new(KvLayout { head_dim: 64, element: Element::F32 }, N, 11);
    let q = values(5, 64);
    for keys in [2, 16, 128, 200] {
        for other in [keys - 1, keys + 1] {
            head.window = window(other);
            let wrong: Vec<f32> =
                head.dense(&q, 299, Factors::F32).0.iter().map(|&x| x as f32).collect();
            head.window = window(keys);
            let (want, bound) = head.dense(&q, 299, Factors::F32);
            assert!(excess(&wrong, &want, bound) > 1.0, "{keys} {other}");
        }
    }
}

#[test]
fn a_window_of_one_key_returns_that_value() {
    for on in arithmetics() {
        for (layout, group) in shapes() {
            let d = layout.head_dim;
            let head = Head { window: window(1), ..Head::new(layout, N, 2) };
            let mut q = values(5, N * group * d);
            run(on, &head, group, &mut q, (0, N), (group * d, 0));
            for (row, value) in q.chunks(group * d).zip(head.v_values.chunks(d)) {
                let mut heads = row.chunks(d);
                assert!(heads.all(|head| is_the_value(on.1, head, value)), "{}", name(on));
            }
        }
    }
}

#[test]
fn a_window_of_the_whole_prompt_or_more_changes_no_bit() {
    for on in arithmetics() {
        for (layout, group) in shapes() {
            let d = layout.head_dim;
            let mut head = Head::new(layout, N, 2);
            let q = values(5, N * group * d);
            let mut all = q.clone();
            run(on, &head, group, &mut all, (0, N), (group * d, 0));
            for keys in [N - 1, N, N + 1, usize::MAX] {
                head.window = window(keys);
                let mut out = q.clone();
                run(on, &head, group, &mut out, (0, N), (group * d, 0));
                // The last row alone loses its first key in a window of N - 1.
                let same = if keys < N { (N - 1) * group * d } else { out.len() };
                assert!(same_bits(&out[..same], &all[..same]), "{} {keys}", name(on));
                assert_eq!(same_bits(&out, &all), keys >= N, "{} {keys}", name(on));
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_how_rows_are_split_into_calls() {
    for on in arithmetics() {
        for (layout, group) in shapes() {
            let stride = group * layout.head_dim;
            let mut head = Head::new(layout, N, 7);
            let q = values(3, N * stride);
            for keys in WINDOWS {
                head.window = window(keys);
                let mut whole = q.clone();
                run(on, &head, group, &mut whole, (0, N), (stride, 0));
                for step in [1, 5, 16, 127, 128, 129, 299] {
                    let mut split = q.clone();
                    for first in (0..N).step_by(step) {
                        let rows = (first, step.min(N - first));
                        run(on, &head, group, &mut split, rows, (stride, 0));
                    }
                    assert!(
                        same_bits(&whole, &split),
                        "{} {layout:?} G {group} w {keys} step {step}",
                        name(on)
                    );
                }
            }
        }
    }
}

#[test]
fn bits_of_a_head_do_not_depend_on_its_group() {
    let d = 16;
    for on in arithmetics() {
        for keys in WINDOWS {
            let layout = KvLayout { head_dim: d, element: Element::Bf16 };
            let head = Head { window: window(keys), ..Head::new(layout, N, 21) };
            let q = values(8, N * 7 * d);
            let mut together = q.clone();
            run(on, &head, 7, &mut together, (0, N), (7 * d, 0));
            let mut alone = q.clone();
            for g in 0..7 {
                run(on, &head, 1, &mut alone, (0, N), (7 * d, g * d));
            }
            assert!(same_bits(&together, &alone), "{} {keys}", name(on));
        }
    }
}

/// One key at a time: the rows whose window holds it notice, the others keep their bits.
#[test]
fn a_poisoned_key_is_seen_by_the_rows_of_its_window_only() {
    let (d, group) = (16, 3);
    for on in arithmetics() {
        for (i, keys) in WINDOWS.into_iter().enumerate() {
            let layout = KvLayout { head_dim: d, element: ELEMENTS[i % 3] };
            let (k, v) = (values(77, N * d), values(78, N * d));
            let q = values(79, N * group * d);
            let clean = Head { window: window(keys), ..Head::of(layout, N, &k, &v) };
            let mut want = q.clone();
            run(on, &clean, group, &mut want, (0, N), (group * d, 0));
            for at in [0, 1, 5, 127, 128, 200, 299] {
                for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let (mut bad_k, mut bad_v) = (k.clone(), v.clone());
                    bad_k[at * d..][..d].fill(poison);
                    bad_v[at * d..][..d].fill(poison);
                    for (k, v) in [(&bad_k, &v), (&k, &bad_v)] {
                        let head = Head { window: window(keys), ..Head::of(layout, N, k, v) };
                        let mut out = q.clone();
                        run(on, &head, group, &mut out, (0, N), (group * d, 0));
                        let rows = out.chunks(group * d).zip(want.chunks(group * d));
                        for (row, (got, want)) in rows.enumerate() {
                            let name = format!("{} w {keys} key {at} row {row}", name(on));
                            if row >= at && row - at < keys {
                                let mut heads = got.chunks(d);
                                assert!(
                                    heads.all(|h| h.iter().any(|x| !x.is_finite())),
                                    "{name}: {poison} lost"
                                );
                            } else {
                                assert!(same_bits(got, want), "{name}: {poison} seen");
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Everything that one row does not see, before its window and behind it, is poison at once.
#[test]
fn what_lies_on_either_side_of_a_window_has_no_effect() {
    let (d, group) = (16, 2);
    for on in arithmetics() {
        for (i, keys) in WINDOWS.into_iter().enumerate() {
            let layout = KvLayout { head_dim: d, element: ELEMENTS[i % 3] };
            let (k, v) = (values(177, N * d), values(178, N * d));
            let q = values(179, N * group * d);
            let clean = Head { window: window(keys), ..Head::of(layout, N, &k, &v) };
            let mut want = q.clone();
            run(on, &clean, group, &mut want, (0, N), (group * d, 0));
            for row in [0, 1, 15, 127, 128, 143, 144, 255, 256, 270, 299] {
                let visible = (row + 1usize).saturating_sub(keys) * d..(row + 1) * d;
                let hide = |clean: &[f32]| {
                    let mut hidden = vec![f32::NAN; clean.len()];
                    hidden[visible.clone()].copy_from_slice(&clean[visible.clone()]);
                    hidden
                };
                let poisoned = Head::of(layout, N, &hide(&k), &hide(&v));
                let head = Head { window: window(keys), ..poisoned };
                let mut out = q.clone();
                run(on, &head, group, &mut out, (0, N), (group * d, 0));
                let of_row = row * group * d..(row + 1) * group * d;
                assert!(
                    same_bits(&out[of_row.clone()], &want[of_row]),
                    "{} w {keys} row {row}",
                    name(on)
                );
            }
        }
    }
}
