mod cap;
mod window;

use super::*;
use crate::element::{self, Element};
use crate::isa::{Isa, Tier};
use crate::kv::{Append, KEY_BLOCK, KvLayout, append_k, append_v};
use crate::test_data::{Random, assert_close};

const ELEMENTS: [Element; 3] = [Element::Bf16, Element::F16, Element::F32];
/// Unit roundoff of f32.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// `n` seeded values of variance 1.
fn values(seed: u64, n: usize) -> Vec<f32> {
    Random::new(seed).uniform(n, 1.732)
}

/// One KV head: stored blocks, the same rows row-major, and what the stored bits mean in f32.
struct Head {
    layout: KvLayout,
    k: Vec<u8>,
    v: Vec<u8>,
    k_rows: Vec<u8>,
    v_rows: Vec<u8>,
    k_values: Vec<f32>,
    v_values: Vec<f32>,
    window: Option<NonZeroUsize>,
    softcap: Option<f32>,
}

impl Head {
    fn new(layout: KvLayout, n_keys: usize, seed: u64) -> Head {
        let n = n_keys * layout.head_dim;
        Head::of(layout, n_keys, &values(seed, n), &values(seed + 1, n))
    }

    fn of(layout: KvLayout, n_keys: usize, k: &[f32], v: &[f32]) -> Head {
        let isa = Isa::detect();
        let stored = |src: &[f32]| {
            let mut bytes = vec![0u8; src.len() * layout.element.bytes()];
            element::store(isa, layout.element, src, &mut bytes);
            let mut values = vec![0.0; src.len()];
            element::load(isa, layout.element, &bytes, &mut values);
            (bytes, values)
        };
        let (k_rows, k_values) = stored(k);
        let (v_rows, v_values) = stored(v);
        let mut head = Head {
            layout,
            k: vec![0; layout.k_bytes(n_keys).unwrap()],
            v: vec![0; layout.v_bytes(n_keys).unwrap()],
            k_rows,
            v_rows,
            k_values,
            v_values,
            window: None,
            softcap: None,
        };
        let rows = |src| Append { first_pos: 0, rows: n_keys, src, stride: layout.head_dim };
        append_k(isa, layout, &mut head.k, &rows(k));
        append_v(isa, layout, &mut head.v, &rows(v));
        head
    }

    fn scale(&self) -> f32 {
        1.0 / (self.layout.head_dim as f32).sqrt()
    }

