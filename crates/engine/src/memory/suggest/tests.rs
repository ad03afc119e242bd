#![allow(clippy::unwrap_used, reason = "a test may panic")]

use super::*;
use crate::backend::Sizes;
use crate::memory::{Refusal, WeightBytes, refuse_unless_fits};
use crate::model::Shape;
use std::collections::HashSet;

/// Buffers of about the size that a real backend has.
struct SomeSizes;

impl Sizes for SomeSizes {
    fn active_half(&self, shape: &Shape, element: Element, n_tokens: usize) -> u64 {
        (n_tokens * shape.kv_cols() * element.bytes()) as u64
    }

    fn activation(&self, shape: &Shape, rows: usize) -> u64 {
        (rows * (shape.q_cols() + 2 * shape.d_ff) * 4) as u64
    }

    fn scratch(&self, _: &Shape, _: usize) -> u64 {
        8 << 20
    }

    fn decode_scratch(&self, _: &Shape) -> u64 {
        1 << 20
    }
}

pub(in crate::memory) fn with_input<T>(
    config: &RunConfig,
    n_tokens: usize,
    then: impl FnOnce(&PlanInput<'_>) -> T,
) -> T {
    let shape = &Shape::named("llama-3.1-8b").unwrap();
    let weights = WeightBytes { held: 1 << 20, mapped: 1 << 33 };
    then(&PlanInput { shape, weights, sizes: &SomeSizes, config, n_tokens: &[n_tokens] })
}

/// The settings that flags of [`Smaller`] stand for.
fn parse(flags: &str, config: &RunConfig) -> RunConfig {
    let mut config = config.clone();
    let words: Vec<&str> = flags.split(' ').collect();
    for pair in words.chunks(2) {
        let number = || pair[1].parse::<usize>().unwrap();
        let size = || NonZeroUsize::new(number()).unwrap();
        match pair[0] {
            "--schedule" if pair[1] == "tide" => {
                config.schedule = ScheduleKind::Tide.with_chunk(DEFAULT_CHUNK)
            }
            "--chunk" => Change::Chunk(size()).apply(&mut config),
            "--score-block" => config.score_block = size(),
            "--bridge-type" => config.bridge = pair[1].parse().unwrap(),
            "--kv-type" => config.kv = pair[1].parse().unwrap(),
            "--budget" => config.budget = number(),
            "--max-tokens" => config.max_new_tokens = number(),
            other => panic!("{other} in {flags}"),
        }
    }
    config
}

pub(in crate::memory) fn peak(input: &PlanInput<'_>, config: &RunConfig) -> u64 {
    plan(&PlanInput { config, ..*input }).unwrap().peak_bytes()
}

/// Everything that the documentation of [`suggestions`] promises of them.
fn check(input: &PlanInput<'_>, limit: u64) -> Vec<String> {
    let found = suggestions(input, limit);
    let mut sets = HashSet::new();
    for suggestion in &found {
        let (flags, needs) = suggestion.split_once(" would need ").unwrap();
        let config = parse(flags, input.config);
        let bytes = peak(input, &config);
        assert!(bytes <= limit, "{suggestion}: needs {bytes} of {limit}");
        assert_eq!(needs, Bytes(bytes).to_string(), "{suggestion}");
        let words: Vec<&str> = flags.split(' ').collect();
        let names: Vec<&str> = words.iter().step_by(2).copied().collect();
        // The default chunk is named with another schedule, and is no change.
        let default = ["--chunk", &DEFAULT_CHUNK.to_string()].join(" ");
        let changed: Vec<&str> = names
            .iter()
            .copied()
            .filter(|name| *name != "--chunk" || !flags.contains(&default))
            .collect();
        assert!(sets.insert(changed), "{names:?} twice in {found:?}");
        for left_out in names.iter().filter(|name| **name != "--schedule") {
            let rest: Vec<&str> =
                words.chunks(2).filter(|pair| pair[0] != *left_out).flatten().copied().collect();
            let stands_for_the_default = *left_out == "--chunk" && names[0] == "--schedule";
            if !rest.is_empty() && !stands_for_the_default {
                let without = peak(input, &parse(&rest.join(" "), input.config));
                assert!(without > limit, "{left_out} is not needed in {suggestion}");
            }
        }
    }
    found
}

#[test]
fn there_is_a_suggestion_exactly_where_something_fits() {
    let wide = RunConfig { kv: Element::F32, bridge: Element::F32, ..RunConfig::default() };
    let one_shot = ScheduleKind::OneShot.with_chunk(DEFAULT_CHUNK);
    for (config, n_tokens) in [
        (RunConfig::default(), 600),
        (RunConfig::default(), 20_000),
        (wide.clone(), 20_000),
        (RunConfig { schedule: one_shot, ..wide }, 3_000),
        (RunConfig { schedule: one_shot, ..RunConfig::default() }, 600),
    ] {
        with_input(&config, n_tokens, |input| {
            let (asked, floor) = (peak(input, &config), smallest(input).unwrap());
            assert!(floor.peak_bytes < asked);
            assert_eq!(peak(input, &parse(&floor.flags, &config)), floor.peak_bytes);
            for step in 0..=40 {
                let limit = floor.peak_bytes + (asked - 1 - floor.peak_bytes) / 40 * step;
                assert!(!check(input, limit).is_empty(), "nothing fits {limit} of {asked}");
            }
            assert!(suggestions(input, floor.peak_bytes - 1).is_empty());
        });
    }
}

#[test]
fn single_knobs_come_first_and_each_is_another() {
    let config = RunConfig { kv: Element::F32, bridge: Element::F32, ..RunConfig::default() };
    with_input(&config, 20_000, |input| {
        let found = check(input, peak(input, &config) - 1);
        let names: Vec<&str> = found.iter().map(|text| text.split(' ').next().unwrap()).collect();
        assert_eq!(names, ["--chunk", "--bridge-type", "--kv-type"], "{found:?}");
        assert!(found.iter().all(|text| text.matches("--").count() == 1), "{found:?}");
    });
}

#[test]
fn where_no_knob_is_enough_several_are() {
    let config = RunConfig::default();
    with_input(&config, 20_000, |input| {
        let asked = peak(input, &config);
        let chunk = peak(input, &parse("--chunk 32", &config));
        let budget = peak(input, &parse("--budget 64 --max-tokens 16", &config));
        let limit = chunk.min(budget) - 1;
        assert!(limit < asked);
        let found = check(input, limit);
        assert!(found[0].starts_with("--chunk") && found[0].contains("--budget"), "{found:?}");
    });
}

#[test]
fn a_refusal_says_what_would_do_or_what_the_floor_is() {
    let refusal = |limit, n_tokens| -> Box<Refusal> {
        let config = RunConfig { memory_limit: Some(limit), ..RunConfig::default() };
        let refused = with_input(&config, n_tokens, refuse_unless_fits);
        let Err(Error::Refused(refusal)) = refused else { panic!("{limit} was enough") };
        refusal
    };
    let some = refusal(1 << 30, 20_000);
    assert!(!some.suggestions.is_empty());
    let text = some.to_string();
    assert!(some.suggestions.iter().all(|suggestion| text.contains(suggestion)), "{text}");

    let none = refusal(1 << 20, 20_000);
    assert_eq!((none.suggestions.len(), none.largest_prompt), (0, 0));
    let text = none.to_string();
    let floor = Bytes(none.smallest.peak_bytes).to_string();
    assert!(text.contains("none of the settings that were tried"), "{text}");
    assert!(text.contains(&floor) && text.contains("smaller values"), "{text}");
    assert!(text.contains("--chunk 32") && text.contains("--budget 64"), "{text}");

    // One byte short: the rounded numbers would be the same.
    let peak = some.plan.peak_bytes();
    let text = refusal(peak - 1, 20_000).to_string();
    assert!(text.contains(&format!("needs {peak} bytes at its peak")), "{text}");
    assert!(text.contains(&format!("the limit is {} bytes", peak - 1)), "{text}");
}
