//! Hashes of every row that a run computes and keeps.

use super::{Difference, Numbers, Unplanned, run_deviation, step_deviation};
use crate::backend::Backend;
use crate::cache::RetainedKv;
use crate::config::RunConfig;
use crate::engine::Engine;
use crate::error::Error;
use crate::memory::{StepMemory, plan_steps};
use crate::observe::{Observer, Progress, Tap};
use crate::position::Pos;
use crate::schedule::Step;
use std::ops::ControlFlow;

/// One run.
pub(super) struct Fingerprint {
    pub computed: Computed,
    pub kept: Kept,
    pub unplanned: Option<Unplanned>,
}

/// What is computed before eviction, in the order of computation.
#[derive(Clone)]
pub(super) struct Computed {
    embedding: Vec<u64>,
    layers: Vec<LayerRows>,
    logits: u64,
}

/// `[S]` each.
#[derive(Clone)]
struct LayerRows {
    keys: Vec<u64>,
    values: Vec<u64>,
    output: Vec<u64>,
}

/// What is kept, layer by layer.
#[derive(Clone)]
pub(super) struct Kept(Vec<KeptLayer>);

/// Rows of all KV heads, back to back.
#[derive(Clone)]
struct KeptLayer {
    offsets: Vec<usize>,
    positions: Vec<Pos>,
    keys: Vec<u64>,
    values: Vec<u64>,
}

impl Computed {
    fn new(n_layers: usize, n_tokens: usize) -> Self {
        let rows = || vec![0; n_tokens];
        let layer = || LayerRows { keys: rows(), values: rows(), output: rows() };
        let layers = (0..n_layers).map(|_| layer()).collect();
        Computed { embedding: rows(), layers, logits: 0 }
    }

    pub fn first_difference(&self, other: &Computed) -> Option<Difference> {
        let row = |numbers, layer, mine: &[u64], theirs: &[u64]| {
            let position = first_mismatch(mine, theirs)?;
            Some(Difference { numbers, layer, head: None, position })
        };
        let mut layers = self.layers.iter().zip(&other.layers).enumerate();
        row(Numbers::Hidden, None, &self.embedding, &other.embedding)
            .or_else(|| {
                layers.find_map(|(layer, (mine, theirs))| {
                    let layer = Some(layer);
                    row(Numbers::Keys, layer, &mine.keys, &theirs.keys)
                        .or_else(|| row(Numbers::Values, layer, &mine.values, &theirs.values))
                        .or_else(|| row(Numbers::Hidden, layer, &mine.output, &theirs.output))
                })
            })
            .or_else(|| {
                let position = self.embedding.len().saturating_sub(1);
                let last =
                    Difference { numbers: Numbers::Logits, layer: None, head: None, position };
                (self.logits != other.logits).then_some(last)
            })
    }
}

impl Kept {
    pub fn first_difference(&self, other: &Kept) -> Option<Difference> {
        let mut layers = self.0.iter().zip(&other.0).enumerate();
        layers.find_map(|(layer, (mine, theirs))| {
            let at = |numbers, row: usize| Difference {
                numbers,
                layer: Some(layer),
                head: mine.offsets.iter().skip(1).position(|&end| row < end),
                position: mine
                    .positions
                    .get(row)
                    .or(theirs.positions.get(row))
                    .map_or(0, |p| p.0 as usize),
            };
            // Equal positions in other heads are found as differing offsets.
            let offset = first_mismatch(&mine.offsets, &theirs.offsets)
                .map(|head| mine.offsets[head].min(theirs.offsets[head]));
            first_mismatch(&mine.positions, &theirs.positions)
                .or(offset)
                .map(|row| at(Numbers::KeptPositions, row))
                .or_else(|| Some(at(Numbers::KeptKeys, first_mismatch(&mine.keys, &theirs.keys)?)))
                .or_else(|| {
                    Some(at(Numbers::KeptValues, first_mismatch(&mine.values, &theirs.values)?))
                })
        })
    }
}

