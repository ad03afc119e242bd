//! The plan is the allocation: after every step, and at the high-water mark
//! inside every step, the ledger holds what was planned, component by component,
//! to the byte. And what the plan says about itself: golden sizes, the bound on
//! the transient, monotony, limits.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

mod rig {
    pub mod device;
    pub mod scorers;
    pub mod tiny;
}

use rig::device::{engine, engine_with};
use rig::scorers::FarFromMean;
use rig::tiny::{TinyFile, prompt};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use tidekv::backend::Sizes;
use tidekv::dry::{Dry, DryRun};
use tidekv::memory::{
    Accountant, Breakdown, Component, Moment, Peak, Plan, PlanInput, StepMemory, WeightBytes,
    layout, plan, plan_steps, prompts_at_a_time,
};
use tidekv::model::Shape;
use tidekv::schedule::{ScheduleKind, Step};
use tidekv::select::{Scorer, Selector};
use tidekv::{
    Backend, Element, Engine, Error, Model, Observer, Outputs, Progress, RunConfig, Tap, Unobserved,
};
use tidekv_cpu::{Cpu, CpuConfig, CpuSizes, Isa, Pack, Tier};
use tidekv_testkit::{Arch, TinySpec, models, tiny_families, tiny_llama, tiny_qwen2};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Memory of a run, as planned or as it was.
#[derive(Debug, Clone, PartialEq)]
struct Account {
    steps: Vec<StepMemory>,
    peak: Peak,
    max: Breakdown,
    /// Live when decoding begins.
    held: Breakdown,
}

impl Account {
    fn planned(input: &PlanInput<'_>) -> Account {
        let mut steps = Vec::new();
        let planned = plan_steps(input, |step| steps.push(*step)).unwrap();
        // What a run is refused by says the same without looking at every step.
        assert_eq!(plan(input).unwrap(), planned);
        let plan = planned;
        Account { steps, peak: plan.peak, max: plan.max, held: plan.held }
    }

    fn kept(steps: Steps, accountant: &Accountant, held: Breakdown) -> Account {
        Account { steps: steps.0, peak: accountant.peak(), max: accountant.max(), held }
    }
}

/// The ledger after every step.
#[derive(Default)]
struct Steps(Vec<StepMemory>);

impl Observer for Steps {
    fn after(&mut self, _: &Step, memory: &StepMemory, _: &dyn Tap) {
        self.0.push(*memory);
    }
}

/// Panics unless a run's ledger is what was planned.
#[track_caller]
fn assert_as_planned(actual: &Account, planned: &Account, what: &str) {
    for (index, (a, p)) in actual.steps.iter().zip(&planned.steps).enumerate() {
        assert_eq!(a.moment, p.moment, "{what}: step {index}");
        assert_bytes(&a.high_water, &p.high_water, &format!("{what}: inside {:?}", a.moment));
        assert_bytes(&a.after, &p.after, &format!("{what}: after {:?}", a.moment));
    }
    assert_eq!(actual.steps.len(), planned.steps.len(), "{what}: steps");
    assert_bytes(&actual.peak.bytes, &planned.peak.bytes, &format!("{what}: at the peak"));
    assert_eq!(actual.peak.at, planned.peak.at, "{what}: when the peak is reached");
    assert_bytes(&actual.max, &planned.max, &format!("{what}: largest"));
    assert_bytes(&actual.held, &planned.held, &format!("{what}: when decoding begins"));
}

#[track_caller]
fn assert_bytes(actual: &Breakdown, planned: &Breakdown, what: &str) {
    for (component, bytes) in actual.iter() {
        let planned = planned[component];
        assert_eq!(bytes, planned, "{what}: {component}, {bytes} bytes, {planned} planned");
    }
}

