//! A scorer of the caller's own keeps what a brute-force computation over all keys
//! and values keeps, whatever the score block and the schedule; and it is an error
//! where its scores cannot be ranked.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

mod rig {
    pub mod device;
    pub mod recording;
    pub mod scorers;
    pub mod states;
    pub mod tiny;
}

use rig::device::engine;
use rig::recording::{Recording, assert_same_cache, assert_same_prefill, record};
use rig::scorers::{FarFromMean, add, worth};
use rig::tiny::{TinyFile, prompt};
use std::num::NonZeroUsize;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex};
use tidekv::model::Shape;
use tidekv::schedule::ScheduleKind;
use tidekv::select::{
    CustomScorer, KeyBlock, KeyScorer, LayerContext, LayerScorer, Scorer, SelectError, Selector,
};
use tidekv::{Element, Error, RunConfig, Unobserved};
use tidekv_testkit::{Arch, TinySpec, tiny_families, tiny_llama, tiny_qwen2};

const S: usize = 200;
const BUDGET: usize = 40;
const SINKS: usize = 3;
const RECENT: usize = 9;

fn config(kind: ScheduleKind, block: usize, scorer: Scorer) -> RunConfig {
    RunConfig {
        schedule: kind.with_chunk(NonZeroUsize::new(50).unwrap()),
        selector: Selector { sinks: SINKS, recent: RECENT, ..Selector::new(scorer) },
        budget: BUDGET,
        score_block: NonZeroUsize::new(block).unwrap(),
        max_new_tokens: 4,
        ..RunConfig::default()
    }
}

/// The kept positions of one head, from all its keys and values `[S, D]`.
fn brute_force(k: &[f32], v: &[f32], head_dim: usize) -> Vec<u32> {
    let mut sum = vec![0.0; head_dim];
    k.chunks_exact(head_dim).for_each(|key| add(&mut sum, key));
    let rows = k.chunks_exact(head_dim).zip(v.chunks_exact(head_dim));
    let scores: Vec<f32> = rows.map(|row| worth(&sum, S, row)).collect();
    let mut ranked: Vec<usize> = (SINKS..S - RECENT).collect();
    ranked.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let chosen = ranked[..BUDGET - SINKS - RECENT].iter().copied();
    let mut kept: Vec<u32> =
        (0..SINKS).chain(chosen).chain(S - RECENT..S).map(|position| position as u32).collect();
    kept.sort_unstable();
    kept
}

/// Panics unless every layer without a window kept what brute force keeps.
fn assert_brute_force(recording: &Recording, shape: &Shape, what: &str) {
    let floats = S * shape.head_dim;
    for (layer, (active, kept)) in recording.active.iter().zip(&recording.kept).enumerate() {
        if shape.window(layer).is_some() {
            continue;
        }
        for head in 0..shape.n_kv_heads {
            let of_head = head * floats..(head + 1) * floats;
            let expected =
                brute_force(&active.k[of_head.clone()], &active.v[of_head], shape.head_dim);
            let actual: Vec<u32> = kept.head(head).iter().map(|position| position.0).collect();
            assert_eq!(actual, expected, "{what}: layer {layer}, head {head}");
        }
    }
}

#[test]
fn kept_sets_equal_brute_force_for_every_score_block_and_schedule() {
    let gemma = tiny_families(3).into_iter().find(|spec| spec.arch == Arch::Gemma3).unwrap();
    let specs = [
        (tiny_llama(1), Element::F32),
        (tiny_qwen2(2), Element::Bf16),
        (TinySpec { n_heads: 4, n_kv_heads: 1, head_dim: 64, ..tiny_llama(3) }, Element::F16),
        // Five layers of six have a window.
        (gemma, Element::Bf16),
    ];
    for (spec, kv) in specs {
        let file = TinyFile::write(&spec.writer());
        let engine = engine(file.path(), 2, None);
        let tokens = prompt(4, spec.vocab, S);
        let scorer = Scorer::custom(FarFromMean);
        let mut first: Option<Recording> = None;
        for kind in [ScheduleKind::Tide, ScheduleKind::ChunkedPost, ScheduleKind::PostPrefill] {
            for block in [5, 32, 64, S] {
                let what = format!("{}, {kind}, blocks of {block}", spec.arch.name());
                let config = RunConfig { kv, ..config(kind, block, scorer.clone()) };
                let (recording, session) = record(&engine, &tokens, &config);
                assert_eq!(recording.active.len(), spec.n_layers, "{what}");
                assert_brute_force(&recording, &engine.model().spec.shape, &what);
                let first = first.get_or_insert_with(|| recording.clone());
                assert_same_prefill(&recording, first, &what);
                assert_same_cache(&recording, first, &what);
                let ledger = session.accountant();
                assert_eq!(ledger.peak().bytes, session.plan().peak.bytes, "{what}");
            }
        }
    }
}

/// The comparison itself: a run that keeps other positions fails it.
#[test]
#[should_panic(expected = "streaming: layer 0, head 0")]
fn brute_force_is_not_what_another_selector_keeps() {
    let spec = tiny_llama(1);
    let file = TinyFile::write(&spec.writer());
    let engine = engine(file.path(), 1, None);
    let config = RunConfig {
        selector: "streaming".parse().unwrap(),
        ..config(ScheduleKind::Tide, 64, Scorer::Recency)
    };
    let (recording, _) = record(&engine, &prompt(4, spec.vocab, S), &config);
    assert_brute_force(&recording, &engine.model().spec.shape, "streaming");
}

/// What a scorer was asked, layer by layer: the blocks of both passes.
#[derive(Default)]
struct Diary(Mutex<Vec<Asked>>);

