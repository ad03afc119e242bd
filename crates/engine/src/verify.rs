//! Checks on the user's own model and machine: every order and chunk size gives
//! the same bits, and the accountant follows the plan.

use crate::backend::Backend;
use crate::config::{Outputs, RunConfig};
use crate::engine::Engine;
use crate::error::Error;
use crate::memory::{Component, StepMemory, plan_steps};
use crate::observe::{Observer, Progress, Tap};
use crate::report::PeakAt;
use crate::schedule::{Schedule, ScheduleKind, Step};
use serde::Serialize;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;

/// What one schedule did, compared with the whole prompt at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Schedule.
    pub schedule: String,
    /// C.
    pub chunk: usize,
    /// The first number that differs from the reference, if any.
    pub difference: Option<Difference>,
    /// The first step whose memory differs from the plan, if any.
    pub unplanned: Option<Unplanned>,
}

impl Verdict {
    /// Whether nothing differs.
    pub fn passed(&self) -> bool {
        self.difference.is_none() && self.unplanned.is_none()
    }
}

/// Where bits differ first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// `hidden`, `keys`, `values` or `logits`.
    pub what: &'static str,
    /// Layer whose output or cache differs; `None` for embeddings and logits.
    pub layer: Option<usize>,
    /// Position of the first differing row.
    pub position: usize,
}

/// Where memory differs from the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unplanned {
    /// Kind of step.
    pub step: &'static str,
    /// Layer of the step.
    pub layer: Option<usize>,
    /// Component.
    pub component: &'static str,
    /// Bytes planned.
    pub planned: u64,
    /// Bytes accounted.
    pub accounted: u64,
}

/// Runs the checks: the whole prompt at once as the reference, then `chunked`,
/// `tide-noevict` and `tide` with each chunk size. `each` hears of every verdict
/// as it is reached.
///
/// # Errors
/// Whatever stops a run; a difference is not an error but a verdict.
pub fn verify<B: Backend>(
    engine: &Engine<B>,
    tokens: &[u32],
    config: &RunConfig,
    chunks: &[NonZeroUsize],
    each: &mut dyn FnMut(&Verdict) -> ControlFlow<()>,
) -> Result<Vec<Verdict>, Error> {
    let run = |schedule| fingerprint(engine, tokens, &with_schedule(config, schedule));
    let whole = NonZeroUsize::MIN;
    let reference = run(ScheduleKind::OneShot.with_chunk(whole))?;
    let mut verdicts = vec![Verdict {
        schedule: ScheduleKind::OneShot.name().to_owned(),
        chunk: tokens.len(),
        difference: None,
        unplanned: reference.unplanned.clone(),
    }];
    let mut stop = verdicts.iter().any(|verdict| each(verdict).is_break());
    for kind in [ScheduleKind::Chunked, ScheduleKind::TideNoEvict, ScheduleKind::Tide] {
        for &chunk in chunks {
            if stop {
                return Err(Error::Cancelled);
            }
            let found = run(kind.with_chunk(chunk))?;
            let verdict = Verdict {
                schedule: kind.name().to_owned(),
                chunk: chunk.get(),
                difference: reference.first_difference(&found),
                unplanned: found.unplanned,
            };
            stop = each(&verdict).is_break();
            verdicts.push(verdict);
        }
    }
    Ok(verdicts)
}

fn with_schedule(config: &RunConfig, schedule: Schedule) -> RunConfig {
    RunConfig { schedule, outputs: Outputs::AllHidden, max_new_tokens: 1, ..config.clone() }
}

/// Hashes of every row that a run computes. Equal hashes stand for equal bits; a
/// 64-bit hash misses a difference with probability 2^-64.
struct Fingerprint {
    n_tokens: usize,
    /// Hidden states, `[N + 1, S]`: the embedding, then each layer's output.
    hidden: Vec<u64>,
    /// Keys and values before eviction, `[N, S]` each, all KV heads of a token
    /// together.
    keys: Vec<u64>,
    values: Vec<u64>,
    logits: u64,
    unplanned: Option<Unplanned>,
}

impl Fingerprint {
    fn first_difference(&self, other: &Fingerprint) -> Option<Difference> {
        let s = self.n_tokens;
        let first = |mine: &[u64], theirs: &[u64]| mine.iter().zip(theirs).position(|(a, b)| a != b);
        if let Some(at) = first(&self.hidden, &other.hidden) {
            let layer = (at / s).checked_sub(1);
            return Some(Difference { what: "hidden", layer, position: at % s });
        }
        for (what, mine, theirs) in
            [("keys", &self.keys, &other.keys), ("values", &self.values, &other.values)]
        {
            if let Some(at) = first(mine, theirs) {
                return Some(Difference { what, layer: Some(at / s), position: at % s });
            }
        }
        let logits = Difference { what: "logits", layer: None, position: s - 1 };
        (self.logits != other.logits).then_some(logits)
    }
}

