//! Three real models against a reference implementation (`testdata/models` of the
//! engine): logits, hidden norms, likelihood and greedy tokens in f32, and the
//! stated bound of the default precision against f32.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

mod rig {
    pub mod device;
}

use rig::device::{engine, engine_f32};
use serde::Deserialize;
use std::num::NonZeroUsize;
use std::sync::OnceLock;
use tidekv::memory::StepMemory;
use tidekv::schedule::{ScheduleKind, Step};
use tidekv::{Element, Engine, Observer, Outputs, RunConfig, Tap};
use tidekv_cpu::Cpu;
use tidekv_testkit::compare::max_abs_diff;
use tidekv_testkit::models;
use tidekv_testkit::reference::Reference;

const SMOLLM2: (&str, &str) = (
    "smollm2-135m",
    include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../engine/testdata/models/smollm2-135m.json"
    )),
);
const QWEN: (&str, &str) = (
    "qwen2.5-coder-0.5b",
    include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../engine/testdata/models/qwen2.5-coder-0.5b.json"
    )),
);

const GEMMA: (&str, &str) = (
    "gemma-3-270m",
    include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../engine/testdata/models/gemma-3-270m.json"
    )),
);

/// Logits of two f32 implementations that sum in different orders: the
/// reference's own statement is 1e-3, fixtures and chip apart.
const LOGIT_BOUND: f64 = 5e-3;
/// Hidden norms, relative. Most of it is the fixture's four decimals: an
/// embedding of norm 0.5 is printed 1e-4 off at most.
const NORM_BOUND: f64 = 1e-4;
/// Greedy steps are compared up to the first whose two best logits are closer
/// than this: four times what both could be off.
const GAP: f64 = 0.02;
/// How far the default precision may be from f32.
struct Bf16Bounds {
    /// Of the top-20 logits.
    logits: f64,
    /// Divergence of one step's distribution, in nats.
    kl: f64,
    /// Its mean over the steps of a case.
    mean_kl: f64,
}

/// A rounding to bf16 moves a number by 0.17 % (steps are 2^-8 to 2^-7 of it; a step
/// over sqrt(12), averaged). Three per layer, of state, keys and values, add in
/// quadrature over 31 layers to 1.6 % of the state. A logit is a product of the
/// normed state with a row of the head: |state| |row| / sqrt(d_model) is 6.5 at most
/// over the twelve cases, so sigma is 0.10; six of them for the largest of 5,760
/// logits. Fixed-point products, whose factors are off by less than an eighth of a
/// rounding to bf16, do not add to it at this precision. For distributions, to second
/// order KL is half the variance of the logit differences, 0.005 for that sigma; a
/// single step may have twice the sigma.
const BF16: Bf16Bounds = Bf16Bounds { logits: 0.6, kl: 0.02, mean_kl: 0.005 };
/// The same for Gemma 3: 18 layers make it 1.3 % of the state, and
/// |state| |row| / sqrt(d_model) is 11.9 at most over the six cases (in one of them;
/// 5.4 in the others), so sigma is 0.15.
const GEMMA_BF16: Bf16Bounds = Bf16Bounds { logits: 0.92, kl: 0.047, mean_kl: 0.012 };
/// Prompts up to this length have the logits of every token computed.
const SHORT: usize = 64;

#[derive(Deserialize)]
struct Fixture {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt_ids: Vec<u32>,
    top20_ids: Vec<usize>,
    top20_logits: Vec<f32>,
    logsumexp: f64,
    hidden_l2_last_token: Vec<f64>,
    hidden_l2_mean: Vec<f64>,
    mean_nll: f64,
    greedy24_ids: Vec<u32>,
    greedy24_top2_gap: Vec<f64>,
}

fn cases(json: &str) -> Vec<Case> {
    let fixture: Fixture = serde_json::from_str(json).unwrap();
    assert_eq!(fixture.cases.len(), 6);
    fixture.cases
}

fn config(element: Element, outputs: Outputs) -> RunConfig {
    RunConfig {
        schedule: ScheduleKind::TideNoEvict.with_chunk(NonZeroUsize::new(512).unwrap()),
        kv: element,
        bridge: element,
        max_new_tokens: 24,
        outputs,
        ..RunConfig::default()
    }
}

