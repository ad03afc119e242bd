//! What else can happen to a run: weights that are not numbers, cancellation,
//! other runs at the same time, bad prompts. Each ends in an error that says
//! where, or in the same bits as ever.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

mod rig {
    pub mod device;
    pub mod recording;
    pub mod states;
    pub mod tiny;
}

use rig::device::engine;
use rig::recording::{Recording, assert_same_cache, assert_same_prefill, record};
use rig::tiny::{TinyFile, prompt};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::Arc;
use tidekv::backend::BackendError;
use tidekv::cache::{ActiveRoom, CacheOf, LayerCaches};
use tidekv::dry::Dry;
use tidekv::memory::{Accountant, Breakdown, Component};
use tidekv::schedule::{ScheduleKind, Step};
use tidekv::{
    Backend, Element, Engine, Error, Observer, Outputs, Progress, RunConfig, Session, Tap,
    Unobserved,
};
use tidekv_cpu::{Cpu, CpuConfig, CpuSizes};
use tidekv_testkit::compare::assert_bits_eq;
use tidekv_testkit::{TinySpec, tiny_llama, tiny_qwen2};

const S: usize = 129;

fn config(kind: ScheduleKind) -> RunConfig {
    RunConfig {
        schedule: kind.with_chunk(NonZeroUsize::new(50).unwrap()),
        budget: 48,
        max_new_tokens: 8,
        ..RunConfig::default()
    }
}

/// Place and position that a run complained about.
fn complaint<T>(result: Result<T, Error>) -> (String, usize) {
    match result {
        Err(Error::Backend(BackendError::NonFinite { place, position })) => (place, position),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("no error"),
    }
}

#[test]
fn a_weight_that_is_no_number_is_an_error_that_names_the_layer() {
    let spec = tiny_qwen2(81);
    let tokens = prompt(1, spec.vocab, S);
    let of_a_layer = [
        "attn_norm.weight",
        "attn_q.weight",
        "attn_k.weight",
        "attn_k.bias",
        "attn_v.weight",
        "attn_output.weight",
        "ffn_norm.weight",
        "ffn_gate.weight",
        "ffn_up.weight",
        "ffn_down.weight",
    ];
    for value in [f32::NAN, f32::INFINITY] {
        for part in of_a_layer {
            // The last layer computes its last row only.
            for (layer, position) in [(0, 0), (1, 0), (2, S - 1)] {
                let file = TinyFile::with_value(&spec, &format!("blk.{layer}.{part}"), (3, value));
                let engine = engine(file.path(), 2, None);
                for kind in ScheduleKind::ALL {
                    let run = engine.prefill(&tokens, &config(kind), &mut Unobserved);
                    let expected = (format!("the output of layer {layer}"), position);
                    assert_eq!(complaint(run), expected, "{value} in {part}, {kind}");
                }
            }
        }
    }
}

#[test]
fn a_faulty_head_is_an_error_at_the_last_position() {
    let spec = tiny_qwen2(82);
    let tokens = prompt(2, spec.vocab, S);
    for name in ["output.weight", "output_norm.weight"] {
        let file = TinyFile::with_value(&spec, name, (100, f32::NAN));
        let engine = engine(file.path(), 2, None);
        for kind in ScheduleKind::ALL {
            let run = engine.prefill(&tokens, &config(kind), &mut Unobserved);
            assert_eq!(complaint(run), ("the logits".to_owned(), S - 1), "{name}, {kind}");
        }
    }
}

/// Where the logits of every token are asked for, a row that overflows is named
/// by its position, however many are computed together.
#[test]
fn logits_that_overflow_are_an_error_where_they_do() {
    let spec = tiny_qwen2(85);
    let tokens = prompt(2, spec.vocab, S);
    // Only where this element of the normed state is large.
    let file = TinyFile::with_value(&spec, "output.weight", (100, 2e38));
    let engine = engine(file.path(), 2, None);
    let positions = [1, 50, S].map(|chunk| {
        let config = RunConfig {
            schedule: ScheduleKind::Tide.with_chunk(NonZeroUsize::new(chunk).unwrap()),
            outputs: Outputs::AllLogits,
            ..config(ScheduleKind::Tide)
        };
        let (place, position) = complaint(engine.prefill(&tokens, &config, &mut Unobserved));
        assert_eq!(place, "the logits");
        position
    });
    assert!(positions[0] > 0 && positions[0] < S - 1, "{positions:?}");
    assert_eq!(positions, [positions[0]; 3]);
}

