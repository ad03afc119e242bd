//! A directory of GGUF files, which every command takes for the model in it.

use crate::rig::{Place, ends_with, tidekv};
use std::path::Path;
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
fn names_in_capitals_are_those_of_models() {
    let place = Place::new();
    let single = place.path("single");
    let parts = place.path("parts");
    for directory in [&single, &parts] {
        std::fs::create_dir(directory).unwrap();
    }
    std::fs::copy(place.model(), single.join("TINY.GGUF")).unwrap();
    let written = tiny_llama(1).writer().write_split(&parts, "split", 3).unwrap();
    for path in &written {
        let name = path.file_name().unwrap().to_str().unwrap().to_uppercase();
        std::fs::rename(path, parts.join(name)).unwrap();
    }
    for output in all(&place.name("single")) {
        ends_with(&output, 0, &["the model is", "TINY.GGUF"]);
    }
    for output in all(&place.name("parts")) {
        ends_with(&output, 0, &["the model is", "SPLIT-00001-OF-00003.GGUF"]);
    }
    for output in all(&place.name("parts/SPLIT-00002-OF-00003.GGUF")) {
        ends_with(&output, 0, &[]);
    }
}

#[test]
fn all_parts_that_are_missing_are_named() {
    let place = Place::new();
    let second = place.split(4);
    for number in [1, 3] {
        std::fs::remove_file(place.path(&format!("split-0000{number}-of-00004.gguf"))).unwrap();
    }
    for output in all(&second) {
        let words = ["2 of the 4 parts", "split-00001-of-00004.gguf", "split-00003-of-00004.gguf"];
        ends_with(&output, 1, &words);
    }
    // A name and a header that count differently.
    let renamed = place.name("split-00002-of-00003.gguf");
    std::fs::rename(second, &renamed).unwrap();
    for output in all(&renamed) {
        let words = ["part 2 of 3", "`split.count`", "part 2 of 4", "`-00001-of-00004`"];
        ends_with(&output, 1, &words);
    }
}

#[test]
fn an_empty_directory_and_unfinished_downloads_are_said() {
    let place = Place::new();
    std::fs::create_dir(place.path("directory")).unwrap();
    let directory = place.name("directory");
    for output in all(&directory) {
        ends_with(&output, 1, &["directory is empty", "GGUF file", "config.json"]);
    }
    for name in ["a.gguf.part", "b.GGUF.PART", "c.incomplete"] {
        place.write(&format!("directory/{name}"), b"GGUF");
    }
    place.write("directory/d-mmproj.gguf", b"GGUF");
    for output in all(&directory) {
        let words =
            ["holds no model", "downloads that have not ended", "a.gguf.part", "b.GGUF.PART"];
        ends_with(&output, 1, &[&words[..], &["c.incomplete", "(mmproj)", "d-mmproj"]].concat());
    }
    // Beside a model they are nobody's business.
    std::fs::copy(place.model(), place.path("directory/tiny.gguf")).unwrap();
    for output in all(&directory) {
        ends_with(&output, 0, &["the model is", "tiny.gguf"]);
    }
}

#[test]
fn of_several_one_has_to_be_named() {
    let place = Place::new();
    std::fs::copy(place.model(), place.path("other.GGUF")).unwrap();
    for output in all(&place.name(".")) {
        ends_with(&output, 1, &["holds 2 GGUF models", "name one", "other.GGUF", "tiny.gguf"]);
    }
}

#[test]
fn what_is_no_model_is_passed_over() {
    let place = Place::new();
    for name in ["mmproj-tiny.gguf", ".tiny.gguf", "._tiny.gguf", "tiny-imatrix.gguf"] {
        std::fs::copy(place.model(), place.path(name)).unwrap();
    }
    place.write("empty.gguf", b"");
    std::fs::create_dir(place.path("directory.gguf")).unwrap();
    // Not the model's weights; the engine reads others.
    place.write("adapter_model.safetensors", b"{}");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(place.path("nowhere"), place.path("dangling.gguf")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(place.path("pipe.gguf")).status();
        assert!(made.unwrap().success());
    }
    for output in all(&place.name(".")) {
        ends_with(&output, 0, &["the model is", "/tiny.gguf"]);
    }
    std::fs::remove_file(place.model()).unwrap();
    for output in all(&place.name(".")) {
        ends_with(&output, 1, &["holds no model", "directory.gguf", "mmproj-tiny.gguf"]);
    }
}

#[test]
fn a_choice_between_containers_is_the_users() {
    let place = Place::new();
    let directory = place.hugging_face(1);
    let gguf = Path::new(&directory).join("other.gguf");
    std::fs::copy(place.model(), &gguf).unwrap();
    let weights = Path::new(&directory).join("model.safetensors");
    let [gguf, weights] = [&gguf, &weights].map(|path| path.to_str().unwrap());
    for output in all(&directory) {
        let words = ["a Hugging Face model and 1 GGUF model", "name one", gguf, weights];
        ends_with(&output, 1, &words);
    }
    for output in [all(gguf), all(weights)].concat() {
        ends_with(&output, 0, &[]);
    }
    // Weights that are empty are none.
    std::fs::write(weights, "").unwrap();
    ends_with(&all(&directory)[0], 0, &["the model is", gguf]);
}
