use super::*;
use crate::element::{self, Element};
use crate::kv::{Append, append_k};
use crate::test_data::{Random, assert_close};

/// One query head: stored keys, what their bits mean in f32, and the window's queries.
struct Scene {
    layout: KvLayout,
    k: Vec<u8>,
    k_values: Vec<f32>,
    q: Vec<f32>,
    n_keys: usize,
    rows: usize,
    softcap: Option<f32>,
}

impl Scene {
    fn new(layout: KvLayout, n_keys: usize, rows: usize) -> Scene {
        let keys = Random::new(n_keys as u64).uniform(n_keys * layout.head_dim, 2.0);
        Scene::of(layout, &keys, rows)
    }

    fn of(layout: KvLayout, keys: &[f32], rows: usize) -> Scene {
        let (isa, d) = (Isa::detect(), layout.head_dim);
        let n_keys = keys.len() / d;
        let mut k = vec![0; layout.k_bytes(n_keys).unwrap()];
        append_k(isa, layout, &mut k, &Append { first_pos: 0, rows: n_keys, src: keys, stride: d });
        let (mut stored, mut k_values) =
            (vec![0; keys.len() * layout.element.bytes()], vec![0.0; keys.len()]);
        element::store(isa, layout.element, keys, &mut stored);
        element::load(isa, layout.element, &stored, &mut k_values);
        Scene {
            layout,
            k,
            k_values,
            q: Random::new(7).uniform(rows * d, 2.0),
            n_keys,
            rows,
            softcap: None,
        }
    }

    fn head(&self) -> ScoreHead<'_> {
        let scale = 1.0 / (self.layout.head_dim as f32).sqrt();
        let Scene { layout, n_keys, rows, softcap, .. } = *self;
        ScoreHead { layout, k: &self.k, n_keys, q: &self.q, rows, scale, softcap }
    }

    fn scratch(&self) -> Vec<f32> {
        vec![f32::NAN; score_scratch_len(self.layout, self.rows)]
    }

    fn stats(&self, isa: Isa) -> (Vec<f32>, Vec<f32>) {
        let (mut max, mut sum) = (vec![0.0; self.rows], vec![0.0; self.rows]);
        score_stats(isa, &self.head(), &mut max, &mut sum, &mut self.scratch());
        (max, sum)
    }

    /// Mean probabilities of all keys, taken `step` keys at a time.
    fn means(&self, isa: Isa, step: usize) -> Vec<f32> {
        let (max, sum) = self.stats(isa);
        let stats = RowStats { max: &max, sum: &sum };
        let (mut means, mut scratch) = (vec![0.0; self.n_keys], self.scratch());
        for first in (0..self.n_keys).step_by(step) {
            let keys = first..(first + step).min(self.n_keys);
            score_block(isa, &self.head(), stats, keys.clone(), &mut means[keys], &mut scratch);
        }
        means
    }

    /// float64 logits of a row, capped if the scene caps them, masked keys left out.
    fn logits(&self, row: usize) -> Vec<f64> {
        let (d, head) = (self.layout.head_dim, self.head());
        let q = &self.q[row * d..][..d];
        let dot =
            |k: &[f32]| q.iter().zip(k).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
        let visible = self.n_keys - self.rows + row + 1;
        self.k_values
            .chunks_exact(d)
            .take(visible)
            .map(|k| dot(k) * f64::from(head.scale))
            .map(|l| match self.softcap.map(f64::from) {
                Some(cap) => cap * (l / cap).tanh(),
                None => l,
            })
            .collect()
    }
}

/// Lengths at and around the block grid; windows inside one block, across two, over several, and
/// over everything.
const SHAPES: [(usize, usize); 9] =
    [(1, 1), (2, 2), (9, 8), (128, 32), (129, 2), (160, 33), (256, 1), (500, 200), (300, 300)];

/// Bounds of a maximum (absolute) and of a sum (relative). The products of a logit add up to at
/// most 4 D in magnitude, so its chain of D steps, two roundings each, on a rounded `scale * q` is
/// off by at most (2D + 2) 4 sqrt(D) 2^-24, and so is a maximum. A sum of up to 500 weights, each
/// with a few roundings more and an argument below 8 sqrt(D), is off by twice that, relative to
/// itself, plus 2^-24 (500 + 16 sqrt(D) + 64). A soft-cap c does not stretch the error of a logit
/// and adds its own, 4 c 2^-24.
fn bounds(d: usize, softcap: Option<f32>) -> (f64, f64) {
    let (d, unit) = (d as f64, 2f64.powi(-24));
    let cap = f64::from(softcap.unwrap_or(0.0));
    let logit = ((2.0 * d + 2.0) * 4.0 * d.sqrt() + 4.0 * cap) * unit;
    (logit, 2.0 * logit + unit * (500.0 + 16.0 * d.sqrt() + 64.0))
}

#[test]
fn both_passes_match_a_dense_float64_softmax() {
    for isa in Isa::available() {
        for element in [Element::Bf16, Element::F16, Element::F32] {
            for (n_keys, rows) in SHAPES {
                for d in [2, 80] {
                    let scene = Scene::new(KvLayout { head_dim: d, element }, n_keys, rows);
                    scene.check(isa);
                }
            }
        }
    }
}

