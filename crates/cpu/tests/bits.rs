//! Chunking, order, threads and eviction cost no bit: hidden states after every
//! layer, K/V before eviction and logits of every schedule equal those of the
//! whole prompt at once, and so does what a selector keeps.
//!
//! Equality is of bits. The last part shows that the comparison fails for one
//! flipped bit in each thing it compares.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

mod rig {
    pub mod device;
    pub mod recording;
    pub mod states;
    pub mod tiny;
}

use rig::device::{engine, engine_of, engine_with};
use rig::recording::{Recording, assert_same_cache, assert_same_kv, assert_same_prefill, record};
use rig::tiny::{TinyFile, prompt};
use std::num::NonZeroUsize;
use tidekv::schedule::ScheduleKind;
use tidekv::select::PRESETS;
use tidekv::{Backend, Element, Engine, Outputs, RunConfig};
use tidekv_cpu::{Cpu, CpuConfig, Isa, Pack, Precision, Tier};
use tidekv_format::TensorType;
use tidekv_testkit::compare::assert_bits_eq;
use tidekv_testkit::{MatrixTypes, TinySpec, models, tiny_llama, tiny_qwen2};

/// A model, a prompt, storage types and a selector that evicts.
struct Case {
    name: &'static str,
    spec: TinySpec,
    n_tokens: usize,
    element: Element,
    selector: &'static str,
    budget: usize,
}

/// Shapes that differ in everything a kernel can depend on: group size, head
/// width, weight and storage types, and prompts around the borders of the
/// 128-key grid.
fn cases() -> Vec<Case> {
    let all = MatrixTypes::all;
    let k_quants = MatrixTypes {
        token_embd: TensorType::Q5_0,
        output: TensorType::Q6_K,
        ffn_down: TensorType::Q6_K,
        ..all(TensorType::Q4_K)
    };
    let mqa = TinySpec { n_heads: 4, n_kv_heads: 1, head_dim: 64, ..tiny_llama(13) };
    let mha = TinySpec { n_heads: 3, n_kv_heads: 3, head_dim: 80, ..tiny_llama(14) };
    let wide = TinySpec { d_model: 256, d_ff: 512, n_heads: 8, head_dim: 32, ..tiny_qwen2(15) };
    let blocks = TinySpec { d_ff: 224, ..tiny_llama(16) };
    let case = |name, spec, n_tokens, element, selector, budget| Case {
        name,
        spec,
        n_tokens,
        element,
        selector,
        budget,
    };
    let pool_then_group =
        "observation(window=8,kernel=5,pool=max,group=max,order=pool-then-group)+sinks(2)";
    let (bf16, f16, f32) = (Element::Bf16, Element::F16, Element::F32);
    vec![
        case("llama G 3", tiny_llama(11), 129, f32, "snapkv", 40),
        case("llama G 3, three key blocks", tiny_llama(12), 300, bf16, "snapkv-kvpress", 96),
        case("qwen2 G 7", tiny_qwen2(12), 128, f16, "streaming", 33),
        case(
            "MQA D 64, BF16",
            TinySpec { types: all(TensorType::BF16), ..mqa },
            127,
            bf16,
            pool_then_group,
            24,
        ),
        case(
            "MHA D 80, F16",
            TinySpec { types: all(TensorType::F16), ..mha },
            200,
            f32,
            "recent",
            50,
        ),
        case("qwen2 G 4, K-quants", TinySpec { types: k_quants, ..wide }, 130, bf16, "snapkv", 64),
        case(
            "llama Q4_1",
            TinySpec { types: all(TensorType::Q4_1), ..blocks.clone() },
            67,
            f16,
            "snapkv",
            34,
        ),
        case(
            "llama Q8_0",
            TinySpec { types: all(TensorType::Q8_0), ..blocks },
            258,
            bf16,
            pool_then_group,
            90,
        ),
    ]
}

