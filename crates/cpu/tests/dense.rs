//! The engine against a dense forward pass in f64 that shares no code with it:
//! prefill on every kind of shape, decoding after eviction with the evicted keys
//! hidden at their true positions, and which query heads a KV head feeds.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

mod rig {
    pub mod device;
    pub mod states;
    pub mod tiny;
}

use rig::device::engine_f32;
use rig::states::States;
use rig::tiny::{TinyFile, prompt};
use std::num::NonZeroUsize;
use tidekv::cache::RetainedKv;
use tidekv::schedule::ScheduleKind;
use tidekv::select::{GroupReduce, Observation, Pool, PoolOrder, Scorer, Selector};
use tidekv::{Element, Outputs, Pos, RunConfig, Session, Unobserved};
use tidekv_cpu::{Cpu, Isa, Tier};
use tidekv_format::{GgufFile, TensorType};
use tidekv_testkit::compare::assert_bits_eq;
use tidekv_testkit::reference::{Edge, Reference};
use tidekv_testkit::{GgufWriter, TinySpec, tiny_llama, tiny_qwen2};

/// Largest difference allowed between f32 and exact arithmetic, for states and
/// logits of scale 1 to 3. Sums of K <= 320 products are about sqrt(K) half-ulps
/// (2^-24) off, 1e-6 each, some ten in a row. Angles are exact to half an ulp of
/// their cosines.
const BOUND: f64 = 1e-5;

fn tiers() -> impl Iterator<Item = Tier> {
    Isa::available().into_iter().map(Isa::tier)
}

fn f32_config(kind: ScheduleKind, budget: usize) -> RunConfig {
    RunConfig {
        schedule: kind.with_chunk(NonZeroUsize::new(100).unwrap()),
        budget,
        kv: Element::F32,
        bridge: Element::F32,
        max_new_tokens: 8,
        outputs: Outputs::AllHidden,
        ..RunConfig::default()
    }
}

/// Largest |a - e|; infinite where `actual` is not finite.
fn distance(actual: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(actual.len(), expected.len(), "slices of different lengths");
    let apart = |(&a, &e): (&f32, &f64)| {
        if a.is_finite() { (f64::from(a) - e).abs() } else { f64::INFINITY }
    };
    actual.iter().zip(expected).map(apart).fold(0.0, f64::max)
}

fn specs() -> Vec<(&'static str, TinySpec)> {
    let types = tidekv_testkit::MatrixTypes::all;
    vec![
        ("G 3", tiny_llama(61)),
        ("G 7, biases", tiny_qwen2(62)),
        ("MQA, D 64", TinySpec { n_heads: 4, n_kv_heads: 1, head_dim: 64, ..tiny_llama(63) }),
        ("MHA, D 80", TinySpec { n_heads: 3, n_kv_heads: 3, head_dim: 80, ..tiny_qwen2(64) }),
        ("Q4_1", TinySpec { d_ff: 224, types: types(TensorType::Q4_1), ..tiny_llama(65) }),
        ("BF16, untied", TinySpec { types: types(TensorType::BF16), ..tiny_qwen2(66) }),
    ]
}

#[test]
fn prefill_agrees_with_the_dense_reference_after_every_layer() {
    for (name, spec) in specs() {
        let file = TinyFile::write(&spec.writer());
        let reference = Reference::open(file.path());
        let tokens = prompt(3, spec.vocab, 260);
        let dense = reference.forward(&tokens, |_| true);
        for tier in tiers() {
            let engine = engine_f32(file.path(), 2, Some(tier));
            let config = f32_config(ScheduleKind::Tide, 4096);
            let mut states = States::default();
            let session = engine.prefill(&tokens, &config, &mut states).unwrap();
            for (layer, (actual, expected)) in states.0.iter().zip(&dense.hidden).enumerate() {
                let apart = distance(actual, expected);
                assert!(apart <= BOUND, "{name}, {tier}, after {layer} layers: {apart}");
            }
            let apart = distance(&session.logits(), &reference.logits(&dense, 259));
            println!("{name}, {tier}: logits {apart:.1e} apart");
            assert!(apart <= BOUND, "{name}, {tier}: logits {apart}");
        }
    }
}

