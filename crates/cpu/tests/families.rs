//! Every model family against the dense f64 reference and against itself:
//! windows that bite at 16 tokens, chunks larger than the window, prompts around
//! its edge, and rotations that depend on the prompt's length.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

mod rig {
    pub mod device;
    pub mod recording;
    pub mod states;
    pub mod tiny;
}

use rig::device::{engine, engine_f32};
use rig::recording::{Recording, assert_same_cache, assert_same_prefill, record};
use rig::tiny::{TinyFile, prompt};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use tidekv::schedule::ScheduleKind;
use tidekv::{Element, Engine, Outputs, RunConfig};
use tidekv_cpu::{Cpu, Isa, Tier};
use tidekv_format::TensorType;
use tidekv_testkit::compare::assert_bits_eq;
use tidekv_testkit::reference::Reference;
use tidekv_testkit::{Arch, MatrixTypes, TinySpec, tiny_families, tiny_llama};

/// The window of the tiny models that have one.
const WINDOW: usize = 16;

/// All families, and a model whose every layer has a window.
fn specs() -> Vec<TinySpec> {
    let mut specs = tiny_families(71);
    specs.push(TinySpec { window: Some(WINDOW), ..tiny_llama(72) });
    specs
}

fn config(kind: ScheduleKind, chunk: usize, budget: usize) -> RunConfig {
    RunConfig {
        schedule: kind.with_chunk(NonZeroUsize::new(chunk).unwrap()),
        selector: "observation(window=8,kernel=5,pool=max)+sinks(2)".parse().unwrap(),
        budget,
        score_block: NonZeroUsize::new(64).unwrap(),
        kv: Element::F32,
        bridge: Element::F32,
        max_new_tokens: 6,
        outputs: Outputs::AllHidden,
        memory_limit: None,
    }
}

fn tiers() -> impl Iterator<Item = Tier> {
    Isa::available().into_iter().map(Isa::tier)
}

/// Largest difference of two rows, relative to the larger norm of the
/// reference.
fn relative(actual: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let square = |x: f64| x * x;
    let difference: f64 =
        actual.iter().zip(expected).map(|(&a, &e)| square(f64::from(a) - e)).sum();
    let norm: f64 = expected.iter().map(|&e| square(e)).sum();
    (difference / norm).sqrt()
}

/// f32 against f64 through at most 7 layers. A layer's sums have at most 112
/// terms (sqrt(112) half-ulps of 6e-8 each: 6e-7) on some ten operations deep;
/// with queries and keys of unit scale the softmax passes on what its logits
/// have. 1e-5 leaves a factor of two for the layers' accumulation; a missing
/// part of a layer is off by more than 1e-2 (see the last test).
const F32_BOUND: f64 = 1e-5;

#[test]
fn hidden_states_and_logits_are_those_of_the_dense_reference() {
    for spec in specs() {
        let file = TinyFile::write(&spec.writer());
        let reference = Reference::open(file.path());
        // 150 tokens pass the window, a key block, and the trained context of 64.
        for n_tokens in [1, 40, 150] {
            let tokens = prompt(3, spec.vocab, n_tokens);
            let dense = reference.forward(&tokens, |_| true);
            let logits = reference.logits(&dense, n_tokens - 1);
            for tier in tiers() {
                let engine = engine_f32(file.path(), 2, Some(tier));
                let config = config(ScheduleKind::OneShot, 1, 4096);
                let (run, _) = record(&engine, &tokens, &config);
                let what = format!("{}, {n_tokens} tokens, {tier}", spec.arch.name());
                for (layer, states) in run.hidden.0.iter().enumerate() {
                    let off = relative(states, &dense.hidden[layer]);
                    assert!(off < F32_BOUND, "{what}: {off:e} after {layer} layers");
                }
                let off = relative(&run.logits, &logits);
                assert!(off < F32_BOUND, "{what}: {off:e} in the logits");
            }
        }
    }
}