/// Only those who use the faulty token are stopped, in the prompt or in the
/// answer, and the engine serves the next request.
#[test]
fn a_faulty_token_is_an_error_where_it_stands_and_nowhere_else() {
    const FAULTY: u32 = 77;
    const AT: usize = 60;
    let spec = tiny_qwen2(83);
    let index = FAULTY as usize * spec.d_model + 5;
    let file = TinyFile::with_value(&spec, "token_embd.weight", (index, f32::NAN));
    let engine = engine(file.path(), 2, None);
    let mut tokens = prompt(3, spec.vocab, S);
    tokens.iter_mut().filter(|token| **token == FAULTY).for_each(|token| *token = 0);
    let config = config(ScheduleKind::Tide);
    let (clean, mut session) = record(&engine, &tokens, &config);

    let mut faulty = tokens.clone();
    faulty[AT] = FAULTY;
    let run = engine.prefill(&faulty, &config, &mut Unobserved);
    assert_eq!(complaint(run), ("the output of layer 0".to_owned(), AT));
    assert_eq!(complaint(session.feed(FAULTY)), ("the logits".to_owned(), S));
    assert_same_prefill(&record(&engine, &tokens, &config).0, &clean, "after the error");
}

/// Numbers that f32 holds and the bridge's type does not.
#[test]
fn a_bridge_that_overflows_is_an_error_not_an_infinity() {
    let spec = tiny_llama(84);
    let file = TinyFile::with_value(&spec, "blk.1.ffn_down.weight", (0, 3e5));
    let engine = engine(file.path(), 2, None);
    let tokens = prompt(4, spec.vocab, S);
    let run = |bridge| {
        let config = RunConfig { bridge, ..config(ScheduleKind::Tide) };
        engine.prefill(&tokens, &config, &mut Unobserved)
    };
    assert_eq!(complaint(run(Element::F16)).0, "the output of layer 1");
    drop(run(Element::Bf16).unwrap());
    drop(run(Element::F32).unwrap());
}

/// Cancels before a step and counts the steps that began.
struct CancelAt {
    step: usize,
    begun: usize,
}

impl Observer for CancelAt {
    fn before(&mut self, _: &Step, _: &Progress, _: &dyn Tap) -> ControlFlow<()> {
        if self.begun == self.step {
            return ControlFlow::Break(());
        }
        self.begun += 1;
        ControlFlow::Continue(())
    }
}

#[test]
fn a_cancelled_run_stops_at_once_and_leaves_the_engine_as_it_was() {
    let spec = tiny_llama(85);
    let file = TinyFile::write(&spec.writer());
    let engine = engine(file.path(), 2, None);
    let tokens = prompt(5, spec.vocab, S);
    for kind in ScheduleKind::ALL {
        let config = config(kind);
        let (expected, _) = record(&engine, &tokens, &config);
        let n_steps = config.schedule.steps(spec.n_layers, &[S]).count();
        for step in 0..n_steps {
            let mut cancel = CancelAt { step, begun: 0 };
            let run = engine.prefill(&tokens, &config, &mut cancel);
            assert!(matches!(run, Err(Error::Cancelled)), "{kind}, step {step}");
            assert_eq!(cancel.begun, step, "{kind}");
        }
        let (actual, _) = record(&engine, &tokens, &config);
        assert_same_prefill(&actual, &expected, kind.name());
        assert_same_cache(&actual, &expected, kind.name());
    }
}

/// Feeds tokens and returns the logits after each.
fn decode(session: &mut Session<'_, Cpu>, tokens: &[u32]) -> Vec<Vec<f32>> {
    let feed = |&token| {
        session.feed(token).unwrap();
        session.logits()
    };
    tokens.iter().map(feed).collect()
}

fn assert_same_answer(actual: &[Vec<f32>], expected: &[Vec<f32>], what: &str) {
    assert_eq!(actual.len(), expected.len());
    for (actual, expected) in actual.iter().zip(expected) {
        assert_bits_eq(actual, expected, what);
    }
}

#[test]
fn a_run_has_the_same_bits_every_time() {
    for spec in [tiny_llama(86), tiny_qwen2(86)] {
        let file = TinyFile::write(&spec.writer());
        let tokens = prompt(6, spec.vocab, S + 8);
        let run = |engine: &Engine<Cpu>, kind| {
            let (recording, mut session) = record(engine, &tokens[..S], &config(kind));
            (recording, decode(&mut session, &tokens[S..]))
        };
        let first = engine(file.path(), 3, None);
        for kind in ScheduleKind::ALL {
            let (expected, answer) = run(&first, kind);
            for engine in [&first, &engine(file.path(), 3, None)] {
                let (again, answer_again) = run(engine, kind);
                assert_same_prefill(&again, &expected, kind.name());
                assert_same_cache(&again, &expected, kind.name());
                assert_same_answer(&answer_again, &answer, kind.name());
            }
        }
    }
}

