//! The checks of [`tidekv::verify`] find what they are there to find: a backend
//! whose results depend on the chunk, and a ledger that leaves the plan.
//!
//! The backend is a toy: it follows the seam, its numbers mean nothing, and each
//! can be made wrong by one bit at a chosen layer, position and chunk size.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

use std::num::NonZeroUsize;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidekv::backend::{BackendError, ChunkRows, DecodeRow, LayerOf, ScoreBlock, Sizes, Workspace};
use tidekv::bridge::Bridge;
use tidekv::cache::{ActiveKv, Observation, RetainedKv};
use tidekv::memory::layout;
use tidekv::model::{ModelFile, ModelSpec, Shape};
use tidekv::schedule::{ScheduleKind, Step};
use tidekv::verify::{Case, Difference, Mark, Numbers, Unplanned, Verdict, Verifier, cases};
use tidekv::{
    Backend, Element, Engine, Error, Model, Observer, Progress, RunConfig, Tap, Unobserved,
};
use tidekv_testkit::tiny_llama;

/// A number that the toy computes.
struct Site {
    numbers: Numbers,
    layer: usize,
    /// Its row; of the last row for logits.
    position: usize,
    /// Rows of the chunk it was computed in.
    chunk: usize,
}

/// Decides which numbers are wrong, and which sizes.
#[derive(Clone, Copy)]
struct Faults {
    at: fn(&Site) -> bool,
    sizes: SizeFault,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SizeFault {
    None,
    ActiveKv,
    Scratch,
}

const SOUND: Faults = Faults { at: |_| false, sizes: SizeFault::None };

struct Toy {
    faults: Faults,
    chunk: AtomicUsize,
    sizes_told: AtomicUsize,
}

struct ToySizes(SizeFault);

impl Sizes for ToySizes {
    fn active_half(&self, shape: &Shape, element: Element, n_tokens: usize) -> u64 {
        let extra = if self.0 == SizeFault::ActiveKv { 64 } else { 0 };
        layout::buffer(layout::product(&[n_tokens, shape.kv_cols(), element.bytes()])) + extra
    }

    fn activation(&self, _: &Shape, rows: usize) -> u64 {
        64 * rows as u64
    }

    fn scratch(&self, _: &Shape, _: usize) -> u64 {
        if self.0 == SizeFault::Scratch { 128 } else { 64 }
    }

    fn decode_scratch(&self, _: &Shape) -> u64 {
        64
    }
}

impl Toy {
    fn new(faults: Faults) -> Self {
        Toy { faults, chunk: AtomicUsize::new(0), sizes_told: AtomicUsize::new(0) }
    }

    /// `number`, or the next float if this one is to be wrong.
    fn made(&self, number: f32, numbers: Numbers, layer: usize, position: usize) -> f32 {
        let chunk = self.chunk.load(Ordering::Relaxed);
        let wrong = (self.faults.at)(&Site { numbers, layer, position, chunk });
        f32::from_bits(number.to_bits() + u32::from(wrong))
    }
}

type Done = Result<(), BackendError>;

impl Backend for Toy {
    type Buffer = Vec<f32>;
    type Weights = Shape;

    fn name(&self) -> String {
        "toy".to_owned()
    }

    fn threads(&self) -> usize {
        1
    }

    /// The plan that a check makes for itself is the first to ask, with right
    /// sizes.
    fn sizes(&self) -> Arc<dyn Sizes> {
        let first = self.sizes_told.fetch_add(1, Ordering::Relaxed) == 0;
        Arc::new(ToySizes(if first { SizeFault::None } else { self.faults.sizes }))
    }

    fn alloc(&self, bytes: u64) -> Result<Vec<f32>, BackendError> {
        Ok(vec![0.0; bytes as usize / size_of::<f32>()])
    }

    fn upload(&self, spec: &ModelSpec, _: &Arc<ModelFile>) -> Result<Shape, BackendError> {
        Ok(spec.shape.clone())
    }