#[test]
fn every_schedule_and_chunk_gives_the_bits_of_the_whole_prompt() {
    for spec in specs() {
        let file = TinyFile::write(&spec.writer());
        for n_tokens in [WINDOW - 1, WINDOW, WINDOW + 1, 133] {
            let tokens = prompt(4, spec.vocab, n_tokens);
            for tier in tiers() {
                let whole = engine(file.path(), 1, Some(tier));
                let of = |engine: &Engine<Cpu>, kind, chunk| {
                    record(engine, &tokens, &config(kind, chunk, 12)).0
                };
                let kept_all = of(&whole, ScheduleKind::OneShot, 1);
                let evicted = of(&whole, ScheduleKind::PostPrefill, 1);
                for threads in [1, 3] {
                    let engine = engine(file.path(), threads, Some(tier));
                    for chunk in [1, 5, WINDOW, 40, n_tokens] {
                        // Single rows wake the threads for every layer and position.
                        if chunk == 1 && threads > 1 && n_tokens > WINDOW + 1 {
                            continue;
                        }
                        for kind in [
                            ScheduleKind::Chunked,
                            ScheduleKind::ChunkedPost,
                            ScheduleKind::TideNoEvict,
                            ScheduleKind::Tide,
                        ] {
                            let run = of(&engine, kind, chunk);
                            let what = format!(
                                "{}: {kind}, S = {n_tokens}, C = {chunk}, {threads} threads, {tier}",
                                spec.arch.name()
                            );
                            assert_same_prefill(&run, &kept_all, &what);
                            let evicts =
                                matches!(kind, ScheduleKind::ChunkedPost | ScheduleKind::Tide);
                            let cache = if evicts { &evicted } else { &kept_all };
                            assert_same_cache(&run, cache, &what);
                        }
                    }
                }
                assert_windows_kept(&spec, n_tokens, [&kept_all, &evicted]);
            }
        }
    }
}

/// Layers with a window keep exactly its last positions; the others what the
/// budget says.
fn assert_windows_kept(spec: &TinySpec, n_tokens: usize, [kept_all, evicted]: [&Recording; 2]) {
    for layer in 0..spec.n_layers {
        let windowed = spec.window.is_some() && spec.arch.has_window(layer);
        for (run, budget) in [(kept_all, n_tokens), (evicted, 12)] {
            for head in 0..spec.n_kv_heads {
                let kept = run.kept[layer].head(head);
                let positions: Vec<usize> = kept.iter().map(|pos| pos.index()).collect();
                if windowed {
                    let last: Vec<_> = (n_tokens.saturating_sub(WINDOW)..n_tokens).collect();
                    assert_eq!(positions, last, "{} layer {layer}", spec.arch.name());
                } else {
                    assert_eq!(positions.len(), budget.min(n_tokens));
                }
            }
        }
    }
}

/// Decoding sees through each layer's window what a dense forward pass of all
/// tokens sees.
#[test]
fn decoding_equals_the_dense_reference() {
    for spec in specs() {
        let file = TinyFile::write(&spec.writer());
        let reference = Reference::open(file.path());
        for n_tokens in [WINDOW - 3, 50] {
            // Phi 3's factors are chosen by the prompt's length, and no test crosses 64 here.
            let tokens = prompt(5, spec.vocab, n_tokens + 6);
            let dense = reference.forward(&tokens, |_| true);
            for tier in tiers() {
                let engine = engine_f32(file.path(), 2, Some(tier));
                let config = config(ScheduleKind::Tide, 20, 4096);
                let (_, mut session) = record(&engine, &tokens[..n_tokens], &config);
                for (position, &token) in tokens.iter().enumerate().skip(n_tokens) {
                    session.feed(token).unwrap();
                    let off = relative(&session.logits(), &reference.logits(&dense, position));
                    assert!(
                        off < F32_BOUND,
                        "{}, token {position} after {n_tokens}, {tier}: {off:e}",
                        spec.arch.name()
                    );
                }
            }
        }
    }
}

#[derive(Deserialize)]
struct Fixture {
    prompt_ids: Vec<u32>,
    families: BTreeMap<String, Vec<Next>>,
}

/// The most likely tokens after a prompt.
#[derive(Deserialize)]
struct Next {
    n_tokens: usize,
    ids: Vec<usize>,
    logprobs: Vec<f64>,
}

/// Both sides compute in f32 what [`F32_BOUND`] allows one of them: relative to
/// logits of some ten at most, 1e-4 for each.
const LOGPROB_BOUND: f64 = 2e-4;