impl Case {
    fn config(&self, kind: ScheduleKind, chunk: usize) -> RunConfig {
        RunConfig {
            schedule: kind.with_chunk(NonZeroUsize::new(chunk).unwrap()),
            selector: self.selector.parse().unwrap(),
            budget: self.budget,
            score_block: NonZeroUsize::new(64).unwrap(),
            kv: self.element,
            bridge: self.element,
            max_new_tokens: 4,
            outputs: Outputs::AllHidden,
            memory_limit: None,
        }
    }

    fn prompt(&self) -> Vec<u32> {
        prompt(self.spec.seed, self.spec.vocab, self.n_tokens)
    }
}

/// The whole prompt at once, without and with eviction.
struct Whole {
    kept_all: Recording,
    evicted: Recording,
}

impl Whole {
    fn of(case: &Case, engine: &Engine<Cpu>) -> Whole {
        let tokens = case.prompt();
        let run = |kind| record(engine, &tokens, &case.config(kind, 1)).0;
        let whole =
            Whole { kept_all: run(ScheduleKind::OneShot), evicted: run(ScheduleKind::PostPrefill) };
        assert_same_prefill(&whole.evicted, &whole.kept_all, case.name);
        whole
    }

    /// Runs `kind` on `engine` and compares it with the whole prompt.
    fn assert_equals(
        &self,
        case: &Case,
        engine: &Engine<Cpu>,
        (kind, chunk): (ScheduleKind, usize),
    ) {
        let config = case.config(kind, chunk);
        let (tier, threads) = (engine.backend().name(), engine.backend().threads());
        let what = format!("{}: {kind}, C = {chunk}, {threads} threads, {tier}", case.name);
        let (actual, _) = record(engine, &case.prompt(), &config);
        assert_same_prefill(&actual, &self.kept_all, &what);
        let cache = if config.schedule.evicts() { &self.evicted } else { &self.kept_all };
        assert_same_cache(&actual, cache, &what);
    }

    /// The same where only the last token's logits are asked for: all keys and
    /// values, what is kept, and the logits.
    fn assert_last_equals(
        &self,
        case: &Case,
        engine: &Engine<Cpu>,
        (kind, chunk): (ScheduleKind, usize),
    ) {
        let config = RunConfig { outputs: Outputs::LastLogits, ..case.config(kind, chunk) };
        let threads = engine.backend().threads();
        let what = format!("{}: last logits, C = {chunk}, {threads} threads", case.name);
        let (actual, _) = record(engine, &case.prompt(), &config);
        assert_same_kv(&actual.active, &self.evicted.active, &what);
        assert_same_cache(&actual, &self.evicted, &what);
        assert_bits_eq(&actual.logits, &self.evicted.logits, &what);
    }
}

fn tiers() -> impl Iterator<Item = Tier> {
    Isa::available().into_iter().map(Isa::tier)
}

/// Every tier with its default arithmetic, and with f32 where that is another.
fn arithmetics() -> Vec<(Tier, Precision)> {
    let f32_too = |tier: &Tier| *tier == Tier::Avx2;
    let default = tiers().map(|tier| (tier, Precision::Auto));
    default.chain(tiers().filter(f32_too).map(|tier| (tier, Precision::F32))).collect()
}

/// Chunked schedules; the other two are what they are compared with.
const CHUNKED: [ScheduleKind; 4] = [
    ScheduleKind::Chunked,
    ScheduleKind::ChunkedPost,
    ScheduleKind::TideNoEvict,
    ScheduleKind::Tide,
];

