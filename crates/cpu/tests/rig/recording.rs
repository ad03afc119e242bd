//! Everything a prefill computes, recorded, and compared bit for bit.

use std::ops::ControlFlow;

use tidekv::memory::StepMemory;
use tidekv::schedule::Step;
use tidekv::select::Kept;
use tidekv::{Backend, Engine, Observer, Progress, RunConfig, Session, Tap};
use tidekv_cpu::Cpu;
use tidekv_testkit::compare::assert_bits_eq;

use super::states::States;

/// Keys and values of one layer.
#[derive(Debug, Clone, Default)]
pub struct Kv {
    pub k: Vec<f32>,
    pub v: Vec<f32>,
}

/// The numbers of one prefill.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    /// Hidden states.
    pub hidden: States,
    /// `[N]`: all keys and values of a layer before eviction, `[Hkv, S, D]`.
    pub active: Vec<Kv>,
    /// `[N]`: kept positions.
    pub kept: Vec<Kept>,
    /// `[N]`: kept keys and values, heads back to back.
    pub retained: Vec<Kv>,
    /// Logits of the last token, `[vocab]`.
    pub logits: Vec<f32>,
}

impl Observer for Recording {
    fn before(&mut self, _: &Step, _: &Progress, tap: &dyn Tap) -> ControlFlow<()> {
        if let Some((k, v)) = tap.active_kv() {
            self.active.push(Kv { k, v });
        }
        ControlFlow::Continue(())
    }

    fn after(&mut self, step: &Step, memory: &StepMemory, tap: &dyn Tap) {
        self.hidden.after(step, memory, tap);
    }
}

/// Recordings of the prompts of a batch.
struct Recordings(Vec<Recording>);

impl Observer for Recordings {
    fn before(&mut self, step: &Step, progress: &Progress, tap: &dyn Tap) -> ControlFlow<()> {
        self.0[step.seq()].before(step, progress, tap)
    }

    fn after(&mut self, step: &Step, memory: &StepMemory, tap: &dyn Tap) {
        self.0[step.seq()].after(step, memory, tap);
    }
}

/// Reads a prompt and records everything.
pub fn record<'e>(
    engine: &'e Engine<Cpu>,
    tokens: &[u32],
    config: &RunConfig,
) -> (Recording, Session<'e, Cpu>) {
    record_batch(engine, &[tokens], config).pop().unwrap()
}

/// Reads prompts together and records everything of each.
pub fn record_batch<'e>(
    engine: &'e Engine<Cpu>,
    prompts: &[&[u32]],
    config: &RunConfig,
) -> Vec<(Recording, Session<'e, Cpu>)> {
    let mut recordings = Recordings(vec![Recording::default(); prompts.len()]);
    let sessions = engine.prefill_batch(prompts, config, &mut recordings).unwrap();
    assert_eq!(sessions.len(), prompts.len());
    let mut recorded: Vec<_> = recordings.0.into_iter().zip(sessions).collect();
    recorded.iter_mut().for_each(|(recording, session)| recording.finish(session));
    recorded
}

impl Recording {
    /// What prefill has left behind.
    fn finish(&mut self, session: &Session<'_, Cpu>) {
        let engine = session.engine();
        let shape = &engine.model().spec.shape;
        for retained in session.retained() {
            let read = |buffer| {
                let mut numbers = vec![0.0; retained.kept.positions().len() * shape.head_dim];
                engine.backend().read(buffer, retained.element, 0, &mut numbers);
                numbers
            };
            self.retained.push(Kv { k: read(&retained.k), v: read(&retained.v) });
            self.kept.push(retained.kept.clone());
        }
        self.logits = session.logits();
    }
}

/// Panics unless both runs computed the same bits before eviction: hidden states
/// after every layer, all keys and values, and the logits.
#[track_caller]
pub fn assert_same_prefill(actual: &Recording, expected: &Recording, what: &str) {
    let (actual_states, expected_states) = (&actual.hidden.0, &expected.hidden.0);
    assert_eq!(actual_states.len(), expected_states.len(), "{what}: layers");
    for (layer, (a, e)) in actual_states.iter().zip(expected_states).enumerate() {
        assert_bits_eq(a, e, &format!("{what}: hidden states after {layer} layers"));
    }
    assert_same_kv(&actual.active, &expected.active, &format!("{what}: active"));
    assert_bits_eq(&actual.logits, &expected.logits, &format!("{what}: logits"));
}

/// Panics unless both runs kept the same positions with the same bits.
#[track_caller]
pub fn assert_same_cache(actual: &Recording, expected: &Recording, what: &str) {
    assert_eq!(actual.kept, expected.kept, "{what}: kept positions");
    assert_same_kv(&actual.retained, &expected.retained, &format!("{what}: retained"));
}

/// Panics unless both have the same keys and values of every layer.
#[track_caller]
pub fn assert_same_kv(actual: &[Kv], expected: &[Kv], what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}: layers");
    for (layer, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert_bits_eq(&a.k, &e.k, &format!("{what} keys of layer {layer}"));
        assert_bits_eq(&a.v, &e.v, &format!("{what} values of layer {layer}"));
    }
}