    fn embed(&self, shape: &Shape, tokens: &[u32], bridge: &mut Bridge<Self>, row: usize) -> Done {
        let rows = bridge.buffer.chunks_exact_mut(shape.d_model).skip(row);
        self.chunk.store(tokens.len(), Ordering::Relaxed);
        for (hidden, &token) in rows.zip(tokens) {
            hidden.fill(token as f32);
            // The toy's prompts count up from 0, so a token is its position.
            hidden[3] = self.made(token as f32, Numbers::Hidden, usize::MAX, token as usize);
        }
        Ok(())
    }

    fn qkv(
        &self,
        layer: LayerOf<'_, Self>,
        rows: &ChunkRows,
        bridge: &Bridge<Self>,
        _: &mut Workspace<Self>,
        active: &mut ActiveKv<Self>,
    ) -> Done {
        self.chunk.store(rows.span.len, Ordering::Relaxed);
        let (cols, width) = (layer.weights.kv_cols(), layer.weights.d_model);
        for index in 0..rows.span.len {
            let position = rows.span.start + index;
            let hidden = bridge.buffer[(rows.bridge_row + index) * width];
            let made = |numbers| self.made(hidden + 1.0, numbers, layer.index, position);
            active.k[position * cols..][..cols].fill(made(Numbers::Keys));
            active.v[position * cols..][..cols].fill(made(Numbers::Values));
        }
        active.len = rows.span.end();
        Ok(())
    }

    fn keep_queries(
        &self,
        _: &ChunkRows,
        _: Range<usize>,
        _: &Workspace<Self>,
        _: &mut Observation<Self>,
        _: usize,
    ) -> Done {
        Ok(())
    }

    fn attend(
        &self,
        _: LayerOf<'_, Self>,
        _: &ChunkRows,
        _: &Bridge<Self>,
        _: &mut Workspace<Self>,
        _: &ActiveKv<Self>,
    ) -> Done {
        Ok(())
    }

    fn mlp(
        &self,
        layer: LayerOf<'_, Self>,
        rows: &ChunkRows,
        bridge: &mut Bridge<Self>,
        _: &mut Workspace<Self>,
    ) -> Done {
        let width = layer.weights.d_model;
        for index in 0..rows.span.len {
            let hidden = &mut bridge.buffer[(rows.bridge_row + index) * width..][..width];
            let position = rows.span.start + index;
            let made = self.made(hidden[0] + 2.0, Numbers::Hidden, layer.index, position);
            hidden.fill(made);
        }
        Ok(())
    }

    fn score_stats(
        &self,
        _: &mut Observation<Self>,
        _: &ActiveKv<Self>,
        _: &mut Workspace<Self>,
    ) -> Done {
        Ok(())
    }

    fn score_block(
        &self,
        block: ScoreBlock<'_, Self>,
        _: &mut Workspace<Self>,
        out: &mut [f32],
    ) -> Done {
        for scores in out.chunks_exact_mut(block.keys.len()) {
            for (score, position) in scores.iter_mut().zip(block.keys.clone()) {
                let wrong = self.made(0.0, Numbers::KeptPositions, 0, position) > 0.0;
                *score = if wrong { 100.0 } else { (position * 37 % 101) as f32 };
            }
        }
        Ok(())
    }

    fn read_kv(&self, _: &ActiveKv<Self>, _: Range<usize>, _: &mut [f32], _: &mut [f32]) -> Done {
        panic!("the checks score with `score_block`")
    }

    fn gather(&self, active: &ActiveKv<Self>, retained: &mut RetainedKv<Self>) -> Done {
        let heads = retained.kept.n_heads();
        let head_dim = active.k.len() / active.capacity / heads;
        let mut row = 0;
        for head in 0..heads {
            for position in retained.kept.head(head) {
                let from = (position.index() * heads + head) * head_dim;
                let to = row * head_dim;
                retained.k[to..][..head_dim].copy_from_slice(&active.k[from..][..head_dim]);
                retained.v[to..][..head_dim].copy_from_slice(&active.v[from..][..head_dim]);
                row += 1;
            }
        }
        Ok(())
    }

    fn logits(
        &self,
        shape: &Shape,
        (bridge, rows): (&Bridge<Self>, Range<usize>),
        _: &mut Workspace<Self>,
        logits: &mut Vec<f32>,
    ) -> Done {
        logits.fill(bridge.buffer[rows.start * shape.d_model]);
        logits[7] = self.made(1.0, Numbers::Logits, 0, 0);
        Ok(())
    }