/// What the tests of decoding after eviction share: 600 tokens, 128 kept.
struct Evicted<'e> {
    session: Session<'e, Cpu>,
    reference: Reference,
    tokens: Vec<u32>,
}

const PROMPT: usize = 600;
const BUDGET: usize = 128;
const FED: usize = 8;

impl Evicted<'_> {
    /// Feeds the rest of the tokens and returns the largest distance between
    /// the engine's logits and the reference's.
    fn distance(mut self, positions: &[usize], visible: impl Fn(&Self, Edge) -> bool) -> f64 {
        let dense = self.reference.forward_at(&self.tokens, positions, |edge| visible(&self, edge));
        let mut worst = 0f64;
        for (index, &token) in self.tokens.clone()[PROMPT..].iter().enumerate() {
            assert_eq!(self.session.next_position(), Pos((PROMPT + index) as u32));
            self.session.feed(token).unwrap();
            let expected = self.reference.logits(&dense, PROMPT + index);
            worst = worst.max(distance(&self.session.logits(), &expected));
        }
        worst
    }

    /// Evicted keys are hidden from the answer's queries; the prompt saw them.
    fn hides_evicted(&self, edge: Edge) -> bool {
        edge.query < PROMPT || edge.key >= PROMPT || self.keeps(edge.layer, edge)
    }

    fn keeps(&self, layer: usize, edge: Edge) -> bool {
        let kept = self.session.retained()[layer].kept.head(edge.kv_head);
        kept.binary_search(&Pos(edge.key as u32)).is_ok()
    }
}

fn with_evicted(spec: &TinySpec, tier: Tier, check: impl Fn(Evicted<'_>)) {
    let file = TinyFile::write(&spec.writer());
    let engine = engine_f32(file.path(), 2, Some(tier));
    let tokens = prompt(4, spec.vocab, PROMPT + FED);
    let config = f32_config(ScheduleKind::Tide, BUDGET);
    let session = engine.prefill(&tokens[..PROMPT], &config, &mut Unobserved).unwrap();
    assert!(session.retained().iter().all(|layer| layer.kept.head(0).len() == BUDGET));
    check(Evicted { session, reference: Reference::open(file.path()), tokens });
}

fn true_positions() -> Vec<usize> {
    (0..PROMPT + FED).collect()
}

#[test]
fn decoding_after_eviction_is_the_full_model_with_evicted_keys_hidden() {
    for (name, spec) in specs() {
        for tier in tiers() {
            with_evicted(&spec, tier, |run| {
                let apart = run.distance(&true_positions(), Evicted::hides_evicted);
                println!("{name}, {tier}: {apart:.1e}");
                assert!(apart <= BOUND, "{name}, {tier}: {apart}");
            });
        }
    }
}

/// What the usual mistakes would look like: all of them far beyond the bound.
#[test]
fn the_bound_tells_wrong_positions_and_wrong_keys_from_rounding() {
    let tier = Isa::detect().tier();
    let far = |what: &str, apart: f64| assert!(apart > 100.0 * BOUND, "{what}: only {apart}");
    for spec in [tiny_llama(61), tiny_qwen2(62)] {
        with_evicted(&spec, tier, |run| {
            // The next token takes the number of retained rows for its position.
            let rows = (0..PROMPT).chain(BUDGET..BUDGET + FED).collect::<Vec<_>>();
            far("positions", run.distance(&rows, Evicted::hides_evicted));
        });
        with_evicted(&spec, tier, |run| {
            far("nothing hidden", run.distance(&true_positions(), |_, _| true));
        });
        with_evicted(&spec, tier, |run| {
            // Each layer keeps what another one chose.
            let visible = |run: &Evicted<'_>, edge: Edge| {
                let other = (edge.layer + 1) % 3;
                edge.query < PROMPT || edge.key >= PROMPT || run.keeps(other, edge)
            };
            far("another layer's keys", run.distance(&true_positions(), visible));
        });
        with_evicted(&spec, tier, |run| {
            // The answer does not see itself.
            let visible = |run: &Evicted<'_>, edge: Edge| {
                run.hides_evicted(edge) && (edge.key < PROMPT || edge.key == edge.query)
            };
            far("no tail", run.distance(&true_positions(), visible));
        });
    }
}

