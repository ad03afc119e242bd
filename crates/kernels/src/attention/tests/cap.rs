//! Soft-capped logits in prefill and decode.

use super::*;

/// A cap below the logits, which saturates, one among them, and Gemma 2's.
const CAPS: [f32; 3] = [0.25, 2.0, 50.0];

fn capped(layout: KvLayout, n: usize, cap: f32) -> Head {
    Head { softcap: Some(cap), ..Head::new(layout, n, 61) }
}

#[test]
fn prefill_matches_the_dense_reference_in_every_window() {
    let n = 300;
    for on in arithmetics() {
        for (i, (d, group)) in
            [(64, 7), (80, 3), (96, 2), (128, 1), (256, 1)].into_iter().enumerate()
        {
            for cap in CAPS {
                let layout = KvLayout { head_dim: d, element: ELEMENTS[i % 3] };
                let mut head = capped(layout, n, cap);
                let q = values(17, n * group * d);
                for keys in [0, 1, 16, 129] {
                    head.window = NonZeroUsize::new(keys);
                    let mut out = q.clone();
                    run(on, &head, group, &mut out, (0, n), (group * d, 0));
                    for r in 0..n {
                        let at = (r * group + r % group) * d;
                        let (want, bound) = head.dense(&q[at..at + d], r + 1, on.1);
                        let e = excess(&out[at..at + d], &want, bound);
                        assert!(e <= 1.0, "{} D {d} cap {cap} w {keys} row {r}: {e}", name(on));
                    }
                }
            }
        }
    }
}

#[test]
fn decode_matches_the_dense_reference() {
    let n = 300;
    for isa in Isa::available() {
        for (i, (d, group)) in [(2, 1), (64, 7), (80, 2), (256, 3)].into_iter().enumerate() {
            for cap in CAPS {
                let head = capped(KvLayout { head_dim: d, element: ELEMENTS[i % 3] }, n, cap);
                let q = values(18, group * d);
                let mut out = q.clone();
                run_one(isa, &head, &mut out, &[(0, 130), (130, 170)]);
                for (q, out) in q.chunks(d).zip(out.chunks(d)) {
                    let (want, bound) = head.dense(q, n, Factors::F32);
                    // Two segments end in a short block each: up to twice the blocks.
                    let e = excess(out, &want, 2.0 * bound);
                    assert!(e <= 1.0, "{} D {d} cap {cap}: {e}", isa.name());
                }
            }
        }
    }
}

#[test]
fn the_bound_notices_a_cap_that_is_missing_or_applied_before_the_scale() {
    let layout = KvLayout { head_dim: 64, element: Element::F32 };
    let q = values(5, 64);
    for cap in [0.25, 2.0] {
        let (want, bound) = capped(layout, 300, cap).dense(&q, 300, Factors::F32);
        let uncapped = Head::new(layout, 300, 61);
        let before = capped(layout, 300, cap * uncapped.scale());
        for wrong in [uncapped, before] {
            let wrong: Vec<f32> =
                wrong.dense(&q, 300, Factors::F32).0.iter().map(|&x| x as f32).collect();
            assert!(excess(&wrong, &want, bound) > 1.0, "{cap}");
        }
    }
}

#[test]
fn bits_do_not_depend_on_how_rows_are_split_into_calls() {
    let (n, d, group) = (260, 16, 3);
    for on in arithmetics() {
        for keys in [0, 16, 129] {
            let layout = KvLayout { head_dim: d, element: Element::Bf16 };
            let head = Head { window: NonZeroUsize::new(keys), ..capped(layout, n, 0.5) };
            let q = values(3, n * group * d);
            let mut whole = q.clone();
            run(on, &head, group, &mut whole, (0, n), (group * d, 0));
            for step in [1, 5, 127, 128, 129] {
                let mut split = q.clone();
                for first in (0..n).step_by(step) {
                    let rows = (first, step.min(n - first));
                    run(on, &head, group, &mut split, rows, (group * d, 0));
                }
                assert!(same_bits(&whole, &split), "{} w {keys} step {step}", name(on));
            }
        }
    }
}

#[test]
fn nan_passes_a_cap_and_a_hidden_one_stays_hidden() {
    let (n, d) = (200, 8);
    for on in arithmetics() {
        let layout = KvLayout { head_dim: d, element: Element::Bf16 };
        let mut k = values(4, n * d);
        k[150 * d + 3] = f32::NAN;
        let head = Head::of(layout, n, &k, &values(5, n * d));
        let head = Head { window: NonZeroUsize::new(20), softcap: Some(2.0), ..head };
        let mut q = values(6, n * d);
        run(on, &head, 1, &mut q, (0, n), (d, 0));
        for (r, row) in q.chunks(d).enumerate() {
            let seen = (150..170).contains(&r);
            assert_eq!(row.iter().all(|x| x.is_nan()), seen, "{} row {r}", name(on));
            assert_eq!(row.iter().all(|x| x.is_finite()), !seen, "{} row {r}", name(on));
        }
        let mut one = values(7, d);
        run_one(on.0, &head, &mut one, &[(100, 100)]);
        assert!(one.iter().all(|x| x.is_nan()), "{}", name(on));
    }
}

#[test]
fn output_logits_are_capped_in_place() {
    for isa in Isa::available() {
        for n in [0, 1, 7, 8, 9, 40] {
            let logits: Vec<f32> = values(9, n).iter().map(|x| x * 40.0).collect();
            let mut got = logits.clone();
            soft_cap(isa, 30.0, &mut got);
            for (got, l) in got.into_iter().zip(logits) {
                let want = 30.0 * (f64::from(l) / 30.0).tanh();
                assert_close(isa.name(), got, want, 4.0 * 30.0 * U);
            }
        }
    }
}

#[test]
fn caps_that_are_not_finite_and_positive_are_refused() {
    let head = Head::new(KvLayout { head_dim: 8, element: Element::F32 }, 3, 1);
    for cap in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let refused = std::panic::catch_unwind(|| {
            let attend = AttendOne {
                layout: head.layout,
                scale: 1.0,
                softcap: Some(cap),
                segments: &[DecodeSegment { k: &head.k_rows, v: &head.v_rows, rows: 3 }],
            };
            let mut scratch = vec![0.0; attend_one_scratch_len(head.layout, 1)];
            attend_one(Isa::detect(), &attend, &mut [1.0; 8], &mut scratch);
        });
        assert!(refused.is_err(), "{cap}");
        assert!(std::panic::catch_unwind(|| soft_cap(Isa::detect(), cap, &mut [])).is_err());
    }
}