#[test]
fn the_reference_library_says_the_same_of_every_family() {
    let fixture: Fixture =
        serde_json::from_str(include_str!("../testdata/families/families.json")).unwrap();
    assert_eq!(fixture.families.len(), Arch::ALL.len());
    for spec in tiny_families(1) {
        let dir = tempfile::tempdir().unwrap();
        spec.write_hugging_face(dir.path(), 1).unwrap();
        let engine = engine_f32(dir.path(), 2, None);
        for next in &fixture.families[spec.arch.name()] {
            let tokens = &fixture.prompt_ids[..next.n_tokens];
            let (run, _) = record(&engine, tokens, &config(ScheduleKind::Tide, 30, 4096));
            let what = format!("{} after {} tokens", spec.arch.name(), next.n_tokens);
            let log_sum = run.logits.iter().map(|&l| f64::from(l).exp()).sum::<f64>().ln();
            for (&id, expected) in next.ids.iter().zip(&next.logprobs) {
                let off = (f64::from(run.logits[id]) - log_sum - expected).abs();
                assert!(off < LOGPROB_BOUND, "{what}: token {id} is {off:e} off");
            }
        }
    }
}

/// The same weights in both containers, whole and in parts, are the same model.
#[test]
fn gguf_and_safetensors_of_the_same_weights_give_the_same_bits() {
    for ty in [TensorType::BF16, TensorType::F16, TensorType::F32] {
        for spec in specs() {
            let spec = TinySpec { types: MatrixTypes::all(ty), ..spec };
            let tokens = prompt(8, spec.vocab, 80);
            let what = format!("{} in {ty}", spec.arch.name());
            let dir = tempfile::tempdir().unwrap();
            let run = |path: &Path| {
                let engine = engine(path, 2, None);
                let (run, mut session) =
                    record(&engine, &tokens, &config(ScheduleKind::Tide, 30, 24));
                let fed = [5, 6, 7].map(|token| {
                    session.feed(token).unwrap();
                    session.logits()
                });
                (run, fed)
            };
            let file = TinyFile::write(&spec.writer());
            let (expected, fed) = run(file.path());
            let parts = spec.writer().write_split(dir.path(), "tiny", 3).unwrap();
            let same = |path: &Path, container: &str| {
                let (actual, actual_fed) = run(path);
                let what = format!("{what}, {container}");
                assert_same_prefill(&actual, &expected, &what);
                assert_same_cache(&actual, &expected, &what);
                for (actual, expected) in actual_fed.iter().zip(&fed) {
                    assert_bits_eq(actual, expected, &format!("{what}: decoded logits"));
                }
            };
            same(&parts[2], "split");
            for shards in [1, 2] {
                let dir = tempfile::tempdir().unwrap();
                spec.write_hugging_face(dir.path(), shards).unwrap();
                same(dir.path(), &format!("{shards} safetensors"));
            }
        }
    }
}

/// Families differ: a file read as another one's would not pass the tests above.
#[test]
fn a_part_of_a_family_that_is_left_out_shows() {
    let differs = |changed: &dyn Fn(&mut tidekv_testkit::GgufWriter), arch: Arch| {
        let spec = specs().into_iter().find(|spec| spec.arch == arch).unwrap();
        let tokens = prompt(6, spec.vocab, 70);
        let logits = |writer: &tidekv_testkit::GgufWriter| {
            let file = TinyFile::write(writer);
            let engine = engine(file.path(), 1, None);
            record(&engine, &tokens, &config(ScheduleKind::OneShot, 1, 4096)).0.logits
        };
        let whole: Vec<f64> = logits(&spec.writer()).into_iter().map(f64::from).collect();
        let mut writer = spec.writer();
        changed(&mut writer);
        relative(&logits(&writer), &whole)
    };
    let without = |key: &'static str| {
        move |writer: &mut tidekv_testkit::GgufWriter| {
            writer.remove(key);
        }
    };
    for (arch, key) in [
        (Arch::Gemma2, "gemma2.attn_logit_softcapping"),
        (Arch::Gemma2, "gemma2.final_logit_softcapping"),
        (Arch::Granite, "granite.embedding_scale"),
        (Arch::Granite, "granite.residual_scale"),
        (Arch::Granite, "granite.attention.scale"),
        (Arch::Granite, "granite.logit_scale"),
        (Arch::Phi3, "phi3.rope.scaling.original_context_length"),
    ] {
        let off = differs(&without(key), arch);
        assert!(off > 1e-2, "{key}: {off:e}");
    }
    let wider = |writer: &mut tidekv_testkit::GgufWriter| {
        writer.set("gemma3.attention.sliding_window", tidekv_format::Value::U32(17));
    };
    assert!(differs(&wider, Arch::Gemma3) > 1e-3);
}
