//! Perplexity on the CPU: the reference's likelihood of a real model, and windows
//! against their definition.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

mod rig {
    pub mod device;
    pub mod tiny;
}

use rig::device::{engine, engine_f32};
use rig::tiny::{TinyFile, prompt};
use serde::Deserialize;
use std::num::NonZeroUsize;
use tidekv::memory::layout;
use tidekv::perplexity::{Likelihood, Perplexity, PerplexityConfig};
use tidekv::sample::{LogSoftmax, PromptLogprobs};
use tidekv::{Element, Engine, Outputs, RunConfig, Unobserved};
use tidekv_cpu::Cpu;
use tidekv_testkit::{models, tiny_llama};

/// The reference states its logits to 1e-3. A negative log-likelihood is
/// `ln sum(exp l) - l[t]`, each part of which moves at most as far as the logits
/// do, and a mean no further than what it is of. The fixture rounds to 6 digits.
const NLL_BOUND: f64 = 2.0 * 1e-3 + 0.5e-6;
/// Cases up to this length: logits of every token take their time.
const SHORT: usize = 64;

#[derive(Deserialize)]
struct Fixture {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt_ids: Vec<u32>,
    mean_nll: f64,
}

fn cases() -> Vec<Case> {
    let json = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../engine/testdata/models/smollm2-135m.json"
    ));
    let mut cases = serde_json::from_str::<Fixture>(json).unwrap().cases;
    cases.retain(|case| case.prompt_ids.len() <= SHORT);
    assert_eq!(cases.len(), 4);
    cases
}

fn exact() -> PerplexityConfig {
    PerplexityConfig { kv: Element::F32, bridge: Element::F32, ..PerplexityConfig::default() }
}

fn size(n: usize) -> Option<NonZeroUsize> {
    NonZeroUsize::new(n)
}

fn measure(engine: &Engine<Cpu>, tokens: &[u32], config: &PerplexityConfig) -> Likelihood {
    let measurement = Perplexity::new(engine, tokens, config).unwrap();
    let mut sum = Likelihood::default();
    for window in measurement.windows().iter() {
        sum += measurement.score(&window, &mut Unobserved).unwrap();
    }
    sum
}

fn assert_near(found: Likelihood, case: &Case) {
    let apart = (found.mean_nll() - case.mean_nll).abs();
    println!("{} tokens: {apart:.1e} apart", found.n_tokens);
    assert_eq!(found.n_tokens, case.prompt_ids.len() - 1);
    assert!(apart <= NLL_BOUND, "{apart} apart");
}

#[test]
fn smollm2_has_the_references_likelihood() {
    let engine = engine_f32(&models::path("smollm2-135m"), 2, None);
    for case in cases() {
        assert_near(measure(&engine, &case.prompt_ids, &exact()), &case);
    }
}

#[test]
#[should_panic(expected = "apart")]
fn a_likelihood_slightly_off_is_noticed() {
    let engine = engine_f32(&models::path("smollm2-135m"), 2, None);
    let mut case = cases().swap_remove(0);
    case.mean_nll += 0.003;
    assert_near(measure(&engine, &case.prompt_ids, &exact()), &case);
}

/// Negative log-likelihood of the last token of `context`.
fn nll_of_last(engine: &Engine<Cpu>, context: &[u32]) -> f64 {
    let (last, before) = context.split_last().unwrap();
    let config = RunConfig { max_new_tokens: 0, ..RunConfig::default() };
    let session = engine.prefill(before, &config, &mut Unobserved).unwrap();
    let logits = session.logits();
    -LogSoftmax::new(&logits).of(logits[*last as usize])
}

