//! Both scoring passes against the float64 statistics in `testdata/selectors`, on every ISA tier,
//! for K stored as bf16 and as f32, and for score blocks of several lengths.

#![allow(clippy::unwrap_used, reason = "a fixture that cannot be read fails the test")]

use std::path::Path;

use serde_json::Value;
use tidekv_kernels::Isa;
use tidekv_kernels::element::Element;
use tidekv_kernels::kv::{Append, KvLayout, append_k};
use tidekv_kernels::score::{RowStats, ScoreHead, score_block, score_scratch_len, score_stats};

const CASES: [&str; 11] = [
    "a_gqa4_s256",
    "a2_window8_kernel7avg",
    "b_gqa2_s333",
    "c_outliers_s192",
    "d_ties_s96",
    "e_tiny_s9",
    "e_tiny_s10",
    "e_tiny_s11",
    "e_tiny_s13",
    "f1_mha_s64",
    "f2_mqa_s64",
];

struct Case {
    name: &'static str,
    d: usize,
    s: usize,
    w: usize,
    groups: usize,
    scale: f32,
    /// `[Hq][W * D]`
    q: Vec<Vec<f32>>,
    /// `[Hkv][S * D]`
    k: Vec<Vec<f32>>,
    /// `[Hq][W]`
    lse: Vec<Vec<f32>>,
    /// `[Hq][W]`
    row_max: Vec<Vec<f32>>,
    /// `[Hq][S - W]`
    attn_mean: Vec<Vec<f32>>,
}

