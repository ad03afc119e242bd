//! Prompts that are read together: each has the bits that it has alone, in
//! whatever company and order, and what belongs to one of them comes and goes
//! with it.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

mod rig {
    pub mod device;
    pub mod recording;
    pub mod states;
    pub mod tiny;
}

use rig::device::engine;
use rig::recording::{Recording, assert_same_cache, assert_same_prefill, record, record_batch};
use rig::tiny::{TinyFile, prompt};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use tidekv::backend::BackendError;
use tidekv::memory::{Breakdown, Component};
use tidekv::model::RopeScaling;
use tidekv::sample::{Logprobs, PromptLogprobs};
use tidekv::schedule::{ScheduleKind, Step};
use tidekv::{
    Element, Engine, Error, GenerateConfig, Model, Observer, Outputs, Progress, RunConfig, Session,
    Tap, Unobserved,
};
use tidekv_cpu::{Cpu, CpuConfig};
use tidekv_testkit::compare::assert_bits_eq;
use tidekv_testkit::{Arch, TinySpec, models, tiny_families, tiny_llama, tiny_qwen2};

/// Around the borders of chunks, windows and the 128-key grid; one token beside
/// many, and two of one length.
const LENGTHS: [usize; 5] = [129, 1, 300, 40, 129];
/// Tokens fed after each prompt.
const FED: usize = 3;

fn config(kind: ScheduleKind) -> RunConfig {
    RunConfig {
        schedule: kind.with_chunk(NonZeroUsize::new(50).unwrap()),
        selector: "observation(window=8,kernel=5,pool=max)+sinks(2)".parse().unwrap(),
        budget: 24,
        score_block: NonZeroUsize::new(64).unwrap(),
        kv: Element::Bf16,
        bridge: Element::Bf16,
        max_new_tokens: 8,
        outputs: Outputs::AllHidden,
        memory_limit: None,
    }
}

/// Different prompts of the given lengths.
fn prompts(spec: &TinySpec, lengths: &[usize]) -> Vec<Vec<u32>> {
    let seeds = 1..=lengths.len() as u64;
    seeds.zip(lengths).map(|(seed, &n)| prompt(seed, spec.vocab, n)).collect()
}

fn slices(prompts: &[Vec<u32>]) -> Vec<&[u32]> {
    prompts.iter().map(Vec::as_slice).collect()
}

/// A prompt's prefill, and the logits after each of some tokens fed to it.
struct Read {
    recording: Recording,
    answer: Vec<Vec<f32>>,
}

