//! Hugging Face directories that would be computed wrongly are refused, with what
//! to do.

use crate::rig::{Place, ends_with, json, tidekv};
use serde_json::{Value, json};
use std::path::Path;
use tidekv_format::TensorType;

const RUN: [&str; 4] = ["--prompt-ids", "1,2,3", "--max-tokens", "1"];

/// Sets a field of the directory's `config.json`.
fn set(directory: &str, key: &str, value: Value) {
    let path = Path::new(directory).join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config[key] = value;
    std::fs::write(path, config.to_string()).unwrap();
}

#[test]
fn quantised_weights_are_refused_by_method_and_shown() {
    let place = Place::new();
    let model = place.hugging_face(1);
    set(&model, "quantization_config", json!({"quant_method": "gptq", "bits": 4}));
    let output = tidekv(&[&["run", &model], &RUN[..]].concat());
    ends_with(&output, 1, &["gptq (4 bits)", "not supported", "GGUF", "original"]);
    let output = tidekv(&["inspect", &model, "--json", "-"]);
    ends_with(&output, 0, &[]);
    let report = json(&output);
    assert_eq!(
        (&report["supported"], &report["quantisation"]),
        (&false.into(), &"gptq (4 bits)".into())
    );
    let problem = report["problems"][0].as_str().unwrap();
    assert!(problem.contains("gptq (4 bits)") && problem.contains("GGUF"), "{problem}");
    set(&model, "quantization_config", json!("fp8"));
    ends_with(&tidekv(&["plan", &model, "--tokens", "8"]), 1, &["quantised by fp8"]);
    set(&model, "quantization_config", json!([]));
    ends_with(&tidekv(&["plan", &model, "--tokens", "8"]), 1, &["quantization_config = []"]);
}

#[test]
fn rotations_that_make_no_sense_are_refused_at_open() {
    let place = Place::new();
    let model = place.hugging_face(1);
    let refused = |scaling: Value, words: &[&str]| {
        set(&model, "rope_scaling", scaling);
        ends_with(&tidekv(&["plan", &model, "--tokens", "8"]), 1, words);
    };
    let yarn = json!({"type": "yarn", "factor": 4, "beta_fast": 1, "beta_slow": 32});
    refused(yarn, &["beta_fast = 1", "above beta_slow, 32"]);
    refused(json!({"type": "yarn", "factor": 0.5}), &["factor = 0.5", "from 1 to 1024"]);
    refused(
        json!({"type": "longrope", "factor": 2, "short_factor": [1], "long_factor": [1]}),
        &["short_factor = 1 numbers", "8 rotating pairs"],
    );
    refused(json!("yarn"), &["rope_scaling", "must be an object"]);
    set(&model, "rope_scaling", json!({"type": "linear", "factor": 2}));
    set(&model, "rope_parameters", json!({"rope_type": "linear", "factor": 4}));
    let words = ["rope_scaling", "`rope_parameters` states another rotation"];
    ends_with(&tidekv(&["plan", &model, "--tokens", "8"]), 1, &words);
    set(&model, "rope_parameters", json!({"rope_type": "linear", "factor": 2}));
    ends_with(&tidekv(&["plan", &model, "--tokens", "8"]), 0, &[]);
}

/// Windows, rotations and heads are read as the reference reads them in each family.
#[test]
fn a_stated_window_or_rotation_that_the_family_does_not_have_changes_nothing() {
    let place = Place::new();
    let model = place.hugging_face(1);
    let ids = || {
        let args = ["--prompt-ids", "1,2,3,4,5,6,7,8,9", "--max-tokens", "8", "--json", "-"];
        let output = tidekv(&[&["run", &model], &args[..]].concat());
        ends_with(&output, 0, &[]);
        json(&output)["kept"].clone()
    };
    let all = ids();
    set(&model, "sliding_window", json!(4));
    set(&model, "no_rope_layers", json!([1, 0, 1]));
    set(&model, "partial_rotary_factor", json!(0.5));
    assert_eq!(ids(), all);
    // The same file is another model where the family has windows.
    set(&model, "model_type", json!("mistral"));
    assert_ne!(ids(), all);
}

#[test]
fn an_output_projection_that_is_stated_and_missing_is_named() {
    let place = Place::new();
    let model = place.hugging_face(1);
    set(&model, "tie_word_embeddings", json!(false));
    ends_with(&tidekv(&["plan", &model, "--tokens", "8"]), 1, &["lm_head.weight", "missing"]);
}

#[test]
fn a_tensor_that_would_be_left_out_is_named() {
    for (name, words) in [
        ("blk.1.attn_k.bias", "some, not all, of query, key and value"),
        ("blk.1.attn_q.bias", "some, not all, of query, key and value"),
        ("blk.0.attn_output.bias", "a bias of the attention output"),
        ("blk.2.ffn_down.bias", "of the MLP"),
        ("output.bias", "the output projection"),
        ("blk.0.surplus.weight", "llama architecture"),
    ] {
        let place = Place::new();
        let model = place.changed(|writer| {
            writer.tensor(name, &[8], TensorType::F32, vec![0; 32]);
        });
        let output = tidekv(&[&["run", &model], &RUN[..]].concat());
        ends_with(&output, 1, &[name, words, "not supported", "refused"]);
    }
}