#[test]
fn every_schedule_chunk_and_thread_count_gives_the_bits_of_the_whole_prompt() {
    for case in cases() {
        let file = TinyFile::write(&case.spec.writer());
        let s = case.n_tokens;
        for (tier, precision) in arithmetics() {
            let engine = |threads| engine_of(precision, file.path(), threads, Some(tier));
            let whole = Whole::of(&case, &engine(1));
            for threads in 1..=3 {
                let engine = engine(threads);
                for kind in [ScheduleKind::OneShot, ScheduleKind::PostPrefill] {
                    whole.assert_equals(&case, &engine, (kind, s));
                }
                for chunk in [1, 7, 64, 512, s - 1, s, s + 1] {
                    // Single rows wake the threads S times per layer: most of this test's time,
                    // spent on the shorter prompts and on one of the longer ones.
                    if chunk == 1 && threads > 1 && s > 200 {
                        continue;
                    }
                    for kind in CHUNKED {
                        whole.assert_equals(&case, &engine, (kind, chunk));
                    }
                    whole.assert_last_equals(&case, &engine, (ScheduleKind::Tide, chunk));
                }
            }
        }
    }
}

/// Panels are the same whether they live for a chunk or for a layer.
#[test]
fn packing_a_layer_at_a_time_changes_no_bit() {
    for case in cases() {
        let file = TinyFile::write(&case.spec.writer());
        for (tier, precision) in arithmetics() {
            let whole = Whole::of(&case, &engine_of(precision, file.path(), 1, Some(tier)));
            let threads = NonZeroUsize::new(2);
            let config = CpuConfig { threads, tier: Some(tier), precision, pack: Pack::Layer };
            let engine = engine_with(config, file.path());
            for (kind, chunk) in [
                (ScheduleKind::PostPrefill, 1),
                (ScheduleKind::Tide, 7),
                (ScheduleKind::Tide, 64),
                (ScheduleKind::ChunkedPost, 64),
            ] {
                whole.assert_equals(&case, &engine, (kind, chunk));
            }
        }
    }
}

/// What is asked for decides what the last layer computes, not its bits.
#[test]
fn the_last_row_has_the_same_bits_whatever_outputs_are_asked_for() {
    #[derive(Default)]
    struct LastRow(Vec<f32>);
    impl tidekv::Observer for LastRow {
        fn logits_row(&mut self, _: usize, _: usize, logits: &[f32]) {
            self.0 = logits.to_vec();
        }
    }
    for case in cases() {
        let file = TinyFile::write(&case.spec.writer());
        let engine = engine(file.path(), 2, None);
        for (kind, chunk) in [
            (ScheduleKind::PostPrefill, 1),
            (ScheduleKind::Tide, 7),
            (ScheduleKind::ChunkedPost, 64),
        ] {
            let config = case.config(kind, chunk);
            let (all, _) = record(&engine, &case.prompt(), &config);
            let what = format!("{}: {kind}, C = {chunk}", case.name);

            let (last, _) = record(
                &engine,
                &case.prompt(),
                &RunConfig { outputs: Outputs::LastLogits, ..config.clone() },
            );
            assert_bits_eq(&last.logits, &all.logits, &what);
            assert_same_cache(&last, &all, &what);
            let d_model = case.spec.d_model;
            let final_row = |recording: &Recording| {
                let states = &recording.hidden.0[case.spec.n_layers];
                states[states.len() - d_model..].to_vec()
            };
            assert_bits_eq(&final_row(&last), &final_row(&all), &what);

            let mut row = LastRow::default();
            let config = RunConfig { outputs: Outputs::AllLogits, ..config };
            let session = engine.prefill(&case.prompt(), &config, &mut row).unwrap();
            assert_bits_eq(&row.0, &all.logits, &what);
            assert_bits_eq(&session.logits(), &all.logits, &what);
        }
    }
}

/// Prompts that are a chunk, one more, one less, two chunks: the last chunk is
/// where off-by-one errors live.
#[test]
fn chunk_remainders_leave_the_last_token_alone() {
    const C: usize = 32;
    let spec = tiny_qwen2(21);
    let file = TinyFile::write(&spec.writer());
    let engine = engine(file.path(), 2, None);
    for n_tokens in [C - 1, C, C + 1, 2 * C - 1, 2 * C, 2 * C + 1] {
        let spec = spec.clone();
        let case = Case {
            name: "remainder",
            spec,
            n_tokens,
            element: Element::Bf16,
            selector: "snapkv",
            budget: 32,
        };
        let whole = Whole::of(&case, &engine);
        for kind in CHUNKED {
            whole.assert_equals(&case, &engine, (kind, C));
        }
    }
}