/// How a KV head's query heads are found, right and wrong.
type GroupMap = fn(query_head: usize, spec: &TinySpec) -> usize;

const BY_GROUP: GroupMap = |head, spec| head / (spec.n_heads / spec.n_kv_heads);
const INTERLEAVED: GroupMap = |head, spec| head % spec.n_kv_heads;

/// Observation scores of one layer by the definition (paper equations (4)-(7)):
/// the mean over the last W queries of each prefix key's attention weight, then
/// for each KV head, as `selector` says, group and pool. `[Hkv][S - W]`.
fn dense_scores(
    spec: &TinySpec,
    (queries, keys): (&[f64], &[f64]),
    selector: Observation,
    map: GroupMap,
) -> Vec<Vec<f64>> {
    let (d, n_tokens) = (spec.head_dim, queries.len() / (spec.n_heads * spec.head_dim));
    let prefix = n_tokens - selector.window;
    let of_head = |head: usize| {
        let mut scores = vec![0.0; prefix];
        for query in prefix..n_tokens {
            let q = &queries[(query * spec.n_heads + head) * d..][..d];
            let weights = (0..=query).map(|key| {
                let k = &keys[(key * spec.n_kv_heads + map(head, spec)) * d..][..d];
                let logit: f64 = q.iter().zip(k).map(|(q, k)| q * k).sum();
                (logit / (d as f64).sqrt()).exp()
            });
            let weights: Vec<f64> = weights.collect();
            let sum: f64 = weights.iter().sum::<f64>() * selector.window as f64;
            scores.iter_mut().zip(weights).for_each(|(score, weight)| *score += weight / sum);
        }
        scores
    };
    let pool = |scores: Vec<f64>| -> Vec<f64> {
        let half = selector.kernel / 2;
        let around = |at: usize| &scores[at.saturating_sub(half)..(at + half + 1).min(prefix)];
        let pooled = (0..prefix).map(|at| match selector.pool {
            Pool::Max => around(at).iter().fold(0.0, |max, &x| f64::max(max, x)),
            Pool::Avg => around(at).iter().sum::<f64>() / selector.kernel as f64,
        });
        pooled.collect()
    };
    let reduce = |rows: Vec<Vec<f64>>| -> Vec<f64> {
        let column = |at: usize| rows.iter().map(move |row| row[at]);
        let reduced = (0..prefix).map(|at| match selector.group {
            GroupReduce::Max => column(at).fold(0.0, f64::max),
            GroupReduce::Mean => column(at).sum::<f64>() / rows.len() as f64,
            GroupReduce::Sum => column(at).sum(),
        });
        reduced.collect()
    };
    let kv_head = |kv_head: usize| {
        let heads = (0..spec.n_heads).filter(|&head| map(head, spec) == kv_head).map(of_head);
        match selector.order {
            PoolOrder::GroupThenPool => pool(reduce(heads.collect())),
            PoolOrder::PoolThenGroup => reduce(heads.map(pool).collect()),
        }
    };
    (0..spec.n_kv_heads).map(kv_head).collect()
}

/// Relative distance within which two scores may change places: f32 arithmetic
/// moves attention logits by [`BOUND`] at most, and weights by as much of
/// themselves.
const SCORE_TIE: f64 = 2.0 * BOUND;