/// Settings that take every path through the executor.
fn configs(n_tokens: usize) -> Vec<RunConfig> {
    let chunks = [1.max(n_tokens / 3), n_tokens, n_tokens + 1];
    let named = |text: &str| text.parse::<Selector>().unwrap();
    let custom = Scorer::custom(FarFromMean);
    let custom = Selector { sinks: 2, recent: 4, ..Selector::new(custom) };
    let settings = [
        (named("snapkv"), 48, 64, Element::Bf16),
        (named("snapkv-kvpress"), 80, 1024, Element::F32),
        (
            named("observation(window=8,kernel=5,order=pool-then-group)+sinks(2)"),
            11,
            5,
            Element::F16,
        ),
        // A score block that outweighs what is kept: the peak is in scoring.
        (named("observation(window=8,kernel=5,order=pool-then-group)"), 9, 1024, Element::Bf16),
        (named("streaming"), 7, 64, Element::Bf16),
        (named("none"), 7, 64, Element::Bf16),
        (custom, 12, 40, Element::F32),
    ];
    let one =
        |kind: ScheduleKind, chunk, (selector, budget, block, element): &(Selector, _, _, _)| {
            let (budget, block, element) = (*budget, *block, *element);
            RunConfig {
                schedule: kind.with_chunk(NonZeroUsize::new(chunk).unwrap()),
                selector: selector.clone(),
                budget,
                score_block: NonZeroUsize::new(block).unwrap(),
                kv: element,
                bridge: if budget == 80 { Element::Bf16 } else { element },
                max_new_tokens: block,
                outputs: Outputs::LastLogits,
                memory_limit: None,
            }
        };
    let mut configs = Vec::new();
    for kind in ScheduleKind::ALL {
        for chunk in chunks {
            configs.extend(settings.iter().map(|settings| one(kind, chunk, settings)));
        }
    }
    configs
}

fn name(config: &RunConfig, n_tokens: impl std::fmt::Debug) -> String {
    format!("S = {n_tokens:?}, {:?}, {}", config.schedule, config.selector)
}

/// Settings for the longest of the prompts: all of them for one on the first tier,
/// and every fifth, which has every schedule, chunk and selector among them, for
/// several and on other tiers, where sizes differ and steps do not.
fn batch_configs(tier: Tier, n_tokens: &[usize]) -> Vec<RunConfig> {
    let step = if n_tokens.len() == 1 && tier == tiers()[0] { 1 } else { 5 };
    configs(*n_tokens.iter().max().unwrap()).into_iter().step_by(step).collect()
}

#[test]
fn fewer_settings_have_every_schedule_chunk_and_selector_among_them() {
    let fewer = batch_configs(tiers()[0], &[90, 90]);
    assert!(fewer.len() < configs(90).len() / 4);
    for config in configs(90) {
        assert!(fewer.iter().any(|other| other.schedule == config.schedule));
        // Two scorers of one's own are never equal; their names are.
        let selector = config.selector.to_string();
        assert!(fewer.iter().any(|other| other.selector.to_string() == selector), "{selector}");
    }
}

/// Sizes of the CPU backend for one tier and number of threads.
fn sizes(tier: Tier, threads: usize) -> CpuSizes {
    let threads = NonZeroUsize::new(threads);
    CpuSizes::new(&CpuConfig { threads, tier: Some(tier), ..CpuConfig::default() }).unwrap()
}

fn tiers() -> Vec<Tier> {
    Isa::available().into_iter().map(Isa::tier).collect()
}

/// Models that differ in layers, groups, head widths and heads; those of the dry
/// runs are too large to be run here.
fn tiny_specs() -> Vec<TinySpec> {
    vec![
        tiny_llama(31),
        tiny_qwen2(31),
        TinySpec { n_layers: 1, ..tiny_llama(32) },
        TinySpec { n_layers: 2, n_heads: 4, n_kv_heads: 1, head_dim: 64, ..tiny_llama(33) },
        TinySpec { n_heads: 3, n_kv_heads: 3, head_dim: 80, ..tiny_llama(34) },
        TinySpec { n_layers: 2, d_model: 1024, d_ff: 33, ..tiny_llama(35) },
        // Prompt and answer reach the context's end.
        TinySpec { context: 210, ..tiny_llama(36) },
        // Windows in every layer, and in five of six.
        TinySpec { window: Some(16), ..tiny_llama(38) },
        tiny_families(39).into_iter().find(|spec| spec.arch == Arch::Gemma3).unwrap(),
    ]
}