fn fingerprint<B: Backend>(
    engine: &Engine<B>,
    tokens: &[u32],
    config: &RunConfig,
) -> Result<Fingerprint, Error> {
    let shape = &engine.model().spec.shape;
    let (n, s) = (shape.n_layers, tokens.len());
    let sizes = engine.backend().sizes();
    let mut planned = Vec::new();
    plan_steps(&engine.plan_input(&*sizes, config, s), |step| planned.push(*step))?;
    let fingerprint = Fingerprint {
        n_tokens: s,
        hidden: vec![0; (n + 1) * s],
        keys: vec![0; n * s],
        values: vec![0; n * s],
        logits: 0,
        unplanned: None,
    };
    let mut reader = Reader { fingerprint, planned: planned.into_iter(), row: shape.head_dim };
    let session = engine.prefill(tokens, config, &mut reader)?;
    reader.fingerprint.logits = hash(session.logits().iter());
    Ok(reader.fingerprint)
}

/// Takes the fingerprint while the run goes on.
struct Reader<P> {
    fingerprint: Fingerprint,
    planned: P,
    /// D, floats of one head's row.
    row: usize,
}

impl<P: Iterator<Item = StepMemory>> Observer for Reader<P> {
    fn before(&mut self, step: &Step, _: &Progress, tap: &dyn Tap) -> ControlFlow<()> {
        let Reader { fingerprint, row, .. } = self;
        if let (Step::Evict { layer, .. }, Some((keys, values))) = (step, tap.active_kv()) {
            let s = fingerprint.n_tokens;
            for (hashes, rows) in [(&mut fingerprint.keys, keys), (&mut fingerprint.values, values)] {
                for (position, hash) in hashes[layer * s..][..s].iter_mut().enumerate() {
                    let heads = rows.chunks_exact(s * *row);
                    *hash = self::hash(heads.flat_map(|head| &head[position * *row..][..*row]));
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn after(&mut self, step: &Step, memory: &StepMemory, tap: &dyn Tap) {
        let Reader { fingerprint, planned, .. } = self;
        if let Some((first, rows)) = tap.hidden() {
            let s = fingerprint.n_tokens;
            let layer = step.layer().map_or(0, |layer| layer + 1);
            let (Step::Embed { chunk, .. } | Step::Layer { chunk, .. }) = *step else { return };
            let width = rows.len() / chunk.len;
            let hashes = &mut fingerprint.hidden[layer * s + first..][..chunk.len];
            for (hash, row) in hashes.iter_mut().zip(rows.chunks_exact(width)) {
                *hash = self::hash(row.iter());
            }
        }
        if fingerprint.unplanned.is_none() {
            fingerprint.unplanned = planned.next().and_then(|planned| deviation(&planned, memory));
        }
    }
}

/// The first component in which a step's memory differs from its plan.
fn deviation(planned: &StepMemory, seen: &StepMemory) -> Option<Unplanned> {
    let at = PeakAt::from(seen.moment);
    let pairs = [(planned.high_water, seen.high_water), (planned.after, seen.after)];
    pairs.into_iter().find_map(|(planned, seen)| {
        let component = Component::ALL.into_iter().find(|&c| planned[c] != seen[c])?;
        Some(Unplanned {
            step: at.step,
            layer: at.layer,
            component: component.name(),
            planned: planned[component],
            accounted: seen[component],
        })
    })
}

/// 64-bit FNV-1a over the bits of the numbers.
fn hash<'a>(numbers: impl Iterator<Item = &'a f32>) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    numbers.fold(OFFSET, |hash, number| (hash ^ u64::from(number.to_bits())).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Moment;

    fn fingerprint() -> Fingerprint {
        let hashes = |n: usize| (0..n as u64).collect();
        Fingerprint {
            n_tokens: 4,
            hidden: hashes(12),
            keys: hashes(8),
            values: hashes(8),
            logits: 1,
            unplanned: None,
        }
    }

    #[test]
    fn differences_are_found_where_they_are() {
        let reference = fingerprint();
        assert_eq!(reference.first_difference(&fingerprint()), None);
        let differs = |edit: fn(&mut Fingerprint), what, layer, position| {
            let mut other = fingerprint();
            edit(&mut other);
            let expected = Some(Difference { what, layer, position });
            assert_eq!(reference.first_difference(&other), expected);
        };
        differs(|f| f.hidden[2] = 99, "hidden", None, 2);
        differs(|f| f.hidden[9] = 99, "hidden", Some(1), 1);
        differs(|f| f.keys[7] = 99, "keys", Some(1), 3);
        differs(|f| f.values[0] = 99, "values", Some(0), 0);
        differs(|f| f.logits = 99, "logits", None, 3);
    }

    #[test]
    fn one_flipped_bit_changes_the_hash() {
        let numbers = [1.0f32, -0.0, 3.5];
        let mut flipped = numbers;
        flipped[1] = 0.0;
        assert_ne!(hash(numbers.iter()), hash(flipped.iter()));
    }

    #[test]
    fn a_byte_too_much_is_unplanned() {
        let mut memory = StepMemory {
            moment: Moment::Step(Step::Evict { seq: 0, layer: 3 }),
            high_water: Default::default(),
            after: Default::default(),
        };
        let planned = memory;
        assert_eq!(deviation(&planned, &memory), None);
        memory.high_water[Component::Scratch] = 1;
        let found = deviation(&planned, &memory).unwrap();
        assert_eq!((found.component, found.layer, found.accounted), ("scratch", Some(3), 1));
    }
}