    /// Dense float64 attention of one query row over keys `0..visible`, or those of them in the
    /// window, and the error bound of the f32 kernels.
    ///
    /// A logit is a chain of D rounded steps on a rounded `scale * q`: error at most (2D + 2) u
    /// scale sum|q k| (two roundings a step without FMA). A weight then carries twice that (its own
    /// logit and the common maximum), one rounding of `s - m` for each logit and each maximum (span
    /// u), the 3 ulp of exp, and per key block one rounded rescale (3 ulp of alpha, two products).
    /// Numerator and denominator are sums of n weights: (2n) u each. The output is an average of
    /// the values, so its error is that sum of relative errors times the largest |v|. A soft-cap c
    /// does not stretch the error of a logit and adds its own, at most 4 c u. What fixed point adds:
    /// [`Head::fixed_bound`].
    fn dense(&self, q: &[f32], visible: usize, factors: Factors) -> (Vec<f64>, f64) {
        let d = self.layout.head_dim;
        let scale = self.scale() as f64;
        let products = |i: usize| {
            q.iter().zip(&self.k_values[i * d..][..d]).map(|(&a, &b)| a as f64 * b as f64)
        };
        let keys = self.window.map_or(0, |w| visible.saturating_sub(w.get()))..visible;
        let cap = self.softcap.map(f64::from);
        let logits: Vec<f64> = keys
            .clone()
            .map(|i| scale * products(i).sum::<f64>())
            .map(|l| cap.map_or(l, |cap| cap * (l / cap).tanh()))
            .collect();
        let magnitude = keys
            .clone()
            .map(|i| scale * products(i).map(f64::abs).sum::<f64>())
            .fold(0.0, f64::max);
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let span = 2.0 * logits.iter().map(|l| l.abs()).fold(0.0, f64::max);
        let weights: Vec<f64> = logits.iter().map(|l| (l - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let out = (0..d)
            .map(|j| {
                weights
                    .iter()
                    .zip(keys.clone())
                    .map(|(w, i)| w * self.v_values[i * d + j] as f64)
                    .sum::<f64>()
                    / sum
            })
            .collect();
        let largest = self.v_values[keys.start * d..keys.end * d]
            .iter()
            .map(|v| v.abs() as f64)
            .fold(0.0, f64::max);
        let blocks = (keys.end.div_ceil(KEY_BLOCK) - keys.start / KEY_BLOCK) as f64;
        let relative = 2.0 * U * ((2 * d + 2) as f64 * magnitude + 4.0 * cap.unwrap_or(0.0))
            + U * (2.0 * span + 4.0 * keys.len() as f64 + 2.0 * blocks * (8.0 + span) + 16.0);
        let fixed = match factors {
            Factors::F32 => 0.0,
            Factors::Fixed => self.fixed_bound(q, keys, &weights) * largest,
        };
        (out, relative * largest + fixed)
    }

    /// Relative error that fixed point adds, for weights of `keys` that are at most 1.
    ///
    /// Each element of a block is off by at most half a step: of q by its block's largest over 2 *
    /// 8191, of k by its key's over 2 * 4095. With e the error of a logit, a weight and the sum of
    /// weights are off by a factor of at most exp(e), so the average of the values by 2 (exp(e) - 1)
    /// of the largest. A value is off by its key's largest over 2 * 4095; a weight times its value's
    /// scale by its block's largest over 2 * 8191, and counts up to 4095 times: at most the largest
    /// weight of the block times the largest value over 4 * 4095.5, for each of its 64 keys. A
    /// hundredth more covers products of errors and the rounding of the scales.
    fn fixed_bound(&self, q: &[f32], keys: std::ops::Range<usize>, weights: &[f64]) -> f64 {
        const BLOCK: usize = crate::fixed::BLOCK;
        let (d, scale) = (self.layout.head_dim, self.scale() as f64);
        let largest = |x: &[f32]| x.iter().map(|x| x.abs() as f64).fold(0.0, f64::max);
        let logit = |key: usize| {
            let k = &self.k_values[key * d..][..d];
            let of_block = |(q, k): (&[f32], &[f32])| {
                let (q_step, k_step) = (largest(q) / 16_382.0, largest(k) / 8190.0);
                let terms = q.iter().zip(k).map(|(q, k)| {
                    q.abs() as f64 * k_step + k.abs() as f64 * q_step + q_step * k_step
                });
                terms.sum::<f64>()
            };
            scale * q.chunks(BLOCK).zip(k.chunks(BLOCK)).map(of_block).sum::<f64>()
        };
        let logit = keys.clone().map(logit).fold(0.0, f64::max);
        let blocks = keys.start / BLOCK..keys.end.div_ceil(BLOCK);
        let of_block = |block: usize| {
            let seen = (block * BLOCK).max(keys.start)..((block + 1) * BLOCK).min(keys.end);
            let seen = seen.start - keys.start..seen.end - keys.start;
            seen.len() as f64 * weights[seen].iter().copied().fold(0.0, f64::max)
        };
        let steps: f64 = blocks.map(of_block).sum();
        let sum: f64 = weights.iter().sum();
        1.01 * (2.0 * logit.exp_m1() + 1.0 / 8190.0 + steps / sum / 16_382.0)
    }
}

/// Largest error of `got` as a multiple of `bound`; NaN counts as infinite.
fn excess(got: &[f32], want: &[f64], bound: f64) -> f64 {
    assert_eq!(got.len(), want.len());
    got.iter()
        .zip(want)
        .map(|(&g, &w)| (g as f64 - w).abs() / bound)
        .fold(0.0, |worst: f64, e| if e.is_nan() { f64::INFINITY } else { worst.max(e) })
}

#[test]
fn the_comparison_rejects_what_is_just_outside_and_nan() {
    assert!(excess(&[1.0, 2.0], &[1.0, 2.0009], 1e-3) <= 1.0);
    assert!(excess(&[1.0, 2.0], &[1.0, 2.0011], 1e-3) > 1.0);
    assert!(excess(&[1.0, f32::NAN], &[1.0, 2.0], 1e-3) > 1.0);
}

#[test]
fn the_bound_notices_one_key_too_many_or_too_few() {
    let head = Head::new(KvLayout { head_dim: 64, element: Element::F32 }, 300, 11);
    let q = values(5, 64);
    // The bound of fixed point adds half steps as if all had one sign: it tells few keys apart.
    let noticed = [(Factors::F32, [2, 128, 129, 299]), (Factors::Fixed, [2, 5, 9, 17])];
    for (factors, visible) in noticed {
        for visible in visible {
            let (want, bound) = head.dense(&q, visible, factors);
            for other in [visible - 1, visible + 1] {
                let (wrong, _) = head.dense(&q, other, factors);
                let wrong: Vec<f32> = wrong.iter().map(|&x| x as f32).collect();
                assert!(excess(&wrong, &want, bound) > 1.0, "{factors:?} {visible} {other}");
            }
        }
    }
}

/// Every tier with both forms of factors.
fn arithmetics() -> Vec<(Isa, Factors)> {
    let both = |isa| [Factors::F32, Factors::Fixed].map(|factors| (isa, factors));
    Isa::available().into_iter().flat_map(both).collect()
}

fn name((isa, factors): (Isa, Factors)) -> String {
    format!("{} {factors:?}", isa.name())
}

/// Runs rows `first_pos..first_pos + rows` of the whole query matrix `q` ([n, stride]) in place.
fn run(
    (isa, factors): (Isa, Factors),
    head: &Head,
    group: usize,
    q: &mut [f32],
    (first_pos, rows): (usize, usize),
    (stride, col): (usize, usize),
) {
    let attend_rows = Attend {
        factors,
        layout: head.layout,
        group,
        k: &head.k,
        v: &head.v,
        first_pos,
        rows,
        scale: head.scale(),
        window: head.window,
        softcap: head.softcap,
        q_stride: stride,
        col,
    };
    let mut scratch = vec![f32::NAN; attend_scratch_len(isa, head.layout, rows, group)];
    attend(isa, &attend_rows, &mut q[first_pos * stride..][..rows * stride], &mut scratch);
}

/// Whether an output that has one key is its value: the same bits, or within half a step.
fn is_the_value(factors: Factors, out: &[f32], value: &[f32]) -> bool {
    let largest = value.iter().map(|x| x.abs()).fold(0.0, f32::max);
    match factors {
        Factors::F32 => same_bits(out, value),
        Factors::Fixed => {
            let mut pairs = out.iter().zip(value);
            pairs.all(|(x, y)| (x - y).abs() <= 1.01 * largest / 8190.0)
        }
    }
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.to_bits() == y.to_bits())
}

#[test]
fn rows_match_the_dense_reference_and_other_columns_stay() {
    for on in arithmetics() {
        for element in ELEMENTS {
            for (d, group, n) in [
                (2, 1, 130),
                (8, 3, 300),
                (16, 2, 257),
                (64, 7, 300),
                (80, 3, 140),
                (128, 1, 260),
                (64, 40, 9),
            ] {
                let head = Head::new(KvLayout { head_dim: d, element }, n, (d * n) as u64);
                let (stride, col) = (group * d + 5, 3);
                let q = values(99, n * stride);
                let mut out = q.clone();
                run(on, &head, group, &mut out, (0, n), (stride, col));
                for r in 0..n {
                    for c in (0..col).chain(col + group * d..stride) {
                        assert_eq!(out[r * stride + c].to_bits(), q[r * stride + c].to_bits());
                    }
                    for g in 0..group {
                        let at = r * stride + col + g * d;
                        let (want, bound) = head.dense(&q[at..at + d], r + 1, on.1);
                        let e = excess(&out[at..at + d], &want, bound);
                        assert!(
                            e <= 1.0,
                            "{} {element:?} D {d} G {group} row {r} head {g}: {e}",
                            name(on)
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_how_rows_are_split_into_calls() {
    let n = 300;
    for on in arithmetics() {
        for (i, d) in [2, 8, 16, 64, 80, 128].into_iter().enumerate() {
            for (j, group) in [1, 2, 3, 7].into_iter().enumerate() {
                let element = ELEMENTS[(i + j) % 3];
                let head = Head::new(KvLayout { head_dim: d, element }, n, 7 + d as u64);
                let stride = group * d;
                let q = values(3 + group as u64, n * stride);
                let mut whole = q.clone();
                run(on, &head, group, &mut whole, (0, n), (stride, 0));
                for step in [1, 2, 5, 16, 127, 128, 129, 299] {
                    let mut split = q.clone();
                    for first in (0..n).step_by(step) {
                        run(
                            on,
                            &head,
                            group,
                            &mut split,
                            (first, step.min(n - first)),
                            (stride, 0),
                        );
                    }
                    assert!(
                        same_bits(&whole, &split),
                        "{} {element:?} D {d} G {group} step {step}",
                        name(on)
                    );
                }
                for cut in (1..n).step_by(if on.0.tier() == Tier::Portable { 61 } else { 7 }) {
                    let mut split = q.clone();
                    run(on, &head, group, &mut split, (0, cut), (stride, 0));
                    run(on, &head, group, &mut split, (cut, n - cut), (stride, 0));
                    assert!(
                        same_bits(&whole, &split),
                        "{} {element:?} D {d} G {group} cut {cut}",
                        name(on)
                    );
                }
            }
        }
    }
}

#[test]
fn bits_of_a_head_do_not_depend_on_its_group() {
    let (n, d) = (150, 16);
    for on in arithmetics() {
        let head = Head::new(KvLayout { head_dim: d, element: Element::Bf16 }, n, 21);
        let q = values(8, n * 7 * d);
        let mut together = q.clone();
        run(on, &head, 7, &mut together, (0, n), (7 * d, 0));
        let mut alone = q.clone();
        for g in 0..7 {
            run(on, &head, 1, &mut alone, (0, n), (7 * d, g * d));
        }
        assert!(same_bits(&together, &alone), "{}", name(on));
    }
}

#[test]
fn what_lies_in_the_future_is_never_read() {
    let (n, d, group) = (300, 16, 3);
    for on in arithmetics() {
        for element in ELEMENTS {
            let layout = KvLayout { head_dim: d, element };
            let (k, v, q) = (values(77, n * d), values(78, n * d), values(79, n * group * d));
            let clean = Head::of(layout, n, &k, &v);
            let mut want = q.clone();
            run(on, &clean, group, &mut want, (0, n), (group * d, 0));
            for poisoned in [1, 5, 127, 128, 200, 299] {
                for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let (mut bad_k, mut bad_v) = (k.clone(), v.clone());
                    bad_k[poisoned * d..].fill(poison);
                    bad_v[poisoned * d..].fill(poison);
                    for (k, v) in [(&bad_k, &v), (&k, &bad_v)] {
                        let head = Head::of(layout, n, k, v);
                        let mut out = q.clone();
                        run(on, &head, group, &mut out, (0, n), (group * d, 0));
                        let (past, future) = out.split_at(poisoned * group * d);
                        assert!(
                            same_bits(past, &want[..past.len()]),
                            "{} {element:?} {poisoned} {poison}",
                            name(on)
                        );
                        assert!(
                            future.chunks(d).all(|row| row.iter().any(|x| !x.is_finite())),
                            "poison lost"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_nan_in_a_query_or_a_visible_key_reaches_the_output() {
    let (n, d) = (200, 8);
    for on in arithmetics() {
        let layout = KvLayout { head_dim: d, element: Element::Bf16 };
        let head = Head::new(layout, n, 4);
        let mut q = values(6, n * d);
        q[150 * d + 3] = f32::NAN;
        run(on, &head, 1, &mut q, (0, n), (d, 0));
        for r in 0..n {
            assert_eq!(
                q[r * d..][..d].iter().all(|x| x.is_nan()),
                r == 150,
                "{} row {r}",
                name(on)
            );
        }
    }
}

#[test]
fn extreme_logits_stay_finite() {
    let (n, d) = (260, 8);
    for on in arithmetics() {
        let layout = KvLayout { head_dim: d, element: Element::F32 };
        let k: Vec<f32> = values(12, n * d).iter().map(|x| x * 300.0).collect();
        let v = values(13, n * d);
        let head = Head::of(layout, n, &k, &v);
        let q: Vec<f32> = values(14, n * d).iter().map(|x| x * 300.0).collect();
        let mut out = q.clone();
        run(on, &head, 1, &mut out, (0, n), (d, 0));
        assert!(out.iter().all(|x| x.is_finite()), "{}", name(on));
        assert!(is_the_value(on.1, &out[..d], &v[..d]), "one key: its value");
    }
}

fn run_one(isa: Isa, head: &Head, q: &mut [f32], segments: &[(usize, usize)]) {
    let row = head.layout.row_bytes();
    let segments: Vec<DecodeSegment> = segments
        .iter()
        .map(|&(from, rows)| DecodeSegment {
            k: &head.k_rows[from * row..][..rows * row],
            v: &head.v_rows[from * row..][..rows * row],
            rows,
        })
        .collect();
    let mut scratch =
        vec![f32::NAN; attend_one_scratch_len(head.layout, q.len() / head.layout.head_dim)];
    let (layout, scale, softcap) = (head.layout, head.scale(), head.softcap);
    let attend = AttendOne { layout, scale, softcap, segments: &segments };
    attend_one(isa, &attend, q, &mut scratch);
}

#[test]
fn decode_matches_the_dense_reference_over_any_segments() {
    for isa in Isa::available() {
        for element in ELEMENTS {
            for (d, group) in [(2, 1), (8, 3), (64, 7), (80, 2), (128, 1), (64, 20)] {
                let n = 300;
                let head = Head::new(KvLayout { head_dim: d, element }, n, 31 + d as u64);
                let q = values(17, group * d);
                for segments in [
                    vec![(0, n)],
                    vec![(0, 1)],
                    vec![(0, 0), (0, 128), (128, 0), (128, 1)],
                    vec![(0, 127), (127, 173)],
                    vec![(0, 129), (129, 3), (132, 60)],
                ] {
                    let mut out = q.clone();
                    run_one(isa, &head, &mut out, &segments);
                    let visible = segments.iter().map(|s| s.1).sum();
                    for g in 0..group {
                        let (want, mut bound) = head.dense(&q[g * d..][..d], visible, Factors::F32);
                        // Every segment may end in a short block: as many more rescales.
                        bound *= (segments.len() + 1) as f64 / 2.0;
                        let e = excess(&out[g * d..][..d], &want, bound.max(f64::MIN_POSITIVE));
                        assert!(
                            e <= 1.0,
                            "{} {element:?} D {d} head {g} {segments:?}: {e}",
                            isa.name()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn decode_bits_of_a_head_do_not_depend_on_the_other_heads() {
    let (d, n) = (80, 300);
    for isa in Isa::available() {
        let head = Head::new(KvLayout { head_dim: d, element: Element::F16 }, n, 51);
        let q = values(52, 7 * d);
        let mut together = q.clone();
        run_one(isa, &head, &mut together, &[(0, 200), (200, 100)]);
        for parts in [vec![1; 7], vec![2, 5], vec![4, 3], vec![6, 1]] {
            let mut apart = q.clone();
            let mut first = 0;
            for heads in parts {
                run_one(isa, &head, &mut apart[first * d..][..heads * d], &[(0, 200), (200, 100)]);
                first += heads;
            }
            assert!(same_bits(&together, &apart), "{}", isa.name());
        }
    }
}

#[test]
fn decode_passes_nan_on() {
    let d = 8;
    for isa in Isa::available() {
        let head = Head::new(KvLayout { head_dim: d, element: Element::F32 }, 20, 3);
        let mut q = values(4, 2 * d);
        q[3] = f32::NAN;
        run_one(isa, &head, &mut q, &[(0, 20)]);
        assert!(
            q[..d].iter().all(|x| x.is_nan()) && q[d..].iter().all(|x| x.is_finite()),
            "{}",
            isa.name()
        );
    }
}