fn large_shapes() -> Vec<(&'static str, Shape)> {
    let shape = |n_layers, [d_model, d_ff]: [usize; 2], heads: [usize; 3], vocab| Shape {
        n_layers,
        d_model,
        d_ff,
        n_heads: heads[0],
        n_kv_heads: heads[1],
        head_dim: heads[2],
        vocab,
        context: 131_072,
        windows: Vec::new(),
    };
    let llama = Shape::named("llama-3.1-8b").unwrap();
    let mistral = Shape::named("mistral-7b").unwrap();
    let window = NonZeroUsize::new(512);
    let five_of_six = (1..=18).map(|layer| window.filter(|_| layer % 6 != 0)).collect();
    vec![
        ("llama-3.1-8b", llama),
        ("mistral-7b", mistral),
        ("smollm2-135m", shape(30, [576, 1536], [9, 3, 64], 49_152)),
        ("qwen2.5-coder-0.5b", shape(24, [896, 4864], [14, 2, 64], 151_936)),
        ("7 query heads a group", shape(28, [3584, 18_944], [28, 4, 128], 152_064)),
        ("80 layers", shape(80, [8192, 28_672], [64, 8, 128], 128_256)),
        ("no groups, D 80", shape(32, [2560, 10_240], [32, 32, 80], 51_200)),
        ("one KV head, D 256", shape(18, [2048, 16_384], [8, 1, 256], 256_000)),
        ("D 512, one layer", shape(1, [512, 100], [4, 2, 512], 1000)),
        ("narrow MLP", shape(3, [96, 7], [6, 2, 16], 288)),
        (
            "gemma-3-270m",
            Shape { windows: five_of_six, ..shape(18, [640, 2048], [4, 1, 256], 262_144) },
        ),
    ]
}

/// Runs a batch of prompts and compares.
fn assert_run_as_planned(engine: &Engine<Cpu>, config: &RunConfig, n_tokens: &[usize], what: &str) {
    let shape = &engine.model().spec.shape;
    let longest = n_tokens.iter().max().unwrap();
    let tokens = prompt(1, shape.vocab, *longest);
    let prompts: Vec<&[u32]> = n_tokens.iter().map(|&n| &tokens[..n]).collect();
    let input = PlanInput {
        shape,
        weights: engine.model().weight_bytes(),
        sizes: &*engine.backend().sizes(),
        config,
        n_tokens,
    };
    let mut steps = Steps::default();
    let sessions = engine.prefill_batch(&prompts, config, &mut steps).unwrap();
    let ledger = sessions[0].accountant().clone();
    let actual = Account::kept(steps, &ledger, ledger.live());
    assert_as_planned(&actual, &Account::planned(&input), what);
    drop(sessions);
    assert_bytes(&ledger.live(), &Breakdown::default(), what);
}

#[test]
fn tiny_models_on_the_cpu_allocate_what_was_planned() {
    for spec in tiny_specs() {
        let file = TinyFile::write(&spec.writer());
        for (tier, threads) in tiers().into_iter().zip([1, 2, 3].into_iter().cycle()) {
            let engine = engine(file.path(), threads, Some(tier));
            let batches: [&[usize]; 7] =
                [&[1], &[90], &[200], &[1, 200], &[200, 1], &[90, 90], &[40, 200, 7]];
            for n_tokens in batches {
                for config in batch_configs(tier, n_tokens) {
                    assert_run_as_planned(&engine, &config, n_tokens, &name(&config, n_tokens));
                }
            }
        }
    }
}

/// The same where more is asked for than the last token's logits.
#[test]
fn other_outputs_allocate_what_was_planned() {
    let n_tokens: [&[usize]; 3] = [&[1], &[90], &[40, 200, 7]];
    let narrow = tiny_llama(31);
    // Wide enough that a chunk has more rows than its tile of logits.
    let wide = Shape { vocab: 100_000, ..shape_of(&narrow) };
    let sizes = sizes(tiers()[0], 2);
    for outputs in [Outputs::AllHidden, Outputs::AllLogits] {
        let file = TinyFile::write(&narrow.writer());
        let engine = engine(file.path(), 2, None);
        for n_tokens in n_tokens {
            for config in batch_configs(tiers()[0], n_tokens) {
                let config = RunConfig { outputs, ..config };
                let what = format!("{outputs:?}: {}", name(&config, n_tokens));
                assert_run_as_planned(&engine, &config, n_tokens, &what);
                let (shape, config) = (&wide, &config);
                let input =
                    PlanInput { shape, weights: SOME_WEIGHTS, sizes: &sizes, config, n_tokens };
                assert_dry_run_as_planned(&input, sizes, &what);
            }
        }
    }
    assert!(layout::logit_tile_rows(&wide, 200) < 90);
}

