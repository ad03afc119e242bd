//! A directory of GGUF files, which every command takes for the model in it.

use crate::rig::{Place, ends_with, tidekv};
use std::process::Output;
use tidekv_testkit::tiny_llama;

/// Every command that opens a model, on a directory.
fn all(directory: &str) -> [Output; 4] {
    [
        tidekv(&["run", directory, "--prompt-ids", "1,2,3", "--max-tokens", "1"]),
        tidekv(&["plan", directory, "--tokens", "8"]),
        tidekv(&["inspect", directory]),
        tidekv(&["verify", directory, "--tokens", "40", "--chunks", "16"]),
    ]
}

#[test]
fn the_only_model_is_used_and_said() {
    let place = Place::new();
    std::fs::write(place.path("config.json"), "{}").unwrap();
    for output in all(&place.name(".")) {
        ends_with(&output, 0, &["the model is", "tiny.gguf"]);
    }
}

#[test]
fn a_split_model_is_one() {
    let place = Place::new();
    let directory = place.path("parts");
    std::fs::create_dir(&directory).unwrap();
    tiny_llama(1).writer().write_split(&directory, "split", 3).unwrap();
    for output in all(&place.name("parts")) {
        ends_with(&output, 0, &["the model is", "split-00001-of-00003.gguf"]);
    }
}

#[test]
fn of_several_one_has_to_be_named() {
    let place = Place::new();
    std::fs::copy(place.model(), place.path("other.GGUF")).unwrap();
    for output in all(&place.name(".")) {
        ends_with(&output, 1, &["holds 2 GGUF models", "name one", "other.GGUF", "tiny.gguf"]);
    }
    // Beside safetensors they are no matter.
    std::fs::write(place.path("model.safetensors"), "").unwrap();
    ends_with(&all(&place.name("."))[0], 1, &["config.json", "missing"]);
}