/// Norms of hidden states and likelihood of the prompt, taken as they pass.
struct Measure<'a> {
    tokens: &'a [u32],
    d_model: usize,
    /// Final norm: weights and epsilon.
    norm: (Vec<f32>, f64),
    /// `[N + 2]`: sums over positions; the last entry is after the final norm.
    sums: Vec<f64>,
    /// `[N + 2]`: of the last position.
    last: Vec<f64>,
    nll: f64,
}

impl<'a> Measure<'a> {
    fn new(engine: &Engine<Cpu>, tokens: &'a [u32]) -> Self {
        let model = engine.model();
        let states = model.spec.shape.n_layers + 2;
        Measure {
            tokens,
            d_model: model.spec.shape.d_model,
            norm: (
                model.file.tensors.final_norm.read(&model.file.store),
                f64::from(model.spec.arithmetic.norm_eps),
            ),
            sums: vec![0.0; states],
            last: vec![0.0; states],
            nll: 0.0,
        }
    }

    fn add(&mut self, state: usize, norm: f64) {
        self.sums[state] += norm;
        self.last[state] = norm;
    }
}

impl Observer for Measure<'_> {
    fn after(&mut self, step: &Step, _: &StepMemory, tap: &dyn Tap) {
        let Some((_, rows)) = tap.hidden() else { return };
        let state = step.layer().map_or(0, |layer| layer + 1);
        let after_norm = self.sums.len() - 1;
        for row in rows.chunks_exact(self.d_model) {
            let square = |x: f64| x * x;
            let sum: f64 = row.iter().map(|&x| square(f64::from(x))).sum();
            self.add(state, sum.sqrt());
            if state + 1 == after_norm {
                let (weights, eps) = &self.norm;
                let scale = 1.0 / (sum / self.d_model as f64 + eps).sqrt();
                let normed = row.iter().zip(weights);
                let sum: f64 =
                    normed.map(|(&x, &w)| square(f64::from(x) * scale * f64::from(w))).sum();
                self.add(after_norm, sum.sqrt());
            }
        }
    }

    fn logits_row(&mut self, _: usize, position: usize, logits: &[f32]) {
        if let Some(&next) = self.tokens.get(position + 1) {
            self.nll += log_sum_exp(logits) - f64::from(logits[next as usize]);
        }
    }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().fold(f64::NEG_INFINITY, |max, &x| max.max(f64::from(x)));
    max + logits.iter().map(|&x| (f64::from(x) - max).exp()).sum::<f64>().ln()
}

fn argmax(logits: &[f32]) -> usize {
    let best = |best: usize, index: usize| if logits[index] > logits[best] { index } else { best };
    (0..logits.len()).fold(0, best)
}

fn pick(logits: &[f32], ids: &[usize]) -> Vec<f32> {
    ids.iter().map(|&id| logits[id]).collect()
}

/// Logits after the prompt and after each of the reference's tokens but the last,
/// `[24][vocab]`.
fn teacher_forced(
    engine: &Engine<Cpu>,
    case: &Case,
    config: &RunConfig,
    observer: &mut dyn Observer,
) -> Vec<Vec<f32>> {
    let mut session = engine.prefill(&case.prompt_ids, config, observer).unwrap();
    let mut logits = vec![session.logits()];
    for &token in &case.greedy24_ids[..23] {
        session.feed(token).unwrap();
        logits.push(session.logits());
    }
    logits
}

/// What a case gives in f32.
struct Exact {
    /// Logits of every step, `[24][vocab]`.
    steps: Vec<Vec<f32>>,
    /// As in [`Measure`].
    sums: Vec<f64>,
    last: Vec<f64>,
    nll: f64,
}

impl Exact {
    fn of(engine: &Engine<Cpu>, case: &Case) -> Exact {
        let short = case.prompt_ids.len() <= SHORT;
        let outputs = if short { Outputs::AllLogits } else { Outputs::AllHidden };
        let mut measure = Measure::new(engine, &case.prompt_ids);
        let steps = teacher_forced(engine, case, &config(Element::F32, outputs), &mut measure);
        let Measure { sums, last, nll, .. } = measure;
        Exact { steps, sums, last, nll }
    }
}

