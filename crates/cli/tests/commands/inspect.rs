//! `tidekv inspect`, the real binary: models that run, models that do not, and
//! files that are none.

use crate::rig::{Place, ends_with, ids, json, stderr, tidekv};
use serde_json::Value;
use std::process::Output;
use tidekv_format::{TensorType, Value as Metadata};
use tidekv_testkit::{Random, tiny_llama};

fn inspect(model: &str, args: &[&str]) -> Output {
    tidekv(&[&["inspect", model], args].concat())
}

fn report(model: &str, args: &[&str]) -> Value {
    let output = inspect(model, &[args, &["--json", "-"]].concat());
    ends_with(&output, 0, &[]);
    json(&output)
}

#[test]
fn a_model_that_runs_is_described() {
    let place = Place::new();
    let spec = tiny_llama(1);
    let report = report(&place.model(), &["--tensors", "--memory-limit", "1G"]);
    assert_eq!((&report["container"], &report["version"]), (&"GGUF".into(), &3.into()));
    assert_eq!(report["bytes"], std::fs::metadata(place.model()).unwrap().len());
    assert_eq!(report["architecture"], "llama");
    for (key, number) in [
        ("n_layers", spec.n_layers),
        ("d_model", spec.d_model),
        ("d_ff", spec.d_ff),
        ("n_heads", spec.n_heads),
        ("n_kv_heads", spec.n_kv_heads),
        ("head_dim", spec.head_dim),
        ("vocab", spec.vocab),
        ("context", spec.context),
    ] {
        assert_eq!(report["dimensions"][key], number, "{key}");
    }
    assert_eq!(report["tokenizer"]["tokens"], spec.vocab);
    assert_eq!(report["tokenizer"]["chat_template"], true);
    assert_eq!((&report["supported"], &report["problems"]), (&true.into(), &serde_json::json!([])));
    assert_eq!(report["fit"]["limit_bytes"], 1u64 << 30);
    assert_eq!(report["fit"]["largest_prompt_tokens"], spec.context);

    ends_with(&place.run(&["--prompt-ids", &ids(8), "--max-tokens", "1"]), 0, &[]);

    // The summary is that of the list.
    let tensors = report["tensors"].as_array().unwrap();
    let sum =
        |key: &str| -> u64 { tensors.iter().map(|tensor| tensor[key].as_u64().unwrap()).sum() };
    let elements = |tensor: &Value| -> u64 {
        tensor["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).product()
    };
    let types = report["tensor_types"].as_array().unwrap();
    let total = |key: &str| -> u64 { types.iter().map(|ty| ty[key].as_u64().unwrap()).sum() };
    assert_eq!(total("tensors"), tensors.len() as u64);
    assert_eq!(total("bytes"), sum("bytes"));
    assert_eq!(total("parameters"), tensors.iter().map(elements).sum::<u64>());
    assert_eq!(report["parameters"], total("parameters"));

    let output = inspect(&place.model(), &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    for word in ["GGUF version 3", "llama", "parameters", "layers", "F32", "supported       yes"] {
        assert!(text.contains(word), "`{word}` is not in:\n{text}");
    }
    assert!(!text.contains("blk.0.attn_q.weight"));
    let listed = String::from_utf8(inspect(&place.model(), &["--tensors"]).stdout).unwrap();
    assert!(listed.contains("blk.0.attn_q.weight"));
}

#[test]
fn a_model_that_does_not_run_is_described_too_with_the_reason() {
    let place = Place::new();
    let unknown = place.changed(|writer| {
        writer.set("general.architecture", Metadata::String("megalith".to_owned()));
        writer.set("megalith.block_count", Metadata::U32(7));
        writer.set("megalith.attention.head_count_kv", per_layer(&[1, 4]));
        writer.set("general.license", Metadata::String("apache-2.0".to_owned()));
        writer.set("general.file_type", Metadata::U32(15));
    });
    let report = report(&unknown, &[]);
    assert_eq!(report["supported"], false);
    let problem = report["problems"][0].as_str().unwrap();
    assert!(problem.contains("megalith") && problem.contains("not supported"), "{problem}");
    assert_eq!(report["fit"], Value::Null);
    assert_eq!(report["dimensions"]["n_layers"], 7);
    assert_eq!(report["dimensions"]["n_kv_heads"], serde_json::json!([1, 4]));
    assert_eq!(report["license"]["id"], "apache-2.0");
    assert_eq!(report["quantisation"], "Q4_K_M");
    let text = String::from_utf8(inspect(&unknown, &[]).stdout).unwrap();
    for word in ["supported  no", "1 to 4", "problem", "megalith", "apache-2.0", "Q4_K_M"] {
        assert!(text.contains(word), "`{word}` is not in:\n{text}");
    }
}

fn per_layer(numbers: &[u32]) -> Metadata {
    Metadata::Array(tidekv_format::Array::U32(numbers.to_vec()))
}

#[test]
fn a_type_that_nobody_knows_is_one_of_the_types() {
    let place = Place::new();
    let odd = place.changed(|writer| {
        writer.tensor("odd.weight", &[32], TensorType::from_id(77), vec![0; 64]);
    });
    let report = report(&odd, &[]);
    let types = report["tensor_types"].as_array().unwrap();
    let unknown = types.iter().find(|ty| ty["type"] == "unknown type 77").unwrap();
    assert_eq!((&unknown["tensors"], &unknown["bytes"]), (&1.into(), &Value::Null));
}

#[test]
fn names_cannot_steer_the_terminal() {
    let place = Place::new();
    let hostile = place.changed(|writer| {
        writer.set("general.name", Metadata::String("a\x1b[2Jb\nsupported yes".to_owned()));
    });
    let text = String::from_utf8(inspect(&hostile, &[]).stdout).unwrap();
    assert!(text.contains("a\\u{1b}[2Jb\\nsupported yes") && !text.contains('\x1b'), "{text}");
    assert_eq!(report(&hostile, &[])["name"], "a\x1b[2Jb\nsupported yes");
}

#[test]
fn a_long_problem_is_shown_whole() {
    let place = Place::new();
    let unknown = place.changed(|writer| {
        writer.set("tokenizer.ggml.pre", Metadata::String("alien".to_owned()));
    });
    let problems = report(&unknown, &[])["problems"].clone();
    let problem = problems[0].as_str().unwrap();
    assert!(problem.len() > 200, "{problem}");
    let text = String::from_utf8(inspect(&unknown, &[]).stdout).unwrap();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words(&text).contains(&words(problem)), "{text}");
    let shown = text.lines().skip_while(|line| !line.starts_with("  problem"));
    assert!(shown.clone().count() > 3 && shown.clone().all(|line| line.len() < 105), "{text}");
}

#[test]
fn a_problem_is_not_cut_however_long() {
    let place = Place::new();
    let name = "alien ".repeat(1000);
    let unknown = place.changed(|writer| {
        writer.set("tokenizer.ggml.pre", Metadata::String(name.trim().to_owned()));
    });
    let text = String::from_utf8(inspect(&unknown, &[]).stdout).unwrap();
    let problem = text.split_once("  problem").unwrap().1;
    assert_eq!(problem.matches("alien").count(), 1000);
    assert!(problem.contains("(supported:"), "{text}");
}

#[test]
fn a_damaged_model_is_described_and_fails() {
    let place = Place::new();
    let sound = report(&place.model(), &[]);
    type Change = fn(&mut tidekv_testkit::GgufWriter);
    let changes: [(&str, Change); 4] = [
        ("blk.1.attn_q.weight` is missing", |writer| {
            writer.remove_tensor("blk.1.attn_q.weight");
        }),
        ("llama.embedding_length", |writer| {
            writer.remove("llama.embedding_length");
        }),
        ("llama.attention.head_count", |writer| {
            writer.set("llama.attention.head_count", Metadata::String("many".to_owned()));
        }),
        ("vocabulary is damaged", |writer| {
            let tokens = vec!["a".to_owned(); 4];
            let tokens = tidekv_format::Array::String(tokens);
            writer.set("tokenizer.ggml.tokens", Metadata::Array(tokens));
        }),
    ];
    for (problem, change) in changes {
        let damaged = place.changed(change);
        let output = inspect(&damaged, &["--json", "-"]);
        ends_with(&output, 1, &["changed.gguf: ", problem]);
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
        let report = json(&output);
        let said = report["problems"].as_array().unwrap();
        assert!(said.iter().any(|said| said.as_str().unwrap().contains(problem)), "{report}");
        for key in ["container", "version", "architecture", "license"] {
            assert_eq!(report[key], sound[key], "{problem}: {key}");
        }
        let output = inspect(&damaged, &[]);
        ends_with(&output, 1, &[problem]);
        let text = String::from_utf8(output.stdout).unwrap();
        for word in ["GGUF version 3", "tensor type", "supported", "problem"] {
            assert!(text.contains(word), "`{word}` is not in:\n{text}");
        }
    }
}

#[test]
fn files_that_are_no_models_fail_with_one_sentence() {
    let place = Place::new();
    let whole = std::fs::read(place.model()).unwrap();
    let refused = |name: &str, bytes: &[u8], word: &str| {
        let output = inspect(&place.write(name, bytes), &[]);
        ends_with(&output, 1, &[name, word]);
        assert!(output.stdout.is_empty());
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    };
    refused("empty.gguf", b"", "0 bytes");
    refused("text.gguf", b"once upon a time there was a long text", "not a GGUF model");
    refused("page.gguf", b"<!DOCTYPE html><html></html>", "an HTML page");
    refused("cut.gguf", &whole[..whole.len() / 2], "truncated");
    ends_with(&inspect(&place.name("."), &[]), 1, &[]);
    ends_with(&inspect("/dev/null", &[]), 1, &[]);
}

#[test]
fn any_file_ends_in_order() {
    let place = Place::new();
    let whole = std::fs::read(place.model()).unwrap();
    let mut random = Random::named(2, "inspection");
    let (mut described, mut refused, mut runs) = (0, 0, 0);
    for _ in 0..60 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random.below(4) {
            // Magic, counts, metadata, vocabulary and tensor table.
            bytes[random.below(8_000) as usize] = random.below(256) as u8;
        }
        let output = inspect(&place.write("corrupted.gguf", &bytes), &[]);
        assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
        match (output.status.code(), output.stdout.is_empty()) {
            (Some(0), false) => runs += 1,
            (Some(1), false) => described += 1,
            (Some(1), true) => refused += 1,
            (code, _) => panic!("{code:?}: {}", stderr(&output)),
        }
    }
    let all = format!("{runs} sound, {described} damaged and described, {refused} refused");
    assert!(described >= 5 && refused >= 5, "{all}");
}

#[test]
fn a_split_file_and_a_directory_are_described_like_the_file() {
    let place = Place::new();
    let whole = report(&place.model(), &["--tensors", "--memory-limit", "1G"]);
    for (model, container, n_files) in
        [(place.split(3), "GGUF", 3), (place.hugging_face(2), "safetensors", 2)]
    {
        let report = report(&model, &["--tensors", "--memory-limit", "1G"]);
        assert_eq!(report["container"], container, "{model}");
        assert_eq!(report["files"].as_array().unwrap().len(), n_files, "{model}");
        assert_eq!(
            (&report["supported"], &report["problems"]),
            (&true.into(), &serde_json::json!([]))
        );
        let count = |report: &Value| report["tensors"].as_array().unwrap().len();
        assert_eq!(count(&report), count(&whole), "{model}");
        for key in ["n_layers", "d_model", "vocab", "context"] {
            assert_eq!(report["dimensions"][key], whole["dimensions"][key], "{model}: {key}");
        }
        assert_eq!(report["fit"], whole["fit"], "{model}");
    }
}
