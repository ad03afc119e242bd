//! `tidekv plan`, the real binary: figures of known shapes, what fits and what
//! would, without a model or with the header of one.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

mod rig;

use rig::{Place, ends_with, ids, json, tidekv};
use serde_json::json;
use std::time::{Duration, Instant};

const LLAMA: [&str; 5] = ["plan", "--shape", "llama-3.1-8b", "--tokens", "128k"];

fn llama(args: &[&str]) -> std::process::Output {
    tidekv(&[&LLAMA[..], args].concat())
}

#[test]
fn a_known_shape_has_the_golden_figures() {
    let report = json(&llama(&["--memory-limit", "8GiB", "--json", "-"]));
    assert_eq!(report["fits"], true);
    assert_eq!(report["limit_bytes"], 8u64 << 30);
    assert_eq!(report["largest_prompt_tokens"], 131_072);
    assert_eq!(report["suggestions"], json!([]));
    let schedules: Vec<_> =
        report["plans"].as_array().unwrap().iter().map(|plan| plan["schedule"].clone()).collect();
    assert_eq!(schedules, ["tide", "one-shot", "post-prefill"]);
    let memory = &report["plans"][0]["memory"];
    assert_eq!(memory["components_max"]["bridge"], 1u64 << 30);
    assert_eq!(memory["components_max"]["active_kv"], 512u64 << 20);
    assert_eq!(memory["components_max"]["retained_kv"], 512u64 << 20);
    assert_eq!(memory["components_max"]["positions"], 4u64 << 20);
    assert_eq!(memory["retained_bytes"], 512u64 << 20);
    let components = memory["components_at_peak"].as_object().unwrap();
    let counted = components.iter().filter(|(name, _)| *name != "weights_mapped");
    let total: u64 = counted.map(|(_, bytes)| bytes.as_u64().unwrap()).sum();
    assert_eq!(memory["planned_peak_bytes"], total);
    assert_eq!(memory["peak_at"]["layer"], 31);
}

#[test]
fn the_schedule_asked_for_comes_first_and_none_twice() {
    let report = json(&llama(&["--schedule", "one-shot", "--memory-limit", "1T", "--json", "-"]));
    let schedules: Vec<_> =
        report["plans"].as_array().unwrap().iter().map(|plan| plan["schedule"].clone()).collect();
    assert_eq!(schedules, ["one-shot", "post-prefill"]);
}

#[test]
fn a_limit_may_be_of_1024_or_of_1000() {
    for (limit, bytes) in [("8GiB", 8u64 << 30), ("8G", 8 << 30), ("8GB", 8_000_000_000)] {
        let report = json(&llama(&["--memory-limit", limit, "--json", "-"]));
        assert_eq!(report["limit_bytes"], bytes, "{limit}");
    }
    ends_with(&llama(&["--memory-limit", "8Q"]), 2, &["`8Q`", "8GiB", "8GB"]);
}

#[test]
fn what_does_not_fit_exits_with_3_and_what_would_does_fit() {
    let limit = ["--memory-limit", "2GiB"];
    let output = llama(&[&limit[..], &["--json", "-"]].concat());
    ends_with(&output, 3, &["does not fit"]);
    let report = json(&output);
    assert_eq!(report["fits"], false);

    let suggestions = report["suggestions"].as_array().unwrap();
    // Fewer tokens are a change of their own; no two suggestions turn the same knobs.
    assert!((1..=3).contains(&suggestions.len()), "{suggestions:?}");
    for suggestion in suggestions {
        let text = suggestion.as_str().unwrap();
        let flags = text.split(" would need ").next().unwrap();
        let flags: Vec<&str> =
            flags.split_whitespace().filter(|word| *word != "together").collect();
        ends_with(&llama(&[&limit[..], &flags].concat()), 0, &[]);
        let shown = String::from_utf8(llama(&limit).stdout).unwrap();
        assert!(shown.contains(text), "{shown}");
    }

    // Where nothing fits, the floor is named.
    let shown = String::from_utf8(llama(&["--memory-limit", "1GiB"]).stdout).unwrap();
    assert!(shown.contains("the smallest plan, with --"), "{shown}");

    let largest = report["largest_prompt_tokens"].as_u64().unwrap();
    let plan = |tokens: u64| {
        let tokens = tokens.to_string();
        tidekv(&[&["plan", "--shape", "llama-3.1-8b", "--tokens", &tokens], &limit[..]].concat())
    };
    let output = plan(largest);
    ends_with(&output, 0, &[]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains(&format!("the largest prompt that fits has {largest} tokens")));
    ends_with(&plan(largest + 1), 3, &[]);
}