/// Every prompt length from one token to beyond window and budget, under every
/// preset: what is kept is min(S, K), and the order of work does not matter.
#[test]
fn short_prompts_keep_what_there_is() {
    const W: usize = 32;
    const K: usize = 64;
    let spec = TinySpec { n_layers: 2, ..tiny_llama(22) };
    let file = TinyFile::write(&spec.writer());
    let engine = engine(file.path(), 1, None);
    for preset in &PRESETS {
        for n_tokens in 1..=W + K + 2 {
            let spec = spec.clone();
            let case = Case {
                name: preset.name,
                spec,
                n_tokens,
                element: Element::Bf16,
                selector: preset.name,
                budget: K,
            };
            let whole = Whole::of(&case, &engine);
            whole.assert_equals(&case, &engine, (ScheduleKind::Tide, 16));
            let expected = if preset.name == "none" { n_tokens } else { n_tokens.min(K) };
            for kept in &whole.evicted.kept {
                for head in 0..kept.n_heads() {
                    assert_eq!(kept.head(head).len(), expected, "{} of {n_tokens}", preset.name);
                    assert!(kept.head(head).is_sorted_by(|a, b| a < b));
                }
            }
        }
    }
}

/// Score blocks slice what pooling and heaps see; they do not change it.
#[test]
fn score_blocks_and_schedules_keep_the_same_positions() {
    for case in cases() {
        let file = TinyFile::write(&case.spec.writer());
        let engine = engine(file.path(), 2, None);
        let kept = |kind, block| {
            let score_block = NonZeroUsize::new(block).unwrap();
            let config = RunConfig { score_block, ..case.config(kind, 50) };
            record(&engine, &case.prompt(), &config).0
        };
        let expected = kept(ScheduleKind::PostPrefill, case.n_tokens);
        for kind in [ScheduleKind::Tide, ScheduleKind::PostPrefill, ScheduleKind::ChunkedPost] {
            for block in [5, 32, 128, 1000] {
                let what = format!("{}: {kind}, bs = {block}", case.name);
                assert_same_cache(&kept(kind, block), &expected, &what);
            }
        }
    }
}

/// The same on real weights, where activations have outliers.
fn assert_real_model_bits(alias: &str) {
    let engine = engine(&models::path(alias), 2, None);
    let tokens: Vec<u32> = prompt(1000, 40_000, 1000);
    let config = |kind: ScheduleKind, chunk| RunConfig {
        schedule: kind.with_chunk(NonZeroUsize::new(chunk).unwrap()),
        budget: 256,
        max_new_tokens: 4,
        outputs: Outputs::AllHidden,
        ..RunConfig::default()
    };
    let (one_shot, _) = record(&engine, &tokens, &config(ScheduleKind::OneShot, 1));
    let (post, _) = record(&engine, &tokens, &config(ScheduleKind::PostPrefill, 1));
    assert_same_prefill(&post, &one_shot, &format!("{alias}: post-prefill"));
    assert!(post.kept.iter().all(|kept| kept.head(0).len() == 256));
    for chunk in [128, 512, 2048] {
        for kind in [ScheduleKind::Chunked, ScheduleKind::TideNoEvict, ScheduleKind::Tide] {
            let what = format!("{alias}: {kind}, C = {chunk}");
            let (actual, _) = record(&engine, &tokens, &config(kind, chunk));
            assert_same_prefill(&actual, &one_shot, &what);
            if kind == ScheduleKind::Tide {
                assert_same_cache(&actual, &post, &what);
            }
        }
    }
    let last = RunConfig { outputs: Outputs::LastLogits, ..config(ScheduleKind::Tide, 512) };
    let (last, _) = record(&engine, &tokens, &last);
    let what = format!("{alias}: last logits");
    assert_same_kv(&last.active, &post.active, &what);
    assert_same_cache(&last, &post, &what);
    assert_bits_eq(&last.logits, &post.logits, &what);
}