/// What is wrong with a kept set: it must be the K - W best positions of the
/// scored prefix, up to ties at the border, and the W positions after it.
fn set_fault(kept: &[Pos], scores: &[f64], (budget, window): (usize, usize)) -> Option<String> {
    let positions: Vec<usize> = kept.iter().map(|position| position.index()).collect();
    let (chosen, tail) = positions.split_at(positions.len().saturating_sub(window));
    let after_prefix = scores.len()..scores.len() + window;
    if positions.len() != budget || !tail.iter().copied().eq(after_prefix) {
        return Some(format!("{} kept, at the end {tail:?}", positions.len()));
    }
    let mut sorted = scores.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let border = sorted[chosen.len() - 1];
    let (least, most) = (border * (1.0 - SCORE_TIE), border * (1.0 + SCORE_TIE));
    let is_chosen = |position: usize| chosen.binary_search(&position).is_ok();
    let wrong = |position: &usize| match is_chosen(*position) {
        true => scores[*position] < least,
        false => scores[*position] > most,
    };
    let position = (0..scores.len()).find(wrong)?;
    let (score, chosen) = (scores[position], is_chosen(position));
    Some(format!("position {position}, kept: {chosen}, scores {score:e}, the border {border:e}"))
}

#[test]
fn kept_sets_are_the_best_positions_of_dense_scores() {
    const N_TOKENS: usize = 300;
    const KEEP: usize = 96;
    let selectors = [
        "snapkv",
        "snapkv-kvpress",
        "observation(window=8,kernel=5,pool=max,group=max,order=pool-then-group)",
        "observation(window=40,kernel=1,pool=avg,group=sum)",
    ];
    for (name, spec) in specs() {
        let file = TinyFile::write(&spec.writer());
        let reference = Reference::open(file.path());
        let tokens = prompt(10, spec.vocab, N_TOKENS);
        let dense = reference.forward(&tokens, |_| true);
        for tier in tiers() {
            let engine = engine_f32(file.path(), 2, Some(tier));
            for text in selectors {
                let selector: Selector = text.parse().unwrap();
                let Scorer::Observation(observation) = selector.scorer else { panic!("{text}") };
                let sizes = (KEEP, observation.window);
                let config = RunConfig { selector, ..f32_config(ScheduleKind::Tide, KEEP) };
                let session = engine.prefill(&tokens, &config, &mut Unobserved).unwrap();
                let faults = |map: GroupMap| {
                    let layers = session.retained().iter().enumerate();
                    let of_layer = |(layer, retained): (usize, &RetainedKv<Cpu>)| {
                        let rows = (&*dense.queries[layer], &*dense.keys[layer]);
                        let scores = dense_scores(&spec, rows, observation, map);
                        let heads = scores.iter().enumerate();
                        let faults: Vec<_> = heads
                            .filter_map(|(head, scores)| {
                                set_fault(retained.kept.head(head), scores, sizes)
                            })
                            .collect();
                        faults
                    };
                    layers.flat_map(of_layer).collect::<Vec<String>>()
                };
                let what = format!("{name}, {text}, {tier}");
                assert_eq!(faults(BY_GROUP), Vec::<String>::new(), "{what}");
                // The check sees a wrong group mapping, where there is one to see.
                if (2..spec.n_heads).contains(&spec.n_kv_heads) {
                    assert!(!faults(INTERLEAVED).is_empty(), "{what}");
                }
            }
        }
    }
}

#[test]
fn a_kept_set_with_a_worse_position_is_faulty() {
    let scores = [0.5, 0.1, 0.3, 0.300_003, 0.2];
    let set = |positions: &[u32]| {
        let kept: Vec<Pos> = positions.iter().copied().map(Pos).collect();
        set_fault(&kept, &scores, (4, 2))
    };
    // Positions 5 and 6 are the window.
    assert_eq!(set(&[0, 3, 5, 6]), None);
    assert_eq!(set(&[0, 2, 5, 6]), None, "a tie");
    assert!(set(&[0, 4, 5, 6]).unwrap().contains("position 4, kept: true"));
    assert!(set(&[2, 3, 5, 6]).unwrap().contains("position 0, kept: false"));
    assert!(set(&[0, 2, 3, 6]).is_some(), "a hole in the window");
    assert!(set(&[0, 5, 6]).is_some(), "too few");
}

/// The floats of an F32 tensor of a file.
fn floats(file: &GgufFile, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.ty, TensorType::F32);
    file.bytes(tensor).as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

fn replace(writer: &mut GgufWriter, name: &str, shape: &[u64], values: &[f32]) {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    writer.remove_tensor(name).tensor(name, shape, TensorType::F32, bytes);
}