/// What is live when decoding begins is live until the session ends.
#[test]
fn decoding_allocates_nothing_more() {
    let spec = tiny_llama(37);
    let file = TinyFile::write(&spec.writer());
    let engine = engine(file.path(), 2, None);
    let tokens = prompt(1, spec.vocab, 90);
    for config in configs(90) {
        let mut session = engine.prefill(&tokens, &config, &mut Unobserved).unwrap();
        let (held, peak) = (session.accountant().live(), session.accountant().peak());
        for token in 0..session.room().min(10) {
            session.feed(token as u32).unwrap();
            assert_bytes(&session.accountant().live(), &held, &name(&config, 90));
        }
        assert_eq!(session.accountant().peak(), peak, "{}", name(&config, 90));
    }
}

/// A layer's packed weights are scratch: planned, allocated, and as large as said.
#[test]
fn packed_layers_are_planned() {
    let spec = tiny_llama(41);
    let file = TinyFile::write(&spec.writer());
    let tokens = prompt(1, spec.vocab, 90);
    for tier in tiers() {
        let slab =
            CpuConfig { threads: NonZeroUsize::new(2), tier: Some(tier), ..CpuConfig::default() };
        let engine = engine_with(CpuConfig { pack: Pack::Layer, ..slab }, file.path());
        for kind in ScheduleKind::ALL {
            let chunk = NonZeroUsize::new(40).unwrap();
            let config = RunConfig { schedule: kind.with_chunk(chunk), ..RunConfig::default() };
            let sizes = engine.backend().sizes();
            let input = PlanInput {
                shape: &engine.model().spec.shape,
                weights: engine.model().weight_bytes(),
                sizes: &*sizes,
                config: &config,
                n_tokens: &[90],
            };
            let mut steps = Steps::default();
            let session = engine.prefill(&tokens, &config, &mut steps).unwrap();
            let ledger = session.accountant().clone();
            let actual = Account::kept(steps, &ledger, ledger.live());
            assert_as_planned(&actual, &Account::planned(&input), &name(&config, 90));
        }
        // The weights of a layer of Llama-3.1-8B, 218,103,808: no column of a panel is empty, and
        // every K is a multiple of 64.
        let scratch = |pack| {
            let config = CpuConfig { pack, ..slab };
            let shape = Shape::named("llama-3.1-8b").unwrap();
            CpuSizes::new(&config).unwrap().scratch(&shape, 32)
        };
        let weights = 218_103_808;
        let packed = match tier {
            // A word for two weights, and a scale for 64.
            Tier::Avx2 | Tier::Avx512Vnni => 4 * (weights / 2 + weights / 64),
            Tier::Portable | Tier::Avx512 => 4 * weights,
        };
        assert_eq!(scratch(Pack::Layer) - scratch(Pack::Slab), packed, "{tier}");
    }
}

/// Runs the executor without arithmetic and compares.
fn assert_dry_run_as_planned(input: &PlanInput<'_>, sizes: CpuSizes, what: &str) {
    let PlanInput { shape, weights, config, n_tokens, .. } = *input;
    let ledger = Accountant::new(None);
    let mut steps = Steps::default();
    let run = DryRun { shape, weights, config, n_tokens };
    let held = Dry::new(std::sync::Arc::new(sizes)).prefill(run, &ledger, &mut steps).unwrap();
    let actual = Account::kept(steps, &ledger, held);
    assert_as_planned(&actual, &Account::planned(input), what);
    assert_bytes(&ledger.live(), &Breakdown::default(), what);
}

const SOME_WEIGHTS: WeightBytes = WeightBytes { held: 1_000_003, mapped: 5 << 30 };

#[test]
fn large_models_would_allocate_what_was_planned() {
    for (shape_name, shape) in large_shapes() {
        shape.validate().unwrap();
        for (tier, threads) in tiers().into_iter().zip([1, 16, 5].into_iter().cycle()) {
            let sizes = sizes(tier, threads);
            let batches: [&[usize]; 5] = [&[1], &[1500], &[1, 1500], &[700, 700], &[1500, 3, 800]];
            for n_tokens in batches {
                for config in batch_configs(tier, n_tokens) {
                    let (shape, config) = (&shape, &config);
                    let input =
                        PlanInput { shape, weights: SOME_WEIGHTS, sizes: &sizes, config, n_tokens };
                    let what = format!("{shape_name}: {}", name(config, n_tokens));
                    assert_dry_run_as_planned(&input, sizes, &what);
                }
            }
        }
    }
}