#[derive(Debug, Clone, PartialEq)]
struct Asked {
    layer: LayerContext,
    observed: Vec<Range<usize>>,
    scored: Vec<Range<usize>>,
}

struct Entry<'a> {
    diary: &'a Diary,
    asked: Asked,
}

impl KeyScorer for Diary {
    fn name(&self) -> &str {
        "diary"
    }

    fn layer(&self, layer: &LayerContext) -> Box<dyn LayerScorer + '_> {
        let asked = Asked { layer: *layer, observed: Vec::new(), scored: Vec::new() };
        Box::new(Entry { diary: self, asked })
    }
}

impl LayerScorer for Entry<'_> {
    fn observe(&mut self, block: &KeyBlock<'_>) -> ControlFlow<()> {
        self.asked.observed.push(block.positions());
        // The first layer reads on, the others do not.
        if self.asked.layer.layer == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn score(&mut self, block: &KeyBlock<'_>, scores: &mut [f32]) {
        let context = self.asked.layer;
        assert_eq!(scores.len(), context.kv_heads * block.n_keys());
        assert_eq!(block.k().len(), scores.len() * context.head_dim);
        self.asked.scored.push(block.positions());
        scores.fill(0.0);
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.diary.0.lock().unwrap().push(self.asked.clone());
    }
}

#[test]
fn a_scorer_is_shown_the_blocks_that_are_promised_and_only_where_it_decides() {
    let spec = tiny_families(5).into_iter().find(|spec| spec.arch == Arch::Gemma3).unwrap();
    let file = TinyFile::write(&spec.writer());
    let engine = engine(file.path(), 2, None);
    let shape = &engine.model().spec.shape;
    let tokens = prompt(6, spec.vocab, S);
    let diary = Arc::new(Diary::default());
    let run = |kind, budget| {
        let scorer = Scorer::Custom(CustomScorer::new(diary.clone()));
        let config = RunConfig { budget, ..config(kind, 64, scorer) };
        let session = engine.prefill(&tokens, &config, &mut Unobserved).unwrap();
        let kept = session.retained().iter().map(|layer| layer.kept.head(0).len()).collect();
        let kept: Vec<usize> = kept;
        (std::mem::take(&mut *diary.0.lock().unwrap()), kept)
    };

    let (asked, _) = run(ScheduleKind::Tide, BUDGET);
    let global: Vec<usize> = (0..shape.n_layers).filter(|&l| shape.window(l).is_none()).collect();
    assert!(!global.is_empty() && global.len() < shape.n_layers);
    let layers: Vec<usize> = asked.iter().map(|asked| asked.layer.layer).collect();
    assert_eq!(layers, global);
    for Asked { layer, observed, scored } in asked {
        assert_eq!(layer, LayerContext::new(shape, layer.layer, S));
        let all = [0..64, 64..128, 128..192, 192..S];
        assert_eq!(observed, if layer.layer == 0 { &all[..] } else { &all[..1] });
        assert_eq!(scored, [0..64, 64..128, 128..S - RECENT]);
    }

    // Nothing to choose: a budget for all, a schedule that keeps all, a budget that
    // the mandatory positions fill.
    for (kind, budget) in [
        (ScheduleKind::Tide, S),
        (ScheduleKind::OneShot, BUDGET),
        (ScheduleKind::Tide, SINKS + RECENT),
    ] {
        let (asked, kept) = run(kind, budget);
        assert_eq!(asked, [], "{kind}, {budget}");
        let expected = if budget == SINKS + RECENT { budget } else { S };
        assert!(global.iter().all(|&layer| kept[layer] == expected), "{kind}, {budget}: {kept:?}");
    }
}

/// Writes `value` for one position of one head, or nothing where it is `None`.
struct Faulty(Option<f32>);

const AT: (usize, usize) = (1, 70);

impl KeyScorer for Faulty {
    fn name(&self) -> &str {
        "faulty"
    }

    fn layer(&self, _: &LayerContext) -> Box<dyn LayerScorer + '_> {
        Box::new(Faulty(self.0))
    }
}

impl LayerScorer for Faulty {
    fn score(&mut self, block: &KeyBlock<'_>, scores: &mut [f32]) {
        for (head, scores) in scores.chunks_exact_mut(block.n_keys()).enumerate() {
            for (score, position) in scores.iter_mut().zip(block.positions()) {
                match self.0 {
                    _ if (head, position) != AT => *score = 1.0,
                    Some(value) => *score = value,
                    None => {}
                }
            }
        }
    }
}

#[test]
fn a_score_that_cannot_be_ranked_is_an_error_that_names_the_scorer() {
    let spec = tiny_llama(7);
    let file = TinyFile::write(&spec.writer());
    let engine = engine(file.path(), 2, None);
    let tokens = prompt(8, spec.vocab, S);
    for value in [Some(f32::NAN), Some(f32::INFINITY), Some(f32::NEG_INFINITY), None] {
        for block in [7, S] {
            let config = config(ScheduleKind::Tide, block, Scorer::custom(Faulty(value)));
            let error = engine.prefill(&tokens, &config, &mut Unobserved).err().unwrap();
            let Error::Select(SelectError::FaultyScorer { scorer, head, position, .. }) = &error
            else {
                panic!("{error}");
            };
            assert_eq!((scorer.as_str(), (*head, *position)), ("faulty", AT));
            assert!(error.to_string().contains("scorer `faulty` gave position 70"), "{error}");
        }
    }
    let config = config(ScheduleKind::Tide, 64, Scorer::custom(Faulty(Some(2.0))));
    engine.prefill(&tokens, &config, &mut Unobserved).unwrap();
}