    fn decode(&self, _: &Shape, rows: &mut [DecodeRow<'_, Self>]) -> Vec<Done> {
        vec![Ok(()); rows.len()]
    }

    fn read(&self, buffer: &Vec<f32>, element: Element, at: usize, out: &mut [f32]) {
        assert_eq!(element, Element::F32);
        out.copy_from_slice(&buffer[at..][..out.len()]);
    }

    fn sync(&self) -> Done {
        Ok(())
    }
}

const S: usize = 40;

fn size(size: usize) -> NonZeroUsize {
    NonZeroUsize::new(size).unwrap()
}

/// Checks chunks of 8 and 13 on the toy with these faults; no last chunk of 13 has
/// 8 rows.
fn verdicts(faults: Faults, observer: &mut dyn Observer) -> Result<Vec<Verdict>, Error> {
    let file = tempfile::NamedTempFile::new().unwrap();
    tiny_llama(1).write_to(file.path()).unwrap();
    let engine = Engine::new(Model::open(file.path(), None)?, Toy::new(faults))?;
    let tokens: Vec<u32> = (0..S as u32).collect();
    let config = RunConfig {
        selector: "observation(window=4,kernel=1,pool=max)".parse().unwrap(),
        budget: 12,
        score_block: size(10),
        kv: Element::F32,
        bridge: Element::F32,
        max_new_tokens: 2,
        ..RunConfig::default()
    };
    let mut verifier = Verifier::new(&engine, &tokens, &config);
    let cases = cases(S, &[size(8), size(13)]);
    cases.into_iter().map(|case| verifier.check(case, observer)).collect()
}

/// The runs that do not pass, with what is wrong.
fn failures(faults: Faults) -> Vec<Verdict> {
    let mut verdicts = verdicts(faults, &mut Unobserved).unwrap();
    assert_eq!(verdicts.len(), 2 + 3 * 2);
    verdicts.retain(|verdict| !verdict.passed());
    verdicts
}

fn wrong(at: fn(&Site) -> bool) -> Vec<(ScheduleKind, Difference)> {
    let failures = failures(Faults { at, ..SOUND });
    let found = failures.into_iter().map(|verdict| {
        assert_eq!(verdict.case.chunk.get(), 8, "{verdict}");
        assert_eq!(verdict.unplanned, None, "{verdict}");
        (verdict.case.schedule, verdict.difference.unwrap())
    });
    found.collect()
}

const CHUNKED: [ScheduleKind; 3] =
    [ScheduleKind::Chunked, ScheduleKind::TideNoEvict, ScheduleKind::Tide];

#[test]
fn a_sound_backend_passes() {
    assert_eq!(failures(SOUND), []);
}

#[test]
fn a_bit_that_depends_on_the_chunk_is_found_where_it_first_matters() {
    let everywhere = |difference: Difference| CHUNKED.map(|kind| (kind, difference)).to_vec();
    let at = |numbers, layer, position| Difference { numbers, layer, head: None, position };

    let embedding = wrong(|site| {
        site.numbers == Numbers::Hidden
            && (site.layer, site.position, site.chunk) == (usize::MAX, 21, 8)
    });
    assert_eq!(embedding, everywhere(at(Numbers::Hidden, None, 21)));

    let keys = wrong(|site| {
        site.numbers == Numbers::Keys && (site.layer, site.position, site.chunk) == (1, 9, 8)
    });
    assert_eq!(keys, everywhere(at(Numbers::Keys, Some(1), 9)));

    let values = wrong(|site| {
        site.numbers == Numbers::Values && (site.layer, site.position, site.chunk) == (2, 39, 8)
    });
    assert_eq!(values, everywhere(at(Numbers::Values, Some(2), 39)));

    // Wrong output of layer 0 makes wrong keys of layer 1; the cause is named.
    let output = wrong(|site| {
        site.numbers == Numbers::Hidden && (site.layer, site.position, site.chunk) == (0, 17, 8)
    });
    assert_eq!(output, everywhere(at(Numbers::Hidden, Some(0), 17)));

    let logits = wrong(|site| site.numbers == Numbers::Logits && site.chunk == 8);
    assert_eq!(logits, everywhere(at(Numbers::Logits, None, S - 1)));
}

/// Only a schedule that evicts can keep the wrong rows.
#[test]
fn other_kept_positions_are_found() {
    let found = wrong(|site| {
        site.numbers == Numbers::KeptPositions && site.position == 0 && site.chunk == 8
    });
    let first = Difference {
        numbers: Numbers::KeptPositions,
        layer: Some(0),
        head: Some(0),
        // What post-prefill kept first and this run did not.
        position: found[0].1.position,
    };
    assert_eq!(found, [(ScheduleKind::Tide, first)]);
    assert_ne!(first.position, 0);
}

#[test]
fn memory_that_leaves_the_plan_is_found() {
    let first = |sizes| {
        let verdict = failures(Faults { sizes, ..SOUND }).swap_remove(0);
        // The plan of the first check alone was made with the right sizes.
        assert_eq!(verdict.case, Case { schedule: ScheduleKind::OneShot, chunk: size(S) });
        assert_eq!(verdict.difference, None);
        verdict.unplanned.unwrap()
    };
    let Unplanned { mark, at, component, planned_bytes, accounted_bytes } =
        first(SizeFault::Scratch);
    assert_eq!((mark, at.step, at.layer, component), (Mark::HighWater, "embed", None, "scratch"));
    assert_eq!((planned_bytes, accounted_bytes), (64, 128));

    let Unplanned { mark, at, component, planned_bytes, accounted_bytes } =
        first(SizeFault::ActiveKv);
    assert_eq!((mark, at.step, at.layer), (Mark::HighWater, "layer", Some(0)));
    assert_eq!((component, accounted_bytes), ("active_kv", planned_bytes + 128));
}

#[test]
fn the_caller_sees_every_step_and_may_cancel() {
    #[derive(Default)]
    struct Watch {
        seen: usize,
        last: Option<usize>,
    }
    impl Observer for Watch {
        fn before(&mut self, _: &Step, _: &Progress, _: &dyn Tap) -> ControlFlow<()> {
            self.seen += 1;
            match self.last {
                Some(last) if self.seen > last => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    let mut watch = Watch::default();
    verdicts(SOUND, &mut watch).unwrap();
    // Three layers. Whole: embed, 3 x (layer, evict), head. Chunks of 8 and 13: 5 and 4 of them.
    let whole = 1 + 3 * 2 + 1;
    let chunks = |n: usize| n + 3 * (n + 1) + 1;
    assert_eq!(watch.seen, 2 * whole + 3 * (chunks(5) + chunks(4)));

    let mut watch = Watch { last: Some(3), ..Watch::default() };
    assert!(matches!(verdicts(SOUND, &mut watch), Err(Error::Cancelled)));
}

#[test]
fn verdicts_are_lines_and_objects() {
    let sound = verdicts(SOUND, &mut Unobserved).unwrap().swap_remove(7);
    assert_eq!(sound.to_string(), "tide          C = 13     same bits   memory as planned");
    let json = serde_json::to_value(&sound).unwrap();
    let expected = r#"{"schedule":"tide","chunk":13,"difference":null,"unplanned":null}"#;
    assert_eq!(json, serde_json::from_str::<serde_json::Value>(expected).unwrap());

    let keys = failures(Faults {
        at: |site| site.numbers == Numbers::Keys && site.chunk == 8 && site.position == 9,
        sizes: SizeFault::None,
    });
    assert_eq!(
        keys[0].to_string(),
        "chunked       C = 8      DIFFERS first in the keys of layer 0 at position 9   \
         memory as planned"
    );
    let json = serde_json::to_value(&keys[0]).unwrap();
    assert_eq!(json["difference"]["numbers"], "keys");

    let memory = failures(Faults { sizes: SizeFault::Scratch, ..SOUND });
    assert_eq!(
        memory[0].to_string(),
        "one-shot      C = 40     same bits   MEMORY NOT AS PLANNED: scratch within embed: \
         planned 64 bytes, accounted 128"
    );
}