/// Two prompts read at the same time by one engine, then two answers that take
/// turns: each as if it were alone.
#[test]
fn sessions_of_one_engine_do_not_mix() {
    let spec = tiny_llama(87);
    let file = TinyFile::write(&spec.writer());
    let engine = engine(file.path(), 2, None);
    let runs: [(Vec<u32>, RunConfig); 2] = [
        (prompt(7, spec.vocab, 300 + 8), config(ScheduleKind::Tide)),
        (prompt(8, spec.vocab, 200 + 8), config(ScheduleKind::ChunkedPost)),
    ];
    let split = |tokens: &[u32]| tokens.len() - 8;
    let alone: Vec<(Recording, Vec<Vec<f32>>)> = runs
        .iter()
        .map(|(tokens, config)| {
            let (recording, mut session) = record(&engine, &tokens[..split(tokens)], config);
            (recording, decode(&mut session, &tokens[split(tokens)..]))
        })
        .collect();
    for round in 0..10 {
        let what = format!("round {round}");
        let [first, second] = std::thread::scope(|scope| {
            let start = |(tokens, config): &(Vec<u32>, RunConfig)| {
                let (engine, tokens, config) =
                    (&engine, tokens[..split(tokens)].to_vec(), config.clone());
                scope.spawn(move || record(engine, &tokens, &config))
            };
            [start(&runs[0]), start(&runs[1])].map(|run| run.join().unwrap())
        });
        let mut sessions = [first, second].map(|(recording, session)| {
            let index = usize::from(session.prompt().len() == 200);
            assert_same_prefill(&recording, &alone[index].0, &what);
            assert_same_cache(&recording, &alone[index].0, &what);
            session
        });
        for step in 0..8 {
            for (index, session) in sessions.iter_mut().enumerate() {
                let tokens = &runs[index].0;
                session.feed(tokens[split(tokens) + step]).unwrap();
                assert_bits_eq(&session.logits(), &alone[index].1[step], &what);
            }
        }
    }
}

#[test]
fn prompts_that_cannot_be_read_are_refused_with_the_numbers() {
    let spec = TinySpec { context: 100, ..tiny_llama(88) };
    let file = TinyFile::write(&spec.writer());
    let engine = engine(file.path(), 1, None);
    let refused = |tokens: &[u32], config: &RunConfig| {
        engine.prefill(tokens, config, &mut Unobserved).err().unwrap().to_string()
    };
    let tide = config(ScheduleKind::Tide);
    let tokens = prompt(9, spec.vocab, 101);
    assert!(refused(&[], &tide).contains("empty"));
    let too_long = refused(&tokens, &tide);
    assert!(too_long.contains("101 tokens, 1 more than the model's context of 100"), "{too_long}");
    let unknown = refused(&[1, 2, spec.vocab as u32], &tide);
    assert!(unknown.contains("token id 288 at index 2"), "{unknown}");
    let small = refused(&tokens[..90], &RunConfig { budget: 31, ..tide.clone() });
    assert!(small.contains("31") && small.contains("32"), "{small}");
    // A context that is exactly full can be read.
    let session = engine.prefill(&tokens[..100], &tide, &mut Unobserved).unwrap();
    assert_eq!(session.room(), 0);
}

/// The single-active-layer invariant (Algorithm 1) is an error of its own, not a
/// habit of the executor.
#[test]
fn a_second_active_layer_is_an_error_and_allocates_nothing() {
    let shape = tidekv::model::Shape::named("mistral-7b").unwrap();
    let dry = Dry::new(Arc::new(CpuSizes::new(&CpuConfig::default()).unwrap()));
    let ledger = Accountant::new(None);
    let room = ActiveRoom { layers: 1, element: Element::Bf16, n_tokens: vec![700, 1000] };
    let mut caches = LayerCaches::new(3, room);
    let first = CacheOf { seq: 0, layer: 0 };
    let one = 2 * dry.sizes().active_half(&shape, Element::Bf16, 1000);
    for _ in 0..2 {
        caches.open((&dry, &ledger), &shape, first).unwrap();
        assert_eq!(ledger.live()[Component::ActiveKv], one);
    }
    // Of this sequence or another.
    for at in [CacheOf { seq: 0, layer: 1 }, CacheOf { seq: 1, layer: 1 }] {
        let second = caches.open((&dry, &ledger), &shape, at).err().unwrap();
        assert!(matches!(second, Error::ActiveLayers { layer: 1, active: 1, room: 1 }), "{second}");
        assert_eq!(ledger.live()[Component::ActiveKv], one);
    }
    let early = caches.into_retained().err().unwrap();
    assert!(matches!(early, Error::ActiveLayers { .. }), "{early}");
    assert_eq!(ledger.live(), Breakdown::default());
}