/// Everything the fixture has, in f32. Returns how many greedy tokens were
/// compared.
fn check_f32(exact: &Exact, case: &Case, what: &str) -> usize {
    let logits = &exact.steps[0];
    assert_eq!(argmax(logits), case.top20_ids[0], "{what}: best token");
    let top = max_abs_diff(&pick(logits, &case.top20_ids), &case.top20_logits);
    assert!(top <= LOGIT_BOUND, "{what}: top-20 logits {top} apart");
    let sum = (log_sum_exp(logits) - case.logsumexp).abs();
    assert!(sum <= LOGIT_BOUND, "{what}: log-sum-exp {sum} apart");

    let n_tokens = case.prompt_ids.len() as f64;
    let means: Vec<f64> = exact.sums.iter().map(|sum| sum / n_tokens).collect();
    // The reference's list ends with the state after the final norm *instead of* before it.
    let reported = |all: &[f64]| {
        let n = all.len();
        [&all[..n - 2], &all[n - 1..]].concat()
    };
    let norms = relative(&reported(&exact.last), &case.hidden_l2_last_token)
        .max(relative(&reported(&means), &case.hidden_l2_mean));
    assert!(norms <= NORM_BOUND, "{what}: hidden norms {norms} apart");

    let mut nll = f64::NAN;
    if case.prompt_ids.len() <= SHORT {
        nll = (exact.nll / (n_tokens - 1.0) - case.mean_nll).abs();
        assert!(nll <= LOGIT_BOUND, "{what}: mean negative log-likelihood {nll} apart");
    }
    let mut compared = 0;
    let clear = exact.steps.iter().zip(&case.greedy24_top2_gap).take_while(|&(_, &gap)| gap >= GAP);
    for (step, (logits, _)) in clear.enumerate() {
        assert_eq!(argmax(logits), case.greedy24_ids[step] as usize, "{what}: greedy step {step}");
        compared += 1;
    }
    println!(
        "{what}: logits {top:.1e}, log-sum-exp {sum:.1e}, norms {norms:.1e}, nll {nll:.1e}, \
         {compared} greedy tokens"
    );
    compared
}

/// Largest |a - e| / e; infinite for what is not finite.
fn relative(actual: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(actual.len(), expected.len(), "lists of different lengths");
    let apart = |(a, e): (&f64, &f64)| {
        let apart = (a - e).abs() / e;
        if apart.is_finite() { apart } else { f64::INFINITY }
    };
    actual.iter().zip(expected).map(apart).fold(0.0, f64::max)
}

/// KL(p || q) in nats of the distributions of two rows of logits.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let (p_sum, q_sum) = (log_sum_exp(p), log_sum_exp(q));
    let term = |(&p, &q): (&f32, &f32)| {
        let (p, q) = (f64::from(p) - p_sum, f64::from(q) - q_sum);
        p.exp() * (p - q)
    };
    p.iter().zip(q).map(term).sum()
}

/// The 20 largest, in any order.
fn top20(logits: &[f32]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..logits.len()).collect();
    ids.select_nth_unstable_by(20, |&a, &b| logits[b].total_cmp(&logits[a]));
    ids.truncate(20);
    ids
}

/// `clear` is the number of greedy tokens that [`GAP`] lets be compared.
fn check_model((alias, json): (&str, &str), clear: usize) {
    let mut compared = 0;
    let (exact_engine, engine) =
        (engine_f32(&models::path(alias), 2, None), engine(&models::path(alias), 2, None));
    for (index, case) in cases(json).iter().enumerate() {
        let what = format!("{alias}, case {index} of {} tokens", case.prompt_ids.len());
        let exact = Exact::of(&exact_engine, case);
        compared += check_f32(&exact, case, &what);
        let config = config(Element::Bf16, Outputs::LastLogits);
        let rounded = teacher_forced(&engine, case, &config, &mut tidekv::Unobserved);
        check_bf16(&exact.steps, &rounded, &BF16, &what);
        if case.prompt_ids.len() <= SHORT {
            let decoded = (&exact.steps[23][..], &rounded[23][..]);
            check_decode((&exact_engine, &engine), case, decoded, &what);
        }
    }
    assert_eq!(compared, clear, "{alias}: greedy tokens compared");
}