/// The paper's setting: Llama-3.1-8B, K = 4,096, default selector, bf16.
fn paper_config(kind: ScheduleKind, chunk: usize) -> RunConfig {
    RunConfig {
        schedule: kind.with_chunk(NonZeroUsize::new(chunk).unwrap()),
        budget: 4096,
        ..RunConfig::default()
    }
}

fn paper_plan(kind: ScheduleKind, chunk: usize, n_tokens: usize, sizes: &dyn Sizes) -> Plan {
    let shape = &Shape::named("llama-3.1-8b").unwrap();
    let config = &paper_config(kind, chunk);
    plan(&PlanInput { shape, weights: SOME_WEIGHTS, sizes, config, n_tokens: &[n_tokens] }).unwrap()
}

#[test]
fn an_8b_model_at_64k_would_allocate_what_was_planned() {
    let sizes = sizes(tiers()[0], 2);
    let shape = &Shape::named("llama-3.1-8b").unwrap();
    for kind in [ScheduleKind::Tide, ScheduleKind::ChunkedPost] {
        let config = &paper_config(kind, 2048);
        let n_tokens = &[65_536];
        let input = PlanInput { shape, weights: SOME_WEIGHTS, sizes: &sizes, config, n_tokens };
        assert_dry_run_as_planned(&input, sizes, &name(config, n_tokens));
    }
}

/// Sizes a reader can check by hand: 131,072 x 4,096 x 2 bytes, and so on.
#[test]
fn golden_sizes_of_an_8b_model_at_128k() {
    for tier in tiers() {
        let plan = paper_plan(ScheduleKind::Tide, 2048, 131_072, &sizes(tier, 2));
        assert_eq!(plan.max[Component::Bridge], GIB);
        assert_eq!(plan.max[Component::ActiveKv], GIB / 2);
        assert_eq!(plan.max[Component::RetainedKv], 512 * MIB);
        assert_eq!(plan.max[Component::Positions], 4 * MIB);
        assert_eq!(plan.retained_bytes(), 512 * MIB);
    }
}

/// What is left beside bridge, active KV and the chunk's activations, whatever
/// the number of threads.
#[test]
fn the_transient_of_an_8b_model_at_64k_stays_below_the_paper() {
    const S: usize = 65_536;
    const BESIDE: u64 = 12 * MIB;
    let shape = Shape::named("llama-3.1-8b").unwrap();
    let bridge = layout::bridge(&shape, Element::Bf16, S);
    let active = layout::product(&[2, S, shape.kv_cols(), 2]);
    let mut worst = 0;
    for tier in tiers() {
        for threads in 1..=16 {
            for (chunk, at_most) in [(2048, 0.95), (256, 0.80)] {
                let plan = paper_plan(ScheduleKind::Tide, chunk, S, &sizes(tier, threads));
                let transient = plan.transient_bytes();
                let chunk_bytes = (chunk * (8 * shape.d_model + 4 * shape.d_ff)) as u64;
                let beside = transient.saturating_sub(bridge + active + chunk_bytes);
                worst = worst.max(beside);
                let what = format!("C = {chunk}, {threads} threads, {tier}");
                assert!(
                    beside <= BESIDE,
                    "{what}: {beside} bytes, {} too many",
                    beside - BESIDE.min(beside)
                );
                let gib = transient as f64 / GIB as f64;
                assert!(gib <= at_most, "{what}: {gib} GiB");
            }
        }
    }
    println!("largest part beside bridge, active KV and activations: {worst} bytes");
}

#[test]
fn what_does_not_hold_the_prompt_does_not_grow_with_it() {
    let small = [
        Component::Scratch,
        Component::Activation,
        Component::Observation,
        Component::RetainedKv,
        Component::Positions,
        Component::Logits,
    ];
    for tier in tiers() {
        let sizes = sizes(tier, 2);
        let at = |n_tokens| paper_plan(ScheduleKind::Tide, 2048, n_tokens, &sizes).max;
        let (short, long) = (at(8192), at(128_000));
        for component in small {
            assert_eq!(short[component], long[component], "{component}");
        }
        assert!(long[Component::Bridge] > 15 * short[Component::Bridge]);
    }
}

