//! Decoding: bits that depend on no thread and not on whether a selector could
//! have evicted, and its stated bound against prefill.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

mod rig {
    pub mod device;
    pub mod tiny;
}

use rig::device::engine_f32;
use rig::tiny::{TinyFile, prompt};
use std::num::NonZeroUsize;
use std::path::Path;
use tidekv::sample::{Penalties, SampleConfig};
use tidekv::schedule::ScheduleKind;
use tidekv::{Element, Engine, GenerateConfig, Pos, RunConfig, Unobserved};
use tidekv_cpu::{Cpu, Isa, Tier};
use tidekv_format::TensorType;
use tidekv_testkit::compare::{assert_bits_eq, max_abs_diff};
use tidekv_testkit::{MatrixTypes, TinySpec, tiny_llama, tiny_qwen2};

/// Tokens fed after a prompt.
const FED: usize = 10;

fn specs() -> Vec<TinySpec> {
    vec![
        tiny_llama(51),
        tiny_qwen2(52),
        TinySpec { n_heads: 4, n_kv_heads: 1, head_dim: 64, ..tiny_llama(53) },
        TinySpec { d_ff: 224, types: MatrixTypes::all(TensorType::Q8_0), ..tiny_llama(54) },
    ]
}

fn config(kind: ScheduleKind, budget: usize, element: Element) -> RunConfig {
    RunConfig {
        schedule: kind.with_chunk(NonZeroUsize::new(50).unwrap()),
        budget,
        kv: element,
        bridge: element,
        max_new_tokens: FED,
        ..RunConfig::default()
    }
}

fn tiers() -> impl Iterator<Item = Tier> {
    Isa::available().into_iter().map(Isa::tier)
}

/// Logits after the prompt and after each fed token, `[FED + 1][vocab]`.
fn logits(
    engine: &Engine<Cpu>,
    (prompt, fed): (&[u32], &[u32]),
    config: &RunConfig,
) -> Vec<Vec<f32>> {
    let mut session = engine.prefill(prompt, config, &mut Unobserved).unwrap();
    let mut all = vec![session.logits()];
    for (index, &token) in fed.iter().enumerate() {
        assert_eq!(session.next_position(), Pos((prompt.len() + index) as u32));
        session.feed(token).unwrap();
        all.push(session.logits());
    }
    all
}

#[track_caller]
fn assert_same(actual: &[Vec<f32>], expected: &[Vec<f32>], what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (index, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert_bits_eq(a, e, &format!("{what}, {index} tokens fed"));
    }
}

/// A prompt within the budget loses nothing, so nothing of the answer changes.
#[test]
fn decoding_within_the_budget_is_that_of_the_full_cache() {
    for spec in specs() {
        let file = TinyFile::write(&spec.writer());
        let tokens = prompt(5, spec.vocab, 130 + FED);
        let run = tokens.split_at(130);
        for tier in tiers() {
            let engine = engine_f32(file.path(), 2, Some(tier));
            for element in [Element::F32, Element::F16, Element::Bf16] {
                let of = |kind, budget| logits(&engine, run, &config(kind, budget, element));
                let full = of(ScheduleKind::OneShot, 32);
                for budget in [130, 131, 4096] {
                    for kind in [ScheduleKind::Tide, ScheduleKind::ChunkedPost] {
                        let what = format!("{kind}, K = {budget}, {element}, {tier}");
                        assert_same(&of(kind, budget), &full, &what);
                    }
                }
                // With one position less to keep, the answer is another one.
                let evicted = of(ScheduleKind::Tide, 129);
                assert_bits_eq(&evicted[0], &full[0], "the prompt's own logits");
                assert_ne!(evicted[1], full[1], "{element}, {tier}");
            }
        }
    }
}

#[test]
fn decoding_has_the_same_bits_on_any_number_of_threads() {
    for spec in specs() {
        let file = TinyFile::write(&spec.writer());
        let tokens = prompt(6, spec.vocab, 200 + FED);
        for tier in tiers() {
            let of = |threads| {
                let engine = engine_f32(file.path(), threads, Some(tier));
                logits(
                    &engine,
                    tokens.split_at(200),
                    &config(ScheduleKind::Tide, 64, Element::Bf16),
                )
            };
            let one = of(1);
            for threads in [2, 3] {
                assert_same(&of(threads), &one, &format!("{threads} threads, {tier}"));
            }
        }
    }
}

/// Largest difference between logits of decoded tokens and logits of a prefill
/// of the same tokens.
fn distance_to_prefill(path: &Path, spec: &TinySpec, element: Element, tier: Tier) -> f64 {
    let engine = engine_f32(path, 2, Some(tier));
    let config = config(ScheduleKind::Tide, 4096, element);
    let tokens = prompt(7, spec.vocab, 140 + FED);
    let decoded = logits(&engine, tokens.split_at(140), &config);
    let mut worst = 0f64;
    for (fed, decoded) in decoded.iter().enumerate() {
        let prefilled = logits(&engine, (&tokens[..140 + fed], &[]), &config);
        worst = worst.max(max_abs_diff(decoded, &prefilled[0]));
    }
    worst
}