fn read(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata/selectors")
        .join(format!("{name}.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// All numbers below a JSON value, in order.
fn flatten(value: &Value, out: &mut Vec<f32>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| flatten(item, out)),
        number => out.push(number.as_f64().unwrap() as f32),
    }
}

/// One vector per entry of the outermost dimension.
fn by_head(value: &Value) -> Vec<Vec<f32>> {
    let flat = |head| {
        let mut out = Vec::new();
        flatten(head, &mut out);
        out
    };
    value.as_array().unwrap().iter().map(flat).collect()
}

fn load(name: &'static str) -> Case {
    let json = read(name);
    let dim = |key: &str| json["dims"][key].as_u64().unwrap() as usize;
    let tensors = match json["inputs"]["same_as"].as_str() {
        Some(other) => read(other),
        None => json.clone(),
    };
    let (d, w) = (dim("d"), dim("w"));
    // A case with another's tensors observes the last W of its window rows.
    let mut q = by_head(&tensors["inputs"]["q_window"]);
    q.iter_mut().for_each(|rows| drop(rows.drain(..rows.len() - w * d)));
    Case {
        name,
        d,
        s: dim("s"),
        w,
        groups: dim("groups"),
        scale: json["scale"].as_f64().unwrap() as f32,
        q,
        k: by_head(&tensors["inputs"]["k"]),
        lse: by_head(&json["stats"]["lse"]),
        row_max: by_head(&json["stats"]["row_max"]),
        attn_mean: by_head(&json["stats"]["attn_mean"]),
    }
}

/// Error of `got` as a multiple of the fixture's tolerance, 1e-5 * max(1, |want|); NaN counts as
/// infinite.
fn stat_excess(got: f32, want: f32) -> f32 {
    over((got - want).abs() / (1e-5 * want.abs().max(1.0)))
}

/// Same for a mean attention: 1e-5 absolute, and in the c case 2e-3 relative (plus 1e-37, below
/// which float32 probabilities have underflowed): its logits reach 740, where one rounding of a
/// logit moves a probability by 6e-5.
fn mean_excess(case: &str, got: f32, want: f32) -> f32 {
    let absolute = over((got - want).abs() / 1e-5);
    if case.starts_with("c_") {
        absolute.max(over((got - want).abs() / (2e-3 * want.abs() + 1e-37)))
    } else {
        absolute
    }
}

fn over(excess: f32) -> f32 {
    if excess.is_nan() { f32::INFINITY } else { excess }
}

struct Scored {
    max: Vec<f32>,
    sum: Vec<f32>,
    mean: Vec<f32>,
}

fn score(isa: Isa, case: &Case, head: usize, element: Element, block: usize) -> Scored {
    let layout = KvLayout { head_dim: case.d, element };
    let mut k = vec![0u8; layout.k_bytes(case.s).unwrap()];
    let src = &case.k[head / case.groups];
    append_k(isa, layout, &mut k, &Append { first_pos: 0, rows: case.s, src, stride: case.d });
    let input = ScoreHead {
        layout,
        k: &k,
        n_keys: case.s,
        q: &case.q[head],
        rows: case.w,
        scale: case.scale,
        softcap: None,
    };
    let mut scratch = vec![f32::NAN; score_scratch_len(layout, case.w)];
    let (mut max, mut sum) = (vec![0.0; case.w], vec![0.0; case.w]);
    score_stats(isa, &input, &mut max, &mut sum, &mut scratch);
    let mut mean = vec![0.0; case.s - case.w];
    let stats = RowStats { max: &max, sum: &sum };
    for (i, out) in mean.chunks_mut(block).enumerate() {
        score_block(isa, &input, stats, i * block..i * block + out.len(), out, &mut scratch);
    }
    Scored { max, sum, mean }
}

#[test]
fn both_passes_agree_with_the_float64_statistics() {
    for name in CASES {
        let case = load(name);
        assert_eq!(case.q.len(), case.k.len() * case.groups);
        for isa in Isa::available() {
            for element in [Element::Bf16, Element::F32] {
                for head in 0..case.q.len() {
                    let got = score(isa, &case, head, element, case.s);
                    let at = format!("{name} {} {element:?} head {head}", isa.name());
                    for r in 0..case.w {
                        let lse = got.max[r] + got.sum[r].ln();
                        assert!(
                            stat_excess(got.max[r], case.row_max[head][r]) <= 1.0,
                            "{at} row {r} max {}",
                            got.max[r]
                        );
                        assert!(
                            stat_excess(lse, case.lse[head][r]) <= 1.0,
                            "{at} row {r} lse {lse}"
                        );
                    }
                    for (i, (&mean, &want)) in
                        got.mean.iter().zip(&case.attn_mean[head]).enumerate()
                    {
                        assert!(
                            mean_excess(case.name, mean, want) <= 1.0,
                            "{at} key {i}: {mean} for {want}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn scores_do_not_depend_on_the_score_block() {
    for name in CASES {
        let case = load(name);
        for isa in Isa::available() {
            for element in [Element::Bf16, Element::F32] {
                let head = case.q.len() - 1;
                let whole = score(isa, &case, head, element, case.s);
                for block in [1, 5, 32, 64] {
                    let sliced = score(isa, &case, head, element, block);
                    assert_eq!(
                        bits(&whole.mean),
                        bits(&sliced.mean),
                        "{name} {} {element:?} bs {block}",
                        isa.name()
                    );
                }
            }
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn the_comparison_rejects_what_is_just_outside() {
    assert!(stat_excess(100.0, 100.0005) <= 1.0);
    assert!(stat_excess(100.0, 100.002) > 1.0);
    assert!(stat_excess(f32::NAN, 1.0) > 1.0);
    assert!(mean_excess("a", 0.5, 0.50002) > 1.0);
    assert!(mean_excess("c_outliers", 1e-6, 1.003e-6) > 1.0);
    assert!(mean_excess("a", 1e-6, 1.003e-6) <= 1.0);
    assert!(mean_excess("a", f32::NAN, 0.5) > 1.0);
}

/// The statistics tell causal from non-causal and a whole softmax from one over the prefix only.
#[test]
fn a_missing_mask_or_a_prefix_only_softmax_is_seen() {
    let case = load("a_gqa4_s256");
    let dot = |r: usize, i: usize| -> f64 {
        let (q, k) = (&case.q[0][r * case.d..][..case.d], &case.k[0][i * case.d..][..case.d]);
        q.iter().zip(k).map(|(&a, &b)| a as f64 * b as f64).sum::<f64>() * case.scale as f64
    };
    let lse = |r: usize, keys: usize| (0..keys).map(|i| dot(r, i).exp()).sum::<f64>().ln() as f32;
    let visible = case.s - case.w + 1;
    assert!(stat_excess(lse(0, visible), case.lse[0][0]) <= 1.0);
    assert!(stat_excess(lse(0, case.s), case.lse[0][0]) > 1.0);
    assert!(stat_excess(lse(0, case.s - case.w), case.lse[0][0]) > 1.0);
}