/// Decoding is a second arithmetic: after 23 tokens its logits, in f32 and in the
/// default precision, against those of a prefill of the same tokens. In f32 the
/// two are as far apart as two implementations; in bf16 prefill rounds what
/// decoding does not, which is what [`BF16`] counts.
fn check_decode(
    (exact, rounded): (&Engine<Cpu>, &Engine<Cpu>),
    case: &Case,
    decoded: (&[f32], &[f32]),
    what: &str,
) {
    let tokens = [&case.prompt_ids, &case.greedy24_ids[..23]].concat();
    let distance = |engine: &Engine<Cpu>, element, decoded: &[f32]| {
        let config = config(element, Outputs::LastLogits);
        let session = engine.prefill(&tokens, &config, &mut tidekv::Unobserved).unwrap();
        let prefilled = session.logits();
        let ids = top20(&prefilled);
        max_abs_diff(&pick(decoded, &ids), &pick(&prefilled, &ids))
    };
    let exact = distance(exact, Element::F32, decoded.0);
    let rounded = distance(rounded, Element::Bf16, decoded.1);
    println!("{what}: decode against prefill {exact:.1e}, in bf16 {rounded:.3}");
    assert!(exact <= LOGIT_BOUND, "{what}: decode and prefill {exact} apart");
    assert!(rounded <= BF16.logits, "{what}: decode and prefill {rounded} apart in bf16");
}

/// The default precision against f32 at every step, `[24][vocab]` each.
fn check_bf16(exact: &[Vec<f32>], rounded: &[Vec<f32>], bounds: &Bf16Bounds, what: &str) {
    let (mut top, mut kl, mut kl_sum) = (0f64, 0f64, 0f64);
    for (exact, rounded) in exact.iter().zip(rounded) {
        let ids = top20(exact);
        top = top.max(max_abs_diff(&pick(rounded, &ids), &pick(exact, &ids)));
        let divergence = divergence(exact, rounded);
        // A comparison with NaN is false, a maximum skips it.
        assert!(divergence >= 0.0, "{what}: KL {divergence}");
        kl = kl.max(divergence);
        kl_sum += divergence;
    }
    let kl_mean = kl_sum / exact.len() as f64;
    println!("{what}: bf16 top-20 logits {top:.3}, KL {kl:.1e}, mean KL {kl_mean:.1e}");
    assert!(top <= bounds.logits, "{what}: top-20 logits {top} apart in bf16");
    assert!(kl <= bounds.kl, "{what}: KL {kl} in bf16");
    assert!(kl_mean <= bounds.mean_kl, "{what}: mean KL {kl_mean} in bf16");
}

#[test]
fn smollm2_computes_what_the_reference_does() {
    check_model(SMOLLM2, 144);
}

#[test]
fn qwen_computes_what_the_reference_does() {
    check_model(QWEN, 111);
}

/// Windows of 512 tokens under prompts of up to 4,031.
#[test]
fn gemma_computes_what_the_reference_does() {
    let (exact_engine, engine) =
        (engine_f32(&models::path(GEMMA.0), 2, None), engine(&models::path(GEMMA.0), 2, None));
    let mut compared = 0;
    for (index, case) in cases(GEMMA.1).iter().enumerate() {
        let what = format!("{}, case {index} of {} tokens", GEMMA.0, case.prompt_ids.len());
        let exact = Exact::of(&exact_engine, case);
        compared += check_f32(&exact, case, &what);
        let config = config(Element::Bf16, Outputs::LastLogits);
        let rounded = teacher_forced(&engine, case, &config, &mut tidekv::Unobserved);
        check_bf16(&exact.steps, &rounded, &GEMMA_BF16, &what);
    }
    assert_eq!(compared, 102, "greedy tokens compared");
}

/// The oracle of the tests on tiny models, held to the published numbers itself.
#[test]
fn the_dense_reference_gives_the_fixtures_numbers() {
    let case = &cases(SMOLLM2.1)[0];
    let reference = Reference::open(&models::path(SMOLLM2.0));
    let dense = reference.forward(&case.prompt_ids, |_| true);
    let last = case.prompt_ids.len() - 1;
    let logits: Vec<f32> =
        reference.logits(&dense, last).into_iter().map(|logit| logit as f32).collect();
    let top = max_abs_diff(&pick(&logits, &case.top20_ids), &case.top20_logits);
    let norms: Vec<f64> = (0..dense.hidden.len() - 1)
        .map(|layer| dense.row(layer, last).iter().map(|x| x * x).sum::<f64>().sqrt())
        .collect();
    let norms = relative(&norms, &case.hidden_l2_last_token[..norms.len()]);
    println!("logits {top:.1e}, norms {norms:.1e}");
    assert!(top <= LOGIT_BOUND && norms <= NORM_BOUND, "{top}, {norms}");
}