#[test]
fn active_kv_is_whole_blocks_of_both_halves() {
    let shape = Shape::named("mistral-7b").unwrap();
    let half = |n_tokens| sizes(tiers()[0], 1).active_half(&shape, Element::Bf16, n_tokens);
    assert_eq!(half(1), half(128));
    assert_eq!(half(129), 2 * half(128));
    assert_eq!(half(128), 128 * 1024 * 2);
}

/// Bisection for the largest prompt stands on this.
#[test]
fn plans_grow_with_the_prompt() {
    let sizes = sizes(tiers()[0], 2);
    let shape = Shape {
        context: 3000,
        n_layers: 30,
        d_model: 576,
        d_ff: 1536,
        n_heads: 9,
        n_kv_heads: 3,
        head_dim: 64,
        vocab: 1000,
        windows: Vec::new(),
    };
    for config in configs(900) {
        let config = RunConfig { max_new_tokens: 256, budget: 100, ..config };
        let mut before = 0;
        for n_tokens in 1..=shape.context {
            let input = PlanInput {
                shape: &shape,
                weights: SOME_WEIGHTS,
                sizes: &sizes,
                config: &config,
                n_tokens: &[n_tokens],
            };
            let peak = plan(&input).unwrap().peak_bytes();
            assert!(peak >= before, "{}: {peak} < {before}", name(&config, n_tokens));
            before = peak;
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
fn a_limit_is_kept_and_a_run_beyond_it_is_refused_before_compute() {
    let spec = TinySpec { context: 2000, ..tiny_llama(41) };
    let file = TinyFile::write(&spec.writer());
    let engine = engine(file.path(), 2, None);
    let n_tokens = 333;
    let tokens = prompt(2, spec.vocab, 2000);
    for config in configs(n_tokens) {
        let what = name(&config, n_tokens);
        let with = |limit| RunConfig { memory_limit: Some(limit), ..config.clone() };
        let peak = engine.plan(&config, n_tokens).unwrap().peak_bytes();
        let session =
            engine.prefill(&tokens[..n_tokens], &with(peak), &mut Unobserved).expect(&what);
        assert_eq!(session.accountant().peak().bytes.total(), peak, "{what}");
        drop(session);

        let exactly = engine.largest_prompt(&config, peak);
        assert!(exactly >= n_tokens, "{what}: {exactly} fit");
        assert_eq!(engine.plan(&config, exactly).unwrap().peak_bytes(), peak, "{what}");

        let tight = with(peak - 1);
        let refused = engine.prefill(&tokens[..n_tokens], &tight, &mut Nothing);
        let Err(Error::Refused(refusal)) = refused else { panic!("{what}: not refused") };
        assert_eq!((refusal.limit, refusal.plan.peak_bytes()), (peak - 1, peak), "{what}");
        let most = refusal.largest_prompt;
        assert!((1..n_tokens).contains(&most), "{what}: {most}");
        drop(engine.prefill(&tokens[..most], &tight, &mut Unobserved).expect(&what));
        let one_more = engine.prefill(&tokens[..most + 1], &tight, &mut Nothing);
        assert!(matches!(one_more, Err(Error::Refused(_))), "{what}: {most} + 1 fit");
        // That plans grow with every token is a test of its own.
        for n_tokens in (most + 1..=spec.context).step_by(41) {
            assert!(engine.plan(&tight, n_tokens).is_err(), "{what}: {n_tokens} fit as well");
        }
    }
}

#[test]
fn a_batch_beyond_the_limit_is_refused_before_compute_with_how_many_would_fit() {
    let spec = tiny_llama(44);
    let file = TinyFile::write(&spec.writer());
    let engine = engine(file.path(), 2, None);
    let tokens = prompt(2, spec.vocab, 400);
    let prompts = [&tokens[..300], &tokens[..1], &tokens[..400], &tokens[..90]];
    let n_tokens = prompts.map(<[u32]>::len);
    for kind in ScheduleKind::ALL {
        let config = RunConfig { budget: 48, max_new_tokens: 8, ..paper_config(kind, 64) };
        let with = |limit| RunConfig { memory_limit: Some(limit), ..config.clone() };
        let planned = engine.plan_batch(&config, &n_tokens).unwrap();
        assert_eq!((planned.n_prompts, planned.n_tokens), (4, 791));
        let peak = planned.peak_bytes();
        let sessions = engine.prefill_batch(&prompts, &with(peak), &mut Unobserved).unwrap();
        assert_eq!(sessions[3].accountant().peak().bytes.total(), peak, "{kind}");
        drop(sessions);

        // 300 and 1, then 400 and 90.
        let two = [&n_tokens[..2], &n_tokens[2..]]
            .map(|pair| engine.plan_batch(&config, pair).unwrap().peak_bytes());
        let two = *two.iter().max().unwrap();
        let input = PlanInput {
            shape: &engine.model().spec.shape,
            weights: engine.model().weight_bytes(),
            sizes: &*engine.backend().sizes(),
            config: &config,
            n_tokens: &n_tokens,
        };
        assert_eq!(prompts_at_a_time(&input, peak), 4, "{kind}");
        assert_eq!(prompts_at_a_time(&input, two - 1), 1, "{kind}");
        let refused = engine.prefill_batch(&prompts, &with(two), &mut Nothing);
        let Err(Error::Refused(refusal)) = refused else { panic!("{kind}: not refused") };
        assert_eq!(refusal.prompts_at_a_time, 2, "{kind}");
        let text = refusal.to_string();
        assert!(text.contains("a batch of 4 prompts with 791 tokens in all needs"), "{text}");
        assert!(text.contains("these prompts fit 2 at a time, in this order"), "{text}");
        for pair in prompts.chunks(2) {
            drop(engine.prefill_batch(pair, &with(two), &mut Unobserved).unwrap());
        }
        let one = engine.plan(&config, 400).unwrap().peak_bytes();
        let refusal = |limit| engine.plan_batch(&with(limit), &n_tokens).err().unwrap().to_string();
        assert!(refusal(one).contains("these prompts fit one at a time"), "{}", refusal(one));
        let none = refusal(one - 1);
        assert!(
            none.contains("does not fit even alone") && none.contains("one prompt of up to"),
            "{none}"
        );
    }
}

/// The ledger keeps a limit by itself, should a plan ever be wrong, and lets go
/// of everything.
#[test]
fn the_ledger_stops_a_run_that_nobody_planned() {
    let shape = &Shape::named("llama-3.1-8b").unwrap();
    let sizes = sizes(tiers()[0], 2);
    let config = &paper_config(ScheduleKind::Tide, 512);
    let run = DryRun { shape, weights: SOME_WEIGHTS, config, n_tokens: &[5000] };
    let peak = paper_plan(ScheduleKind::Tide, 512, 5000, &sizes).peak_bytes();
    let dry = Dry::new(std::sync::Arc::new(sizes));
    dry.prefill(run, &Accountant::new(Some(peak)), &mut Unobserved).unwrap();
    let ledger = Accountant::new(Some(peak - 1));
    let stopped = dry.prefill(run, &ledger, &mut Unobserved);
    assert!(matches!(stopped, Err(Error::LimitReached { .. })), "{stopped:?}");
    assert_bytes(&ledger.live(), &Breakdown::default(), "after the refusal");
}

/// Cancels before a step.
struct CancelAt(usize);

impl Observer for CancelAt {
    fn before(&mut self, _: &Step, _: &Progress, _: &dyn Tap) -> ControlFlow<()> {
        match self.0.checked_sub(1) {
            None => ControlFlow::Break(()),
            Some(steps) => {
                self.0 = steps;
                ControlFlow::Continue(())
            }
        }
    }
}

#[test]
fn a_cancelled_run_holds_nothing_whatever_the_step() {
    let shape = &shape_of(&tiny_llama(42));
    let dry = Dry::new(std::sync::Arc::new(sizes(tiers()[0], 2)));
    for config in &configs(90) {
        let n_tokens = &[30, 90];
        let n_steps = config.schedule.steps(shape.n_layers, n_tokens).count();
        let run = DryRun { shape, weights: SOME_WEIGHTS, config, n_tokens };
        for step in 0..n_steps {
            let ledger = Accountant::new(None);
            let cancelled = dry.prefill(run, &ledger, &mut CancelAt(step));
            assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
            assert_bytes(&ledger.live(), &Breakdown::default(), &name(config, 90));
            assert!(ledger.peak().bytes.total() > 0);
        }
        let ledger = Accountant::new(None);
        dry.prefill(run, &ledger, &mut CancelAt(n_steps)).unwrap();
    }
}

fn shape_of(spec: &TinySpec) -> Shape {
    Shape {
        n_layers: spec.n_layers,
        d_model: spec.d_model,
        d_ff: spec.d_ff,
        n_heads: spec.n_heads,
        n_kv_heads: spec.n_kv_heads,
        head_dim: spec.head_dim,
        vocab: spec.vocab,
        context: spec.context,
        windows: Vec::new(),
    }
}

/// 8,192 tokens, K = 512, C = 512: `tide` against the same kernels over the whole
/// prompt. (`process.rs` runs it, at half the length always and at this one by
/// hand.)
#[test]
fn the_transient_of_tide_is_a_fraction_of_post_prefill() {
    for (alias, saved_at_least) in [("smollm2-135m", 0.65), ("qwen2.5-coder-0.5b", 0.75)] {
        let model = Model::open(&models::path(alias), None).unwrap();
        for tier in tiers() {
            for threads in [1, 2, 16] {
                let sizes = sizes(tier, threads);
                let transient = |kind| {
                    let config = RunConfig { budget: 512, ..paper_config(kind, 512) };
                    let input = PlanInput {
                        shape: &model.spec.shape,
                        weights: model.weight_bytes(),
                        sizes: &sizes,
                        config: &config,
                        n_tokens: &[8192],
                    };
                    plan(&input).unwrap().transient_bytes() as f64
                };
                let saved =
                    1.0 - transient(ScheduleKind::Tide) / transient(ScheduleKind::PostPrefill);
                println!("{alias}, {tier}, {threads} threads: {:.1} % less", 100.0 * saved);
                assert!(saved >= saved_at_least, "{alias}, {tier}, {threads}: {saved}");
            }
        }
    }
}

/// The comparison itself.
mod must_fail {
    use super::*;

    /// Compares a plan with itself after `change`.
    fn with(change: impl Fn(&mut Account)) {
        let shape = &shape_of(&tiny_llama(1));
        let sizes = sizes(tiers()[0], 1);
        let config = &configs(90)[0];
        let input =
            PlanInput { shape, weights: SOME_WEIGHTS, sizes: &sizes, config, n_tokens: &[90] };
        let planned = Account::planned(&input);
        let mut actual = planned.clone();
        assert_as_planned(&actual, &planned, "unchanged");
        change(&mut actual);
        assert_as_planned(&actual, &planned, "changed");
    }

    #[test]
    #[should_panic(expected = "changed: inside Step(Embed")]
    fn a_byte_inside_a_step() {
        with(|account| account.steps[0].high_water[Component::Bridge] += 1);
    }

    #[test]
    #[should_panic(expected = "changed: after Step(Embed")]
    fn a_byte_after_a_step() {
        with(|account| account.steps[0].after[Component::WeightsMapped] -= 1);
    }

    /// Equal totals are not enough.
    #[test]
    #[should_panic(expected = "changed: after Step(Embed")]
    fn a_byte_under_another_name() {
        with(|account| {
            account.steps[0].after[Component::Bridge] += 1;
            account.steps[0].after[Component::Scratch] -= 1;
        });
    }

    #[test]
    #[should_panic(expected = "changed: steps")]
    fn a_step_too_few() {
        with(|account| account.steps.truncate(7));
    }

    #[test]
    #[should_panic(expected = "changed: at the peak")]
    fn a_byte_at_the_peak() {
        with(|account| account.peak.bytes[Component::Logits] += 1);
    }

    #[test]
    #[should_panic(expected = "changed: when the peak is reached")]
    fn another_moment_of_the_peak() {
        with(|account| account.peak.at = Moment::Decode);
    }

    #[test]
    #[should_panic(expected = "changed: largest")]
    fn a_byte_of_a_maximum() {
        with(|account| account.max[Component::Tokens] -= 1);
    }

    #[test]
    #[should_panic(expected = "changed: when decoding begins")]
    fn a_byte_that_is_still_held() {
        with(|account| account.held[Component::DecodeTail] += 64);
    }
}