/// Index of the first element that differs or that only one of both has.
fn first_mismatch<T: PartialEq>(mine: &[T], theirs: &[T]) -> Option<usize> {
    let common = mine.len().min(theirs.len());
    let differs = mine.iter().zip(theirs).position(|(mine, theirs)| mine != theirs);
    differs.or((mine.len() != theirs.len()).then_some(common))
}

/// Reads a prompt and takes the run's fingerprint.
///
/// # Errors
/// Whatever stops the run.
pub(super) fn take<B: Backend>(
    engine: &Engine<B>,
    tokens: &[u32],
    config: &RunConfig,
    observer: &mut dyn Observer,
) -> Result<Fingerprint, Error> {
    let shape = &engine.model().spec.shape;
    let sizes = engine.backend().sizes();
    let mut planned = Vec::new();
    let n_tokens = [tokens.len()];
    let plan = plan_steps(&engine.plan_input(&*sizes, config, &n_tokens), |step| {
        planned.push(*step);
    })?;
    let mut reader = Reader {
        computed: Computed::new(shape.n_layers, tokens.len()),
        planned: planned.iter(),
        unplanned: None,
        head_dim: shape.head_dim,
        observer,
    };
    let session = engine.prefill(tokens, config, &mut reader)?;
    let Reader { mut computed, unplanned, .. } = reader;
    computed.logits = hash(&session.logits());
    let layers = session.retained().iter();
    Ok(Fingerprint {
        computed,
        kept: Kept(
            layers.map(|layer| kept_layer(engine.backend(), layer, shape.head_dim)).collect(),
        ),
        unplanned: unplanned.or_else(|| run_deviation(&plan, session.accountant())),
    })
}

fn kept_layer<B: Backend>(backend: &B, layer: &RetainedKv<B>, head_dim: usize) -> KeptLayer {
    let positions = layer.kept.positions();
    let hashes = |buffer| {
        let mut numbers = vec![0.0; positions.len() * head_dim];
        backend.read(buffer, layer.element, 0, &mut numbers);
        numbers.chunks_exact(head_dim).map(hash).collect()
    };
    KeptLayer {
        offsets: layer.kept.offsets().to_vec(),
        positions: positions.to_vec(),
        keys: hashes(&layer.k),
        values: hashes(&layer.v),
    }
}

/// Takes the fingerprint while the run goes on, with another observer beside it.
struct Reader<'o, P> {
    computed: Computed,
    planned: P,
    unplanned: Option<Unplanned>,
    head_dim: usize,
    observer: &'o mut dyn Observer,
}

impl<'p, P: Iterator<Item = &'p StepMemory>> Observer for Reader<'_, P> {
    fn before(&mut self, step: &Step, progress: &Progress, tap: &dyn Tap) -> ControlFlow<()> {
        if let (Step::Evict { layer, .. }, Some((keys, values))) = (step, tap.active_kv()) {
            let rows = &mut self.computed.layers[*layer];
            hash_tokens(&keys, self.head_dim, &mut rows.keys);
            hash_tokens(&values, self.head_dim, &mut rows.values);
        }
        self.observer.before(step, progress, tap)
    }

    fn after(&mut self, step: &Step, memory: &StepMemory, tap: &dyn Tap) {
        let rows = match *step {
            Step::Embed { chunk, .. } => Some((&mut self.computed.embedding, chunk)),
            Step::Layer { layer, chunk, .. } => {
                Some((&mut self.computed.layers[layer].output, chunk))
            }
            Step::Evict { .. } | Step::Head { .. } => None,
        };
        if let (Some((hashes, chunk)), Some((_, numbers))) = (rows, tap.hidden()) {
            let hashes = &mut hashes[chunk.start..chunk.end()];
            for (slot, row) in
                hashes.iter_mut().zip(numbers.chunks_exact(numbers.len() / chunk.len))
            {
                *slot = hash(row);
            }
        }
        let deviation = self.planned.next().and_then(|planned| step_deviation(planned, memory));
        self.unplanned = self.unplanned.take().or(deviation);
        self.observer.after(step, memory, tap);
    }
}