/// The comparisons themselves.
mod must_fail {
    use super::*;

    /// Compares the numbers of a case, computed once, with a fixture that is changed.
    fn check_with(change: impl Fn(&mut Case)) {
        static EXACT: OnceLock<Exact> = OnceLock::new();
        let mut case = cases(SMOLLM2.1).swap_remove(0);
        let engine = || engine_f32(&models::path(SMOLLM2.0), 2, None);
        let exact = EXACT.get_or_init(|| Exact::of(&engine(), &case));
        check_f32(exact, &case, "unchanged");
        change(&mut case);
        check_f32(exact, &case, "changed");
    }

    #[test]
    #[should_panic(expected = "changed: best token")]
    fn another_best_token() {
        check_with(|case| case.top20_ids.swap(0, 1));
    }

    #[test]
    #[should_panic(expected = "changed: top-20 logits")]
    fn a_logit_slightly_off() {
        check_with(|case| case.top20_logits[19] += 0.006);
    }

    #[test]
    #[should_panic(expected = "changed: log-sum-exp")]
    fn a_normaliser_slightly_off() {
        check_with(|case| case.logsumexp -= 0.006);
    }

    #[test]
    #[should_panic(expected = "changed: hidden norms")]
    fn the_norm_of_one_layer() {
        check_with(|case| case.hidden_l2_last_token[17] *= 1.0002);
    }

    #[test]
    #[should_panic(expected = "changed: hidden norms")]
    fn the_mean_norm_after_the_final_norm() {
        check_with(|case| case.hidden_l2_mean[30] *= 0.9998);
    }

    #[test]
    #[should_panic(expected = "changed: mean negative log-likelihood")]
    fn the_likelihood_of_the_prompt() {
        check_with(|case| case.mean_nll += 0.006);
    }

    #[test]
    #[should_panic(expected = "changed: greedy step 23")]
    fn the_last_greedy_token() {
        check_with(|case| case.greedy24_ids[23] ^= 1);
    }

    #[test]
    #[should_panic(expected = "far: top-20 logits 0.7")]
    fn a_logit_far_off_in_bf16() {
        let exact: Vec<f32> = (0..100).map(|i| i as f32 / 10.0).collect();
        let mut far = exact.clone();
        far[95] += 0.75;
        check_bf16(&[exact], &[far], &BF16, "far");
    }

    #[test]
    #[should_panic(expected = "flat: KL 0.")]
    fn a_tail_that_takes_over_in_bf16() {
        let exact: Vec<f32> = (0..10_000).map(|i| if i < 20 { 7.0 } else { 0.0 }).collect();
        let flat: Vec<f32> = exact.iter().map(|&x| if x == 0.0 { 1.0 } else { x }).collect();
        check_bf16(&[exact], &[flat], &BF16, "flat");
    }

    #[test]
    #[should_panic(expected = "nan: KL NaN")]
    fn what_is_not_a_number() {
        check_bf16(&[vec![0.0; 40]], &[vec![f32::NAN; 40]], &BF16, "nan");
    }

    #[test]
    fn distances_are_what_they_are_called() {
        assert_eq!(relative(&[1.0, 3.0], &[1.0, 2.0]), 0.5);
        assert_eq!(relative(&[f64::NAN], &[1.0]), f64::INFINITY);
        // KL of (1/2, 1/2) from (1/4, 3/4): ln 2 - ln(3) / 2.
        let (p, q) = ([0.0, 0.0], [0.0, 3f32.ln()]);
        assert!((divergence(&p, &q) - (2f64.ln() - 3f64.ln() / 2.0)).abs() < 1e-7);
        assert_eq!(divergence(&p, &p), 0.0);
        assert_eq!(argmax(&[1.0, 3.0, 3.0, 2.0]), 1);
        let mut top = top20(&(0..30).map(|i| (i * 7 % 30) as f32).collect::<Vec<_>>());
        top.sort_unstable();
        assert_eq!(top.len(), 20);
        assert!(top.iter().all(|&i| i * 7 % 30 >= 10));
    }
}