#[test]
fn smollm2_has_the_same_bits_in_every_order() {
    assert_real_model_bits("smollm2-135m");
}

#[test]
fn qwen_has_the_same_bits_in_every_order() {
    assert_real_model_bits("qwen2.5-coder-0.5b");
}

/// The comparison itself.
mod must_fail {
    use super::*;

    fn recording() -> Recording {
        let case = &cases()[0];
        let file = TinyFile::write(&case.spec.writer());
        record(&engine(file.path(), 1, None), &case.prompt(), &case.config(ScheduleKind::Tide, 50))
            .0
    }

    /// The smallest change there is.
    fn flip(number: &mut f32) {
        *number = f32::from_bits(number.to_bits() ^ 1);
    }

    fn prefill_with(change: impl Fn(&mut Recording)) {
        let expected = recording();
        let mut actual = expected.clone();
        assert_same_prefill(&actual, &expected, "unchanged");
        change(&mut actual);
        assert_same_prefill(&actual, &expected, "changed");
    }

    fn cache_with(change: impl Fn(&mut Recording)) {
        let expected = recording();
        let mut actual = expected.clone();
        assert_same_cache(&actual, &expected, "unchanged");
        change(&mut actual);
        assert_same_cache(&actual, &expected, "changed");
    }

    #[test]
    #[should_panic(expected = "changed: hidden states after 2 layers: 1 of 12384 values differ")]
    fn one_bit_of_a_hidden_state() {
        prefill_with(|recording| flip(&mut recording.hidden.0[2][5000]));
    }

    #[test]
    #[should_panic(expected = "changed: hidden states after 0 layers")]
    fn a_row_too_few() {
        prefill_with(|recording| recording.hidden.0[0].truncate(96));
    }

    #[test]
    #[should_panic(expected = "changed: layers")]
    fn a_layer_too_few() {
        prefill_with(|recording| drop(recording.hidden.0.pop()));
    }

    #[test]
    #[should_panic(expected = "changed: active keys of layer 1")]
    fn one_bit_of_a_key() {
        prefill_with(|recording| flip(&mut recording.active[1].k[77]));
    }

    #[test]
    #[should_panic(expected = "changed: active values of layer 2")]
    fn one_bit_of_a_value() {
        prefill_with(|recording| flip(&mut recording.active[2].v[0]));
    }

    #[test]
    #[should_panic(expected = "changed: logits")]
    fn one_bit_of_a_logit() {
        prefill_with(|recording| flip(&mut recording.logits[287]));
    }

    #[test]
    #[should_panic(expected = "changed: kept positions")]
    fn kept_positions_of_other_layers() {
        cache_with(|recording| recording.kept.swap(0, 1));
    }

    #[test]
    #[should_panic(expected = "changed: retained values of layer 0")]
    fn one_bit_of_a_retained_value() {
        cache_with(|recording| flip(&mut recording.retained[0].v[3]));
    }

    /// Were the prompt not what decides the bits, the tests above would compare
    /// constants.
    #[test]
    #[should_panic(expected = "values differ")]
    fn another_prompt() {
        let case = &cases()[0];
        let file = TinyFile::write(&case.spec.writer());
        let engine = engine(file.path(), 1, None);
        let config = case.config(ScheduleKind::Tide, 50);
        let mut other = case.prompt();
        other[64] ^= 1;
        let run = |tokens: &[u32]| record(&engine, tokens, &config).0;
        assert_same_prefill(&run(&other), &run(&case.prompt()), "other prompt");
    }
}