impl Read {
    fn of((recording, mut session): (Recording, Session<'_, Cpu>)) -> Read {
        let feed = |token| {
            session.feed(token).unwrap();
            session.logits()
        };
        Read { recording, answer: (0..FED as u32).map(feed).collect() }
    }

    #[track_caller]
    fn assert_equals(&self, expected: &Read, what: &str) {
        assert_same_prefill(&self.recording, &expected.recording, what);
        assert_same_cache(&self.recording, &expected.recording, what);
        for (actual, expected) in self.answer.iter().zip(&expected.answer) {
            assert_bits_eq(actual, expected, &format!("{what}: logits of the answer"));
        }
    }
}

/// Reads the prompts alone and in several orders together.
fn assert_batches_change_no_bit(
    engine: &Engine<Cpu>,
    prompts: &[Vec<u32>],
    config: &RunConfig,
    what: &str,
) {
    let alone: Vec<Read> =
        prompts.iter().map(|tokens| Read::of(record(engine, tokens, config))).collect();
    let n = prompts.len();
    let orders: [Vec<usize>; 3] =
        [(0..n).collect(), (0..n).rev().collect(), (0..n).map(|i| (i + 1) % n).collect()];
    for order in orders {
        let batch: Vec<&[u32]> = order.iter().map(|&index| prompts[index].as_slice()).collect();
        let together = record_batch(engine, &batch, config);
        for (index, recorded) in order.iter().zip(together) {
            assert_eq!(recorded.1.prompt(), prompts[*index], "{what}");
            let what = format!("{what}, prompt {index} in {order:?}");
            Read::of(recorded).assert_equals(&alone[*index], &what);
        }
    }
}

/// A Llama, a Qwen, and two with sliding windows: in five of six layers, and in
/// all.
fn specs() -> Vec<TinySpec> {
    let gemma = tiny_families(91).into_iter().find(|spec| spec.arch == Arch::Gemma3).unwrap();
    let windowed = TinySpec { window: Some(16), ..tiny_llama(92) };
    vec![tiny_llama(91), tiny_qwen2(91), gemma, windowed]
}

#[test]
fn every_prompt_of_a_batch_has_the_bits_that_it_has_alone() {
    for spec in specs() {
        let file = TinyFile::write(&spec.writer());
        let prompts = prompts(&spec, &LENGTHS);
        for threads in 1..=3 {
            let engine = engine(file.path(), threads, None);
            for kind in ScheduleKind::ALL {
                for outputs in [Outputs::AllHidden, Outputs::LastLogits] {
                    let config = RunConfig { outputs, ..config(kind) };
                    let arch = spec.arch.name();
                    let what = format!("{arch}, {kind}, {outputs:?}, {threads} threads");
                    assert_batches_change_no_bit(&engine, &prompts, &config, &what);
                }
            }
        }
    }
}

/// Observation windows of the length of the prompt, several storage types, a
/// selector that scores nothing.
#[test]
fn selectors_see_their_own_prompt_only() {
    let spec = tiny_llama(93);
    let file = TinyFile::write(&spec.writer());
    let engine = engine(file.path(), 2, None);
    let prompts = prompts(&spec, &[200, 5, 33, 80]);
    for (selector, budget, element) in [
        ("snapkv", 32, Element::F16),
        ("snapkv-kvpress", 64, Element::F32),
        ("observation(window=8,kernel=5,order=pool-then-group)", 9, Element::Bf16),
        ("streaming", 20, Element::Bf16),
    ] {
        for kind in [ScheduleKind::Tide, ScheduleKind::ChunkedPost] {
            let selector = selector.parse().unwrap();
            let config = RunConfig { selector, budget, kv: element, ..config(kind) };
            let what = format!("{}, {kind}", config.selector);
            assert_batches_change_no_bit(&engine, &prompts, &config, &what);
        }
    }
}

/// Each rotation is that of the prompt's own length, while it is read and while
/// it is answered.
#[test]
fn rotations_are_frozen_at_each_prompts_own_length() {
    let long = tiny_families(94).into_iter().find(|spec| spec.arch == Arch::Phi3).unwrap();
    let dynamic = TinySpec { context: 64, ..tiny_llama(94) };
    for (spec, rope) in [(long, None), (dynamic, Some(RopeScaling::Dynamic { factor: 8.0 }))] {
        let file = TinyFile::write(&spec.writer());
        let model = Model::open(file.path(), rope).unwrap();
        let engine = Engine::new(model, Cpu::new(CpuConfig::default()).unwrap()).unwrap();
        let prompts = prompts(&spec, &[60, 200, 10, 300]);
        let rotations = |n_tokens| engine.model().spec.rotations(n_tokens).unwrap();
        assert_ne!(rotations(60), rotations(200), "{}", spec.arch.name());
        assert_batches_change_no_bit(&engine, &prompts, &config(ScheduleKind::Tide), "rotations");
    }
}

#[test]
fn smollm2_reads_and_answers_three_prompts_as_if_each_were_alone() {
    let engine = engine(&models::path("smollm2-135m"), 2, None);
    let config = RunConfig { budget: 64, max_new_tokens: 12, ..RunConfig::default() };
    let texts = ["The capital of France is", "Once upon a time", "Water is made of"];
    let tokenizer = engine.tokenizer().unwrap();
    let specials = tidekv::text::Specials::AsText;
    let prompts: Vec<Vec<u32>> = (1..)
        .zip(texts)
        .map(|(times, text)| tokenizer.encode(&text.repeat(times * 17), specials).unwrap())
        .collect();
    let answer = |session: &mut Session<'_, Cpu>| -> Vec<u32> {
        let answer = session.generate(GenerateConfig::default()).unwrap();
        answer.filter_map(|piece| piece.unwrap().token).collect()
    };
    let mut together = engine.prefill_batch(&slices(&prompts), &config, &mut Unobserved).unwrap();
    // Answers in another order than the prompts.
    for index in [2, 0, 1] {
        let (alone, mut session) = record(&engine, &prompts[index], &config);
        assert_bits_eq(&together[index].logits(), &alone.logits, "logits");
        let expected = answer(&mut session);
        assert!(!expected.is_empty());
        assert_eq!(answer(&mut together[index]), expected);
    }
}