/// One layer whose output is embedding + attention heads, side by side: the
/// output projection is the identity and the MLP adds nothing.
fn heads_side_by_side(spec: &TinySpec) -> GgufWriter {
    assert_eq!(spec.n_heads * spec.head_dim, spec.d_model);
    let (d, ff) = (spec.d_model, spec.d_ff);
    let mut writer = spec.writer();
    let identity: Vec<f32> = (0..d * d).map(|i| f32::from(u8::from(i / d == i % d))).collect();
    replace(&mut writer, "blk.0.attn_output.weight", &[d as u64, d as u64], &identity);
    replace(&mut writer, "blk.0.ffn_down.weight", &[ff as u64, d as u64], &vec![0.0; ff * d]);
    writer
}

/// A KV head whose values are all the same constant gives its own query heads,
/// h / G, that constant, and changes no bit of the others.
#[test]
fn a_kv_head_feeds_the_query_heads_of_its_group_alone() {
    const CONSTANT: f32 = 3.0;
    for spec in [tiny_llama(71), tiny_qwen2(72)] {
        let spec = TinySpec { n_layers: 1, ..spec };
        let group = spec.n_heads / spec.n_kv_heads;
        let original = TinyFile::write(&heads_side_by_side(&spec));
        let tokens = prompt(9, spec.vocab, 150);
        let states = |file: &TinyFile| {
            let config = f32_config(ScheduleKind::Tide, 4096);
            let mut states = States::default();
            engine_f32(file.path(), 2, None).prefill(&tokens, &config, &mut states).unwrap();
            states.0
        };
        let expected = states(&original);
        for kv_head in 0..spec.n_kv_heads {
            let mut writer = heads_side_by_side(&spec);
            let gguf = GgufFile::open(original.path()).unwrap();
            let head = kv_head * spec.head_dim..(kv_head + 1) * spec.head_dim;
            let kv_cols = spec.n_kv_heads * spec.head_dim;
            let mut weights = floats(&gguf, "blk.0.attn_v.weight");
            weights[head.start * spec.d_model..head.end * spec.d_model].fill(0.0);
            let shape = [spec.d_model as u64, kv_cols as u64];
            replace(&mut writer, "blk.0.attn_v.weight", &shape, &weights);
            // Without biases the constant is zero.
            let bias = "blk.0.attn_v.bias";
            let constant = if gguf.tensor(bias).is_some() { CONSTANT } else { 0.0 };
            if constant != 0.0 {
                let mut values = floats(&gguf, bias);
                values[head].fill(constant);
                replace(&mut writer, bias, &[kv_cols as u64], &values);
            }
            let changed = states(&TinyFile::write(&writer));
            assert_bits_eq(&changed[0], &expected[0], "embeddings");
            for (row, (changed_row, expected_row)) in
                changed[1].chunks(spec.d_model).zip(expected[1].chunks(spec.d_model)).enumerate()
            {
                for head in 0..spec.n_heads {
                    let cols = head * spec.head_dim..(head + 1) * spec.head_dim;
                    let what = format!("row {row}, query head {head}, KV head {kv_head}");
                    let (c, e) = (&changed_row[cols.clone()], &expected_row[cols.clone()]);
                    if head / group != kv_head {
                        assert_bits_eq(c, e, &what);
                        continue;
                    }
                    assert_ne!(c, e, "{what}");
                    let embedding = &changed[0][row * spec.d_model..][cols];
                    for (c, x) in c.iter().zip(embedding) {
                        // 150 weights that sum to 1, each rounded once or twice: 1e-5 of 3.
                        assert!((c - x - constant).abs() <= 3e-5, "{what}: {c} from {x}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_distance_is_measured_and_never_finite_for_what_is_not() {
    assert_eq!(distance(&[1.0, 2.5], &[1.0, 2.0]), 0.5);
    assert_eq!(distance(&[f32::NAN, 2.0], &[1.0, 2.0]), f64::INFINITY);
    assert_eq!(distance(&[f32::INFINITY], &[1.0]), f64::INFINITY);
}
