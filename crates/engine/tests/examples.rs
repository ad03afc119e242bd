//! The examples do what they teach: the code of each is run here, and the README
//! shows the one that it says it shows.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]
// The command lines of examples only read arguments.
#![allow(dead_code)]

#[path = "../examples/answer.rs"]
mod answer;
#[path = "../examples/observer.rs"]
mod observer;
#[path = "../examples/plan.rs"]
mod plan;
#[path = "../examples/scorer.rs"]
mod scorer;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;
use tidekv::schedule::ScheduleKind;
use tidekv::text::Specials;
use tidekv::{Engine, Model, RunConfig};
use tidekv_cpu::{Cpu, CpuConfig};
use tidekv_testkit::{TinySpec, models, tiny_llama};

/// A model of three layers, and where it is.
fn tiny() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    TinySpec { context: 4096, ..tiny_llama(3) }.write_to(&path).unwrap();
    (dir, path)
}

/// About 350 words of which one sentence matters.
fn document() -> String {
    let days = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
    let mut sentences: Vec<String> = (1..=28)
        .map(|day| {
            let name = days[day % days.len()];
            format!("On {name}, day {day}, the keeper wrote the wind and the tide in the book.")
        })
        .collect();
    sentences.insert(9, "The name of the keeper's dog is Fenja.".to_owned());
    sentences.join(" ")
}

/// What an example writes.
fn written(run: impl FnOnce(&mut Vec<u8>) -> Result<(), Box<dyn std::error::Error>>) -> String {
    let mut out = Vec::new();
    run(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn the_answer_is_in_the_document() {
    let model = models::path("smollm2-135m");
    let question = "What is the name of the keeper's dog?";
    let asked = (model.as_path(), &*document(), question);
    let text = written(|out| answer::answer(asked, out));
    assert!(text.contains("Fenja"), "{text}");
}

#[test]
fn an_example_returns_what_goes_wrong() {
    let nowhere = PathBuf::from("/no/such/model.gguf");
    let error = answer::answer((&nowhere, "", "?"), &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("/no/such/model.gguf"), "{error}");
}

#[test]
fn the_scorer_keeps_sets_of_its_own() {
    let (_dir, model) = tiny();
    let text = written(|out| scorer::compare(&model, &document(), out));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1 + 3, "{text}");
    assert!(lines[0].ends_with("custom(small-norm)+sinks(4)+recent(32) and snapkv"), "{text}");
    let tokens: usize = lines[0].split(' ').next().unwrap().parse().unwrap();
    for line in &lines[1..] {
        let numbers: Vec<usize> =
            line.split([' ', ':']).filter_map(|word| word.parse().ok()).collect();
        let [_, both, own] = numbers[..] else { panic!("{line}") };
        // Two KV heads; both keep the last 32, neither selector is the other.
        assert_eq!(own, 2 * (tokens / 4), "{line}");
        assert!((2 * 32..own).contains(&both), "{line}");
    }
}

#[test]
fn the_timeline_has_every_step_and_ends_at_the_deadline() {
    let (_dir, model) = tiny();
    let run = |seconds| {
        written(|out| observer::timeline(&model, &document(), (Duration::from_secs(seconds), out)))
    };
    let text = run(600);
    let lines: Vec<&str> = text.lines().collect();
    // Embedding, three layers with their evictions, the head, the summary.
    assert_eq!(lines.len(), 1 + 3 * 2 + 1 + 1, "{text}");
    for (line, what) in lines.iter().zip(["embed", "layer 0, tokens 0..", "evict layer 0"]) {
        assert!(line.contains(what), "{text}");
    }
    assert!(lines[8].starts_with("read; the peak was"), "{text}");
    assert_eq!(run(0), "cancelled: 0ns are over\n");
}

#[test]
fn the_plan_chooses_the_largest_chunk_that_fits_and_is_kept() {
    let (_dir, path) = tiny();
    let cpu = Cpu::new(CpuConfig::default()).unwrap();
    let engine = Engine::new(Model::open(&path, None).unwrap(), cpu).unwrap();
    let n_tokens = engine.tokenizer().unwrap().encode(&document(), Specials::AsText).unwrap().len();
    assert!(n_tokens > 512, "{n_tokens}");
    let chunk = NonZeroUsize::new(256).unwrap();
    let schedule = ScheduleKind::Tide.with_chunk(chunk);
    let config = RunConfig { schedule, budget: 1024, ..RunConfig::default() };
    let limit = engine.plan(&config, n_tokens).unwrap().peak_bytes();

    let text = written(|out| plan::fit(&path, &document(), (limit, out)));
    let lines: Vec<&str> = text.lines().collect();
    for (line, size) in lines[1..].iter().zip([2048, 1024, 512]) {
        assert!(line.starts_with(&format!("chunks of {size}: ")), "{text}");
        assert!(line.ends_with("are too much"), "{text}");
    }
    assert!(lines[4].starts_with("chunks of 256: ") && lines[4].ends_with(" fit"), "{text}");
    assert_eq!(lines[5], format!("planned {limit} bytes, used {limit} bytes:"), "{text}");

    let refused = plan::fit(&path, &document(), (1000, &mut Vec::new())).unwrap_err();
    assert!(refused.to_string().contains("the limit is 1000 B"), "{refused}");
}

/// The code of `answer.rs` without its introduction and its command line.
fn snippet() -> &'static str {
    let source = include_str!("../examples/answer.rs");
    let code = &source[source.find("use std::error::Error;").unwrap()..];
    code[..code.find("fn run()").unwrap()].trim()
}

#[test]
fn the_readme_shows_the_example() {
    let readme = include_str!("../../../README.md");
    let section = readme.split("\n## As a library\n").nth(1).unwrap();
    let block = section.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(block.trim(), snippet());
}