#[test]
fn windows_give_what_single_prompts_with_their_context_give() {
    let spec = tiny_llama(3);
    let file = TinyFile::write(&spec.writer());
    let engine = engine(file.path(), 2, None);
    let tokens = prompt(5, spec.vocab, 60);
    for bos in [None, Some(7)] {
        for (context, stride) in [(16, 4), (16, 15), (60, 1), (61, 30), (2, 1)] {
            let config = PerplexityConfig {
                context: size(context),
                stride: size(stride),
                bos,
                ..PerplexityConfig::default()
            };
            let room = context - bos.iter().count();
            let mut expected = Likelihood::default();
            for last in usize::from(bos.is_none())..tokens.len() {
                // The first window that holds the token.
                let beyond = (last + 1).saturating_sub(room);
                let start = beyond.div_ceil(stride) * stride;
                let text: Vec<u32> = bos.iter().chain(&tokens[start..=last]).copied().collect();
                expected += Likelihood { n_tokens: 1, nll: nll_of_last(&engine, &text) };
            }
            let found = measure(&engine, &tokens, &config);
            assert_eq!(found.n_tokens, expected.n_tokens);
            // The same bits of logits, so the same terms, which are added window by
            // window: 60 sums, each rounded to 2^-53 of at most 600.
            let apart = (found.nll - expected.nll).abs();
            assert!(apart < 1e-11, "{bos:?} {context} {stride}: {found:?} {expected:?}");
        }
    }
}

#[test]
fn chunks_and_threads_change_no_bit() {
    let spec = tiny_llama(3);
    let file = TinyFile::write(&spec.writer());
    let tokens = prompt(6, spec.vocab, 100);
    let nll = |threads, chunk| {
        let chunk = size(chunk).unwrap();
        let config = PerplexityConfig { chunk, ..PerplexityConfig::default() };
        measure(&engine(file.path(), threads, None), &tokens, &config).nll.to_bits()
    };
    let expected = nll(1, 2048);
    for (threads, chunk) in [(1, 1), (2, 7), (3, 64), (2, 100)] {
        assert_eq!(nll(threads, chunk), expected, "{threads} threads, chunk {chunk}");
    }
}

/// Rows that fill the tile of logits once and begin another, in both precisions.
#[test]
fn more_rows_than_are_computed_together_have_the_bits_they_have_alone() {
    let path = models::path("smollm2-135m");
    for engine in [engine(&path, 2, None), engine_f32(&path, 2, None)] {
        let shape = &engine.model().spec.shape;
        let tile = layout::logit_tile_rows(shape, usize::MAX);
        let tokens = prompt(4, shape.vocab, tile + 9);
        let nll = |chunk| {
            let chunk = size(chunk).unwrap();
            let config = PerplexityConfig { chunk, ..PerplexityConfig::default() };
            measure(&engine, &tokens, &config).nll.to_bits()
        };
        assert_eq!(nll(tokens.len()), nll(11));
    }
}

#[test]
fn prompt_logprobs_are_the_same_numbers() {
    let spec = tiny_llama(3);
    let file = TinyFile::write(&spec.writer());
    let engine = engine(file.path(), 2, None);
    let tokens = prompt(8, spec.vocab, 40);
    let mut seen = Vec::new();
    let mut observer = PromptLogprobs {
        prompts: &[&tokens],
        n_top: 3,
        inner: &mut Unobserved,
        each: &mut |_, position, logprobs| seen.push((position, logprobs)),
    };
    let config = RunConfig { outputs: Outputs::AllLogits, ..RunConfig::default() };
    engine.prefill(&tokens, &config, &mut observer).unwrap();
    assert_eq!(seen.len(), 39);
    let mut sum = 0.0;
    for (index, (position, logprobs)) in seen.iter().enumerate() {
        assert_eq!(*position, index + 1);
        assert_eq!(logprobs.chosen.token, tokens[*position]);
        assert_eq!(logprobs.top.len(), 3);
        sum += f64::from(logprobs.chosen.logprob);
    }
    let nll = measure(&engine, &tokens, &PerplexityConfig::default()).nll;
    // 39 roundings to f32, of numbers below 16.
    assert!((nll + sum).abs() < 39.0 * 2f64.powi(-20), "{nll} {sum}");
}
