//! Models whose text cannot be read: token ids in, token ids out.

use crate::rig::{Place, ends_with, json, stderr, tidekv};
use std::path::Path;
use tidekv_format::Value as Metadata;

const IDS: [&str; 4] = ["--prompt-ids", "1,2,3,4,5", "--max-tokens", "4"];

/// The tiny model without a usable tokenizer, in both containers, and a word of the reason.
fn models(place: &Place) -> [(String, &'static str); 2] {
    let gguf = place.changed(|writer| {
        writer.set("tokenizer.ggml.pre", Metadata::String("alien".to_owned()));
    });
    let directory = place.hugging_face(1);
    std::fs::remove_file(Path::new(&directory).join("tokenizer.json")).unwrap();
    [(gguf, "`alien`"), (directory, "tokenizer.json: it is missing")]
}

#[test]
fn ids_are_read_and_answered() {
    let place = Place::new();
    let run = |model: &str, args: &[&str]| tidekv(&[&["run", model], &IDS[..], args].concat());
    let report = |model: &str| {
        json(&run(model, &["--json", "-", "--logprobs", "1", "--prompt-logprobs", "1"]))
    };
    let whole = report(&place.model());
    let expected: Vec<String> =
        whole["output_token_ids"].as_array().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(expected.len(), 4);
    for (model, reason) in models(&place) {
        let output = run(&model, &[]);
        ends_with(&output, 0, &["the answer is token ids", reason]);
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(printed.split_whitespace().collect::<Vec<_>>(), expected, "{model}");
        let report = report(&model);
        assert_eq!(report["output_token_ids"], whole["output_token_ids"]);
        assert_eq!(
            (&report["output_text"], &report["finish_reason"]),
            (&"".into(), &"length".into())
        );
        assert_eq!(report["logprobs"][0]["logprob"], whole["logprobs"][0]["logprob"]);
    }
}

#[test]
fn what_needs_text_says_so() {
    let place = Place::new();
    for (model, reason) in models(&place) {
        let refused = |args: &[&str], words: &[&str]| {
            let output = tidekv(&[&args[..1], &[&model], &args[1..]].concat());
            ends_with(&output, 1, &[words, &[reason]].concat());
            assert!(output.stdout.is_empty());
        };
        let ids = "--prompt-ids does without";
        refused(&["run", "--prompt", "a"], &["a prompt of text", ids]);
        refused(&["run", "--prompt", "a", "--chat"], &["a prompt of text", ids]);
        refused(&[&["run"], &IDS[..], &["--stop", "x"]].concat(), &["--stop", "text"]);
        let text = place.write("text.txt", b"once");
        refused(&["verify", "--prompt-file", &text], &["--prompt-file", "without the flag"]);
        refused(&["perplexity", &text], &["give a file of the model"]);
        // Neither takes ids, and a run that was given them needs no advice.
        for args in [
            vec!["verify", &model, "--prompt-file", &text],
            vec!["perplexity", &model, &text],
            [&["run", &model], &IDS[..]].concat(),
        ] {
            let said = stderr(&tidekv(&args));
            assert!(!said.contains("pass token ids") && !said.contains("--prompt-ids"), "{said}");
        }
    }
}

#[test]
fn every_other_command_works() {
    let place = Place::new();
    for (model, reason) in models(&place) {
        ends_with(&tidekv(&["plan", &model, "--tokens", "100"]), 0, &[]);
        let verified = tidekv(&["verify", &model, "--tokens", "40", "--chunks", "16"]);
        ends_with(&verified, 0, &[]);
        let output = tidekv(&["inspect", &model, "--json", "-"]);
        let report = json(&output);
        assert_eq!(
            (&report["supported"], &report["text_supported"]),
            (&true.into(), &false.into()),
            "{}",
            stderr(&output)
        );
        assert!(report["problems"][0].as_str().unwrap().contains(reason));
        let text = String::from_utf8(tidekv(&["inspect", &model]).stdout).unwrap();
        assert!(text.contains("--prompt-ids") && text.contains(reason), "{text}");
    }
}
