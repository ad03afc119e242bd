//! The plan: equal to the accountant, within the design's bounds, and a limit
//! that holds.
#![allow(clippy::unwrap_used)]

use std::num::NonZeroUsize;
use tidekv::backend::Sizes;
use tidekv::memory::{
    Component, Plan, PlanInput, StepMemory, WeightBytes, layout, plan, plan_steps,
};
use tidekv::model::Shape;
use tidekv::schedule::{ScheduleKind, Step};
use tidekv::{Element, Engine, Error, Model, Observer, RunConfig, Tap, Unobserved};
use tidekv_cpu::{Cpu, CpuConfig, CpuSizes};
use tidekv_testkit::{TinySpec, tiny_llama, tiny_qwen2};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn chunk(rows: usize) -> NonZeroUsize {
    NonZeroUsize::new(rows).unwrap()
}

fn sizes(threads: usize) -> CpuSizes {
    CpuSizes::new(&CpuConfig { threads: NonZeroUsize::new(threads), tier: None }).unwrap()
}

fn llama_plan(kind: ScheduleKind, rows: usize, n_tokens: usize, threads: usize) -> Plan {
    let shape = Shape::named("llama-3.1-8b").unwrap();
    let config = RunConfig { schedule: kind.with_chunk(chunk(rows)), ..RunConfig::default() };
    let weights = WeightBytes { held: layout::norm_vectors(&shape), mapped: 0 };
    let sizes = sizes(threads);
    plan(&PlanInput { shape: &shape, weights, sizes: &sizes, config: &config, n_tokens }).unwrap()
}

/// Design section 6.
#[test]
fn golden_numbers_at_128k() {
    let plan = llama_plan(ScheduleKind::Tide, 2048, 131_072, 2);
    assert_eq!(plan.max[Component::Bridge], GIB);
    assert_eq!(plan.max[Component::ActiveKv], GIB / 2);
    assert_eq!(plan.held[Component::RetainedKv], 512 * MIB);
    assert_eq!(plan.held[Component::Positions], 4 * MIB);
}

#[test]
fn transient_of_an_8b_model_at_64k_is_below_the_papers() {
    let shape = Shape::named("llama-3.1-8b").unwrap();
    for threads in [1, 2, 8, 16] {
        for (rows, most) in [(2048, 0.95), (256, 0.80)] {
            let plan = llama_plan(ScheduleKind::Tide, rows, 65_536, threads);
            let chunk = (rows * (8 * shape.d_model + 4 * shape.d_ff)) as u64;
            let bound =
                plan.max[Component::Bridge] + plan.max[Component::ActiveKv] + chunk + 12 * MIB;
            let transient = plan.transient_bytes();
            assert!(transient <= bound, "{threads} threads, C = {rows}: {transient} > {bound}");
            assert!(transient as f64 <= most * GIB as f64, "C = {rows}: {transient}");
        }
    }
}

#[test]
fn scratch_does_not_grow_with_the_prompt() {
    let scratch = |n| llama_plan(ScheduleKind::Tide, 512, n, 2).max[Component::Scratch];
    assert_eq!(scratch(8192), scratch(131_072));
}

#[test]
fn transient_shrinks_by_the_promised_share_on_both_small_models() {
    let small = Shape {
        n_layers: 30,
        d_model: 576,
        d_ff: 1536,
        n_heads: 9,
        n_kv_heads: 3,
        head_dim: 64,
        vocab: 49_152,
        context: 8192,
    };
    let qwen = Shape {
        n_layers: 24,
        d_model: 896,
        d_ff: 4864,
        n_heads: 14,
        n_kv_heads: 2,
        head_dim: 64,
        vocab: 151_936,
        context: 32_768,
    };
    for (shape, least) in [(small, 0.65), (qwen, 0.75)] {
        let transient = |kind: ScheduleKind| {
            let schedule = kind.with_chunk(chunk(512));
            let config = RunConfig { schedule, budget: 512, ..RunConfig::default() };
            let weights = WeightBytes { held: 0, mapped: 0 };
            let sizes = sizes(2);
            let input = PlanInput {
                shape: &shape,
                weights,
                sizes: &sizes,
                config: &config,
                n_tokens: 8192,
            };
            plan(&input).unwrap().transient_bytes() as f64
        };
        let saved = 1.0 - transient(ScheduleKind::Tide) / transient(ScheduleKind::PostPrefill);
        println!("d_model {}: transient down by {:.1} %", shape.d_model, 100.0 * saved);
        assert!(saved >= least, "{saved}");
    }
}