/// f32 throughout: both orders of summation round K <= 320 products of unit
/// scale, each chain about sqrt(K) half-ulps (2^-24) off, 1e-6; some 20 chains
/// lie behind a logit (3 layers, 2 sides), adding in quadrature; the largest of
/// 3,168 logits of unit scale is 4 sigma: 2e-5. A wrong position or a missing
/// key changes logits by 1e-2 and more.
const F32_BOUND: f64 = 2e-5;

/// bf16: a decoded token's state is not rounded between layers, a prefilled
/// one's is. Steps of the type are 2^-8 to 2^-7 of a value, so a rounding moves
/// it by 0.17 % (a step over sqrt(12), averaged). Four roundings lie behind a
/// logit directly and, through the token's query, key and value, once more:
/// sqrt(8) x 0.17 % = 0.5 % of unit scale. Six sigma, for the largest of 3,168.
const BF16_BOUND: f64 = 0.03;

#[test]
fn decoding_agrees_with_a_prefill_of_the_same_tokens() {
    for (index, spec) in specs().into_iter().enumerate() {
        let file = TinyFile::write(&spec.writer());
        for tier in tiers() {
            let of = |element| distance_to_prefill(file.path(), &spec, element, tier);
            let (f32, bf16) = (of(Element::F32), of(Element::Bf16));
            println!("model {index}, {tier}: {f32:.1e} in f32, {bf16:.1e} in bf16");
            assert!(f32 <= F32_BOUND, "model {index}, {tier}: {f32}");
            assert!(bf16 <= BF16_BOUND, "model {index}, {tier}: {bf16}");
        }
    }
}

#[test]
fn a_full_tail_and_a_full_context_take_no_more_tokens() {
    let spec = TinySpec { context: 60, ..tiny_llama(55) };
    let file = TinyFile::write(&spec.writer());
    let engine = engine_f32(file.path(), 1, None);
    let tokens = prompt(8, spec.vocab, 60);
    for (n_tokens, room) in [(20, FED), (55, 5), (60, 0)] {
        let config = config(ScheduleKind::Tide, 40, Element::Bf16);
        let mut session = engine.prefill(&tokens[..n_tokens], &config, &mut Unobserved).unwrap();
        for left in (0..room).rev() {
            session.feed(1).unwrap();
            assert_eq!(session.room(), left);
        }
        let error = session.feed(1).unwrap_err().to_string();
        assert!(error.contains("context is full"), "{error}");
    }
}

#[test]
#[should_panic(expected = "one bit, 1 tokens fed: 1 of 3 values differ")]
fn one_bit_of_a_logit_fails() {
    let logits = vec![vec![1.0, 2.0, 3.0]; 2];
    let mut changed = logits.clone();
    changed[1][2] = 3f32.next_up();
    assert_same(&logits, &logits.clone(), "unchanged");
    assert_same(&changed, &logits, "one bit");
}

/// Every logit of `token` is raised by 8, which makes it the largest as long as it
/// is not penalised.
fn wants(token: u32, repetition: f32) -> GenerateConfig {
    let penalties = Penalties { repetition, ..Penalties::default() };
    let logit_bias = vec![(token, 8.0)];
    let sample = SampleConfig { penalties, logit_bias, ..SampleConfig::default() };
    GenerateConfig { sample, ..GenerateConfig::default() }
}

#[test]
fn a_second_answer_does_not_repeat_the_first_where_that_is_penalised() {
    const WANTED: u32 = 200;
    let spec = tiny_llama(55);
    let file = TinyFile::write(&spec.writer());
    let engine = engine_f32(file.path(), 1, None);
    let mut tokens = prompt(9, spec.vocab, 90);
    tokens.iter_mut().filter(|token| **token == WANTED).for_each(|token| *token = 201);
    let config = config(ScheduleKind::Tide, 48, Element::Bf16);
    let mut session = engine.prefill(&tokens, &config, &mut Unobserved).unwrap();
    let mut answer = |repetition| {
        let pieces = session.generate(wants(WANTED, repetition)).unwrap().take(2);
        let drawn: Vec<u32> = pieces.filter_map(|piece| piece.unwrap().token).collect();
        (drawn, session.fed().to_vec())
    };
    // The second token of an answer is drawn, and not fed.
    assert_eq!(answer(1.0), (vec![WANTED; 2], vec![WANTED]));
    assert_eq!(answer(1.0), (vec![WANTED; 2], vec![WANTED; 2]));
    let (penalised, _) = answer(10.0);
    assert_eq!(penalised.len(), 2);
    assert!(!penalised.contains(&WANTED), "{penalised:?}");
}