/// Log-probabilities of the prompts' tokens, which come row by row.
#[test]
fn rows_of_logits_come_with_their_prompt() {
    let spec = tiny_qwen2(95);
    let file = TinyFile::write(&spec.writer());
    let engine = engine(file.path(), 2, None);
    let prompts = prompts(&spec, &[60, 1, 23]);
    let config = RunConfig { outputs: Outputs::AllLogits, ..config(ScheduleKind::Tide) };
    let logprobs = |prompts: &[&[u32]]| {
        let mut all: Vec<Vec<Logprobs>> = vec![Vec::new(); prompts.len()];
        let mut observer = PromptLogprobs {
            prompts,
            n_top: 2,
            inner: &mut Unobserved,
            each: &mut |seq, position, logprobs| {
                all[seq].push(logprobs);
                assert_eq!(position, all[seq].len());
            },
        };
        engine.prefill_batch(prompts, &config, &mut observer).unwrap();
        all
    };
    let alone: Vec<_> = prompts.iter().flat_map(|tokens| logprobs(&[tokens])).collect();
    assert_eq!(alone.iter().map(Vec::len).collect::<Vec<_>>(), [59, 0, 22]);
    assert_eq!(logprobs(&slices(&prompts)), alone);
}

#[test]
fn progress_is_that_of_the_whole_batch() {
    struct Seen {
        steps: Vec<Step>,
        done: f64,
        total: f64,
    }
    impl Observer for Seen {
        fn before(&mut self, step: &Step, progress: &Progress, _: &dyn Tap) -> ControlFlow<()> {
            assert_eq!(progress.done, self.done);
            assert!(progress.step > 0.0);
            self.steps.push(*step);
            self.done += progress.step;
            self.total = progress.total;
            ControlFlow::Continue(())
        }
    }
    let spec = tiny_llama(96);
    let file = TinyFile::write(&spec.writer());
    let engine = engine(file.path(), 1, None);
    let prompts = prompts(&spec, &LENGTHS);
    for kind in ScheduleKind::ALL {
        let config = config(kind);
        let mut seen = Seen { steps: Vec::new(), done: 0.0, total: 0.0 };
        engine.prefill_batch(&slices(&prompts), &config, &mut seen).unwrap();
        let steps: Vec<Step> = config.schedule.steps(spec.n_layers, &LENGTHS).collect();
        assert_eq!(seen.steps, steps, "{kind}");
        assert_eq!(seen.done, seen.total, "{kind}");
    }
}