#[test]
fn both_passes_match_it_with_a_soft_cap() {
    for isa in Isa::available() {
        for (n_keys, rows) in SHAPES {
            for (d, cap) in [(2, 0.25), (80, 1.0), (256, 50.0)] {
                let layout = KvLayout { head_dim: d, element: Element::Bf16 };
                let softcap = Some(cap);
                Scene { softcap, ..Scene::new(layout, n_keys, rows) }.check(isa);
            }
        }
    }
}

#[test]
#[should_panic(expected = "off by")]
fn a_cap_that_is_ignored_is_found() {
    let layout = KvLayout { head_dim: 80, element: Element::F32 };
    let capped = Scene { softcap: Some(1.0), ..Scene::new(layout, 160, 33) };
    let (max, _) = Scene::new(layout, 160, 33).stats(Isa::detect());
    let largest = capped.logits(0).into_iter().fold(f64::NEG_INFINITY, f64::max);
    assert_close("uncapped", max[0], largest, bounds(80, Some(1.0)).0);
}

impl Scene {
    /// Compares both passes with float64.
    #[track_caller]
    fn check(&self, isa: Isa) {
        let Scene { layout: KvLayout { head_dim: d, element }, n_keys, rows, softcap, .. } = *self;
        let name = format!("{} {element:?} S {n_keys} W {rows} D {d} {softcap:?}", isa.name());
        let (logit, relative) = bounds(d, softcap);
        let (max, sum) = self.stats(isa);
        let mut want = vec![0.0; n_keys];
        for row in 0..rows {
            let logits = self.logits(row);
            let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = logits.iter().map(|l| (l - largest).exp()).sum();
            assert_close(&name, max[row], largest, logit);
            assert_close(&name, sum[row], total, relative * total);
            for (mean, l) in want.iter_mut().zip(&logits) {
                *mean += (l - largest).exp() / total / rows as f64;
            }
        }
        for (&got, want) in self.means(isa, n_keys).iter().zip(want) {
            // Numerator and denominator each have the relative bound.
            assert_close(&name, got, want, 2.0 * relative * want);
        }
    }
}

#[test]
fn scores_do_not_depend_on_the_range() {
    for isa in Isa::available() {
        for (n_keys, rows) in SHAPES {
            for softcap in [None, Some(0.5)] {
                let layout = KvLayout { head_dim: 16, element: Element::Bf16 };
                let scene = Scene { softcap, ..Scene::new(layout, n_keys, rows) };
                let whole = scene.means(isa, n_keys);
                for step in [1, 3, 16, 127, 128, 130] {
                    let sliced = scene.means(isa, step);
                    assert!(
                        whole.iter().zip(&sliced).all(|(a, b)| a.to_bits() == b.to_bits()),
                        "{} {step} {softcap:?}",
                        isa.name()
                    );
                }
            }
        }
    }
}

/// The second pass finds the very logits of the first: the largest weight of a row is `exp(0) = 1`,
/// never above.
#[test]
fn the_largest_weight_of_a_row_is_one_over_its_sum() {
    for isa in Isa::available() {
        let scene = Scene::new(KvLayout { head_dim: 80, element: Element::F32 }, 400, 1);
        let (_, sum) = scene.stats(isa);
        let largest = scene.means(isa, 7).into_iter().fold(0.0, f32::max);
        assert_eq!(largest.to_bits(), (1.0 / sum[0]).to_bits(), "{}", isa.name());
    }
}

#[test]
fn equal_keys_get_equal_scores_wherever_they_lie() {
    for isa in Isa::available() {
        let d = 10;
        let key = Random::new(3).uniform(d, 2.0);
        let keys: Vec<f32> = key.iter().copied().cycle().take(300 * d).collect();
        let scene = Scene::of(KvLayout { head_dim: d, element: Element::F16 }, &keys, 8);
        let means = scene.means(isa, 64);
        assert!(means[..292].iter().all(|m| m.to_bits() == means[0].to_bits()), "{}", isa.name());
    }
}

#[test]
fn a_nan_key_is_visible_in_the_rows_that_see_it_and_only_there() {
    for isa in Isa::available() {
        let d = 6;
        let mut keys = Random::new(9).uniform(140 * d, 2.0);
        keys[135 * d + 1] = f32::NAN;
        let scene = Scene::of(KvLayout { head_dim: d, element: Element::Bf16 }, &keys, 20);
        let (_, sum) = scene.stats(isa);
        for (row, sum) in sum.iter().enumerate() {
            assert_eq!(sum.is_nan(), 120 + row >= 135, "{} row {row}", isa.name());
        }
        assert!(scene.means(isa, 140)[..120].iter().all(|m| m.is_nan()));
    }
}

#[test]
#[should_panic(expected = "0..4 of 3")]
fn keys_beyond_the_prompt_are_refused() {
    let scene = Scene::new(KvLayout { head_dim: 2, element: Element::F32 }, 3, 1);
    let (max, sum) = scene.stats(Isa::detect());
    let stats = RowStats { max: &max, sum: &sum };
    score_block(Isa::detect(), &scene.head(), stats, 0..4, &mut [0.0; 4], &mut scene.scratch());
}