/// A plan takes no longer for a longer prompt, nor minutes for what is said of
/// many.
#[test]
fn a_billion_tokens_and_a_thousand_prompts_are_planned_at_once() {
    let place = Place::new();
    let shape = json!({
        "n_layers": 32, "d_model": 4096, "d_ff": 14336, "n_heads": 32, "n_kv_heads": 8,
        "head_dim": 128, "vocab": 128_256, "context": 2_000_000_000,
    });
    let shape = place.write("shape.json", shape.to_string().as_bytes());
    // The last two do not fit together, whatever the others do.
    let thousand = "1000,".repeat(998) + "128k,128k";
    for (tokens, limit, said) in [
        ("1000000000", "16GiB", "the largest prompt that fits has"),
        (&thousand, "5GiB", "at a time, in this order"),
        (&thousand, "64GiB", "would need"),
    ] {
        for schedule in ["tide", "chunked-post"] {
            let begun = Instant::now();
            let args = ["plan", "--shape", &shape, "--chunk", "512", "--schedule", schedule];
            let output =
                tidekv(&[&args[..], &["--tokens", tokens, "--memory-limit", limit]].concat());
            let took = begun.elapsed();
            ends_with(&output, 3, &[]);
            if schedule == "tide" {
                let shown = String::from_utf8(output.stdout).unwrap();
                assert!(shown.contains(said), "{shown}");
            }
            assert!(took < Duration::from_secs(15), "{took:?} for {limit}, {schedule}");
        }
    }
}

#[test]
fn the_table_names_every_component_and_the_peak() {
    let output = llama(&["--memory-limit", "8GiB"]);
    ends_with(&output, 0, &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    let words = [
        "131072 tokens",
        "tide",
        "one-shot",
        "post-prefill",
        "weights",
        "tokens",
        "bridge",
        "active_kv",
        "activation",
        "observation",
        "scratch",
        "retained_kv",
        "positions",
        "decode_tail",
        "logits",
        "peak",
        "reached in",
        "1.00 GiB",
        "fits the limit of 8.00 GiB",
        "up to the model's context of 131072 tokens",
    ];
    for word in words {
        assert!(text.contains(word), "`{word}` is not in:\n{text}");
    }
}

#[test]
fn a_model_needs_its_header_only_and_a_run_keeps_the_promise() {
    let place = Place::new();
    let settings = ["--chunk", "64", "--budget", "100", "--max-tokens", "5", "--json", "-"];
    let model = place.model();
    let plan = json(&tidekv(&[&["plan", &model, "--tokens", "300"], &settings[..]].concat()));
    let run = json(&place.run(&[&["--prompt-ids", &ids(300)], &settings[..]].concat()));
    let planned = &plan["plans"][0]["memory"];
    for key in [
        "planned_peak_bytes",
        "peak_at",
        "transient_peak_bytes",
        "retained_bytes",
        "components_at_peak",
        "components_max",
    ] {
        assert_eq!(planned[key], run["memory"][key], "{key}");
    }
    assert_eq!(planned["planned_peak_bytes"], run["memory"]["accounted_peak_bytes"]);
}

#[test]
fn a_shape_may_come_from_a_file_and_a_bad_one_is_named() {
    let place = Place::new();
    let shape = json!({
        "n_layers": 32, "d_model": 4096, "d_ff": 14336, "n_heads": 32, "n_kv_heads": 8,
        "head_dim": 128, "vocab": 128_256, "context": 131_072,
    });
    let plan = |text: &str, tokens: &str| {
        let file = place.write("shape.json", text.as_bytes());
        let args = ["plan", "--tokens", tokens, "--memory-limit", "8G", "--json", "-"];
        tidekv(&[&args[..], &["--shape", &file]].concat())
    };
    let known = json(&llama(&["--memory-limit", "8G", "--json", "-"]));
    let own = json(&plan(&shape.to_string(), "128k"));
    assert_eq!(own["plans"][0], known["plans"][0]);

    let with = |key: &str, value: u64| {
        let mut shape = shape.clone();
        shape[key] = value.into();
        shape.to_string()
    };
    ends_with(&plan(&shape.to_string(), "129k"), 1, &["132096", "131072", "--rope-scaling"]);
    ends_with(&plan("{", "1k"), 1, &["shape.json"]);
    ends_with(&plan("{}", "1k"), 1, &["shape.json", "missing field"]);
    ends_with(&plan(&with("n_kv_heads", 7), "1k"), 1, &["shape.json", "7"]);
    ends_with(&plan(&with("n_layers", 0), "1k"), 1, &["n_layers"]);
    ends_with(&plan(&with("d_ff", u64::MAX), "1k"), 1, &[]);
    ends_with(
        &tidekv(&["plan", "--shape", "gpt-9", "--tokens", "1k"]),
        1,
        &["gpt-9", "mistral-7b"],
    );
    ends_with(&tidekv(&["plan", "--tokens", "1k"]), 2, &["--shape"]);
    ends_with(&tidekv(&["plan", "--shape", "mistral-7b"]), 2, &["--tokens"]);
    ends_with(&tidekv(&["plan", "--shape", "mistral-7b", "--tokens", "0"]), 2, &["at least 1"]);
}