/// Hashes of the rows of `[Hkv, S, D]`, one for each of the S tokens.
fn hash_tokens(numbers: &[f32], head_dim: usize, hashes: &mut [u64]) {
    let n_tokens = hashes.len();
    for (token, slot) in hashes.iter_mut().enumerate() {
        let heads = numbers.chunks_exact(n_tokens * head_dim);
        let rows = heads.map(|head| &head[token * head_dim..][..head_dim]);
        *slot = rows.fold(SEED, hash_from);
    }
}

/// 2^64 over the golden ratio.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

fn hash(numbers: &[f32]) -> u64 {
    hash_from(SEED, numbers)
}

/// Hash of the numbers' bits: multiply, rotate. Each step maps different states
/// to different states, so rows that differ in one number never have the same
/// hash; for others a coincidence of 64 bits would be needed.
fn hash_from(state: u64, numbers: &[f32]) -> u64 {
    // Odd, so that the product can be undone; FxHash's multiplier.
    const MULTIPLIER: u64 = 0x517c_c1b7_2722_0a95;
    numbers.iter().fold(state, |state, number| {
        (state ^ u64::from(number.to_bits())).wrapping_mul(MULTIPLIER).rotate_left(29)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_flipped_bit_changes_the_hash() {
        let numbers = [1.0f32, -0.0, 3.5, 0.0];
        for index in 0..numbers.len() {
            for bit in 0..32 {
                let mut flipped = numbers;
                flipped[index] = f32::from_bits(flipped[index].to_bits() ^ (1 << bit));
                assert_ne!(hash(&numbers), hash(&flipped), "number {index}, bit {bit}");
            }
        }
        assert_ne!(hash(&[1.0, 2.0]), hash(&[2.0, 1.0]));
    }

    #[test]
    fn tokens_are_hashed_over_all_heads() {
        // Two heads, three tokens, two columns.
        let numbers: Vec<f32> = (0..12).map(|n| n as f32).collect();
        let mut hashes = [0; 3];
        hash_tokens(&numbers, 2, &mut hashes);
        assert_eq!(hashes[1], hash(&[2.0, 3.0, 8.0, 9.0]));
    }

    #[test]
    fn a_row_too_many_is_a_mismatch() {
        assert_eq!(first_mismatch(&[1, 2], &[1, 2]), None);
        assert_eq!(first_mismatch(&[1, 2], &[1, 3]), Some(1));
        assert_eq!(first_mismatch(&[1, 2], &[1, 2, 3]), Some(2));
        assert_eq!(first_mismatch(&[1], &[]), Some(0));
    }

    fn kept() -> Kept {
        let positions = [0, 5, 7, 1, 5].map(Pos).to_vec();
        let layer = KeptLayer {
            offsets: vec![0, 3, 5],
            positions,
            keys: (10..15).collect(),
            values: (20..25).collect(),
        };
        Kept(vec![layer.clone(), layer])
    }

    #[test]
    fn differences_of_what_is_kept_are_found_where_they_are() {
        assert_eq!(kept().first_difference(&kept()), None);
        let differs = |edit: fn(&mut KeptLayer), numbers, head, position| {
            let mut other = kept();
            edit(&mut other.0[1]);
            let expected = Difference { numbers, layer: Some(1), head: Some(head), position };
            assert_eq!(kept().first_difference(&other), Some(expected));
        };
        differs(|layer| layer.positions[2] = Pos(6), Numbers::KeptPositions, 0, 7);
        differs(|layer| layer.offsets[1] = 2, Numbers::KeptPositions, 0, 7);
        differs(|layer| layer.keys[3] = 0, Numbers::KeptKeys, 1, 1);
        differs(|layer| layer.values[4] = 0, Numbers::KeptValues, 1, 5);
        differs(
            |layer| layer.positions.truncate(layer.positions.len() - 1),
            Numbers::KeptPositions,
            1,
            5,
        );
    }
}