fn engine(spec: &TinySpec) -> Engine<Cpu> {
    let dir = std::env::temp_dir().join(format!("tidekv-plan-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join(format!("{}-{}-{}.gguf", spec.n_heads, spec.n_kv_heads, spec.seed));
    spec.write_to(&path).unwrap();
    Engine::new(Model::open(&path, None).unwrap(), Cpu::new(CpuConfig::default()).unwrap()).unwrap()
}

#[derive(Default)]
struct Ledger(Vec<StepMemory>);

impl Observer for Ledger {
    fn after(&mut self, _: &Step, memory: &StepMemory, _: &dyn Tap) {
        self.0.push(*memory);
    }
}

/// Ten shapes and settings, all schedules: after every step and at every step's
/// high-water mark, component by component.
#[test]
fn accountant_equals_plan_in_every_step() {
    let specs = [
        tiny_llama(1),
        tiny_qwen2(2),
        TinySpec { n_heads: 4, n_kv_heads: 1, head_dim: 64, ..tiny_llama(3) },
        TinySpec { n_heads: 3, n_kv_heads: 3, head_dim: 80, ..tiny_llama(4) },
        TinySpec { n_layers: 1, ..tiny_llama(5) },
    ];
    let mut checked = 0;
    for spec in &specs {
        let engine = engine(spec);
        for (n_tokens, budget, selector, element) in [
            (200, 48, "snapkv", Element::Bf16),
            (
                130,
                40,
                "observation(window=8,kernel=5,order=pool-then-group)+sinks(4)",
                Element::F32,
            ),
        ] {
            for kind in ScheduleKind::ALL {
                let config = RunConfig {
                    schedule: kind.with_chunk(chunk(64)),
                    selector: selector.parse().unwrap(),
                    budget,
                    score_block: chunk(33),
                    kv: element,
                    bridge: element,
                    max_new_tokens: 4,
                    ..RunConfig::default()
                };
                let tokens: Vec<u32> = (0..n_tokens as u32).map(|id| id % 250).collect();
                let sizes = tidekv::Backend::sizes(engine.backend());
                let mut planned = Vec::new();
                let input = engine.plan_input(&*sizes, &config, n_tokens);
                let plan = plan_steps(&input, |step| planned.push(*step)).unwrap();
                let mut ledger = Ledger::default();
                let session = engine.prefill(&tokens, &config, &mut ledger).unwrap();
                assert_eq!(planned, ledger.0, "{kind} {selector}");
                assert_eq!(plan.peak, session.accountant().peak(), "{kind}");
                assert_eq!(plan.max, session.accountant().max(), "{kind}");
                assert_eq!(plan.held, session.accountant().live(), "{kind}");
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 60);
}

#[test]
fn a_limit_of_the_plan_suffices_and_a_byte_less_is_refused_with_what_fits() {
    let engine = engine(&tiny_llama(6));
    let tokens: Vec<u32> = (0..200).collect();
    let mut config = RunConfig {
        schedule: ScheduleKind::Tide.with_chunk(chunk(64)),
        budget: 48,
        max_new_tokens: 4,
        ..RunConfig::default()
    };
    let peak = engine.plan(&config, tokens.len()).unwrap().peak_bytes();
    config.memory_limit = Some(peak);
    engine.prefill(&tokens, &config, &mut Unobserved).unwrap();
    config.memory_limit = Some(peak - 1);
    let Err(Error::Refused(refusal)) = engine.prefill(&tokens, &config, &mut Unobserved) else {
        panic!("a run over its limit was not refused");
    };
    let fits = refusal.largest_prompt;
    assert!(fits < tokens.len());
    engine.prefill(&tokens[..fits], &config, &mut Unobserved).unwrap();
    assert!(engine.plan(&config, fits + 1).is_err());
}

#[test]
fn active_kv_is_whole_blocks_of_both_halves() {
    let shape = Shape::named("mistral-7b").unwrap();
    let half = |n| sizes(1).active_half(&shape, Element::Bf16, n);
    assert_eq!(half(1), half(128));
    assert_eq!(half(129), 2 * half(128));
    assert_eq!(half(128), 128 * 1024 * 2);
}