/// The bytes that a session holds go with it, those that all share with the last.
#[test]
fn a_session_that_is_dropped_leaves_the_others_what_they_have_alone() {
    let spec = tiny_llama(97);
    let file = TinyFile::write(&spec.writer());
    let engine = engine(file.path(), 2, None);
    let prompts = prompts(&spec, &LENGTHS);
    for kind in ScheduleKind::ALL {
        let config = config(kind);
        for last in 0..prompts.len() {
            let sessions =
                engine.prefill_batch(&slices(&prompts), &config, &mut Unobserved).unwrap();
            let ledger = sessions[0].accountant().clone();
            let all = ledger.live();
            let mut left: Vec<_> = sessions.into_iter().map(Some).collect();
            let mut session = left[last].take().unwrap();
            let mut before = all.total();
            for other in left.into_iter().flatten() {
                drop(other);
                assert!(ledger.live().total() < before, "{kind}");
                before = ledger.live().total();
            }
            let alone = engine.plan(&config, LENGTHS[last]).unwrap().held;
            for component in Component::ALL {
                let what = format!("{kind}, prompt {last}: {component}");
                assert_eq!(ledger.live()[component], alone[component], "{what}");
            }
            assert_eq!(session.held(), all, "what the batch held stays known");
            session.feed(1).unwrap();
            drop(session);
            assert_eq!(ledger.live(), Breakdown::default(), "{kind}");
        }
    }
}

/// Fails if a step begins.
struct Nothing;

impl Observer for Nothing {
    fn before(&mut self, step: &Step, _: &Progress, _: &dyn Tap) -> ControlFlow<()> {
        panic!("{step:?} began");
    }
}

#[test]
fn a_bad_prompt_is_named_before_anything_is_computed() {
    let spec = TinySpec { context: 100, ..tiny_llama(98) };
    let file = TinyFile::write(&spec.writer());
    let engine = engine(file.path(), 1, None);
    let tide = config(ScheduleKind::Tide);
    let good = prompt(1, spec.vocab, 101);
    let refused = |bad: &[u32], config: &RunConfig| {
        let batch = [&good[..50], bad, &good[..20]];
        match engine.prefill_batch(&batch, config, &mut Nothing).err().unwrap() {
            error @ Error::OfPrompt { index: 1, n_prompts: 3, .. } => error.to_string(),
            other => panic!("{other}"),
        }
    };
    let empty = refused(&[], &tide);
    assert!(empty.starts_with("prompt 2 of 3: the prompt is empty"), "{empty}");
    assert!(refused(&good, &tide).contains("101 tokens, 1 more"), "a long one");
    assert!(refused(&[1, 288], &tide).contains("token id 288 at index 1"), "an unknown token");

    let nothing = engine.prefill_batch(&[], &tide, &mut Nothing).err();
    assert!(matches!(nothing, Some(Error::EmptyBatch)), "{nothing:?}");
    assert!(matches!(engine.plan_batch(&tide, &[]), Err(Error::EmptyBatch)));
    let small = RunConfig { budget: 9, ..tide };
    let plan = engine.plan_batch(&small, &[4, 50]).err();
    assert!(matches!(plan, Some(Error::OfPrompt { index: 1, .. })), "{plan:?}");
    // An only prompt has no number.
    assert!(matches!(engine.plan(&small, 50), Err(Error::Select(_))));
}

/// Numbers that overflow in one prompt.
#[test]
fn a_prompt_that_fails_on_the_way_is_named_with_its_position() {
    const FAULTY: u32 = 77;
    let spec = tiny_qwen2(99);
    let index = FAULTY as usize * spec.d_model;
    let file = TinyFile::with_value(&spec, "token_embd.weight", (index, f32::NAN));
    let engine = engine(file.path(), 2, None);
    let mut prompts = prompts(&spec, &[90, 70, 33]);
    prompts.iter_mut().flatten().filter(|id| **id == FAULTY).for_each(|id| *id = 0);
    prompts[1][61] = FAULTY;
    for kind in ScheduleKind::ALL {
        let run = engine.prefill_batch(&slices(&prompts), &config(kind), &mut Unobserved);
        let Some(Error::OfPrompt { index: 1, n_prompts: 3, source }) = run.err() else {
            panic!("{kind}: another error, or none");
        };
        let at =
            BackendError::NonFinite { place: "the output of layer 0".to_owned(), position: 61 };
        assert!(matches!(*source, Error::Backend(error) if error == at), "{kind}");
    }
}
