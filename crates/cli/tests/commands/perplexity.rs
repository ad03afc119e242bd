//! `tidekv perplexity`, the real binary.

use crate::rig::{Place, command, ends_with, json, stderr, tidekv};
use serde_json::Value;
use std::io::Write;
use std::process::{Output, Stdio};
use tidekv_format::Value as Metadata;

/// No merge of the tiny vocabulary joins these letters: a token each.
fn text(n_tokens: usize) -> String {
    (0..n_tokens).map(|i| ["x", "z", "q", "j", "v"][i * i % 5]).collect()
}

fn measure(place: &Place, args: &[&str]) -> Output {
    tidekv(&[&["perplexity", &place.model()], args].concat())
}

#[test]
fn figures_agree_with_each_other_and_do_not_depend_on_chunks() {
    let place = Place::new();
    let file = place.write("text.txt", text(100).as_bytes());
    let report = |args: &[&str]| json(&measure(&place, &[&[&file, "--json", "-"], args].concat()));
    let whole = report(&[]);
    assert_eq!((&whole["tokens"], &whole["scored_tokens"]), (&100.into(), &99.into()));
    assert_eq!((&whole["windows"], &whole["window_tokens"]), (&1.into(), &100.into()));
    assert_eq!(whole["bos"], Value::Null);
    let number = |report: &Value, key: &str| report[key].as_f64().unwrap();
    // Printed to 17 digits; exp has an error of an ulp.
    let ratio = number(&whole, "perplexity") / number(&whole, "mean_nll").exp();
    assert!((ratio - 1.0).abs() < 1e-14, "{ratio}");
    assert_eq!(report(&["--chunk", "7"])["mean_nll"], whole["mean_nll"]);

    let windows = report(&["--context-size", "40", "--stride", "10"]);
    assert_eq!((&windows["windows"], &windows["stride"]), (&7.into(), &10.into()));
    assert_eq!(windows["scored_tokens"], 99);
    assert_ne!(windows["mean_nll"], whole["mean_nll"]);

    let output = measure(&place, &[&file, "--context-size", "40"]);
    ends_with(&output, 0, &["4 windows of 40 tokens, 20 apart", "window 4/4"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with("perplexity ") && said.contains("99 of 100 tokens"), "{said}");
}

#[test]
fn it_is_the_likelihood_that_prompt_logprobs_gives() {
    let place = Place::new();
    let file = place.write("text.txt", text(50).as_bytes());
    let args = ["--raw", "--prompt-file", &file, "--max-tokens", "1", "--json", "-"];
    let run = json(&place.run(&[&args[..], &["--prompt-logprobs", "0"]].concat()));
    let logprobs = run["prompt_logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 50);
    let sum: f64 = logprobs[1..].iter().map(|token| token["logprob"].as_f64().unwrap()).sum();
    let measured = json(&measure(&place, &[&file, "--json", "-"]));
    let mean = measured["mean_nll"].as_f64().unwrap();
    // Each log-probability is rounded to f32: 2^-24 of at most 16.
    assert!((mean + sum / 49.0).abs() < 1e-6, "{mean} {sum}");
}

#[test]
fn standard_input_is_a_text_too() {
    let place = Place::new();
    let file = place.write("text.txt", text(30).as_bytes());
    let mut child = command(&["perplexity", &place.model(), "-", "--json", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text(30).as_bytes()).unwrap();
    let piped = json(&child.wait_with_output().unwrap());
    assert_eq!(piped["mean_nll"], json(&measure(&place, &[&file, "--json", "-"]))["mean_nll"]);
}

#[test]
fn what_cannot_be_measured_is_named() {
    let place = Place::new();
    let file = place.write("text.txt", text(100).as_bytes());
    let ends = |args: &[&str], code, words: &[&str]| {
        let output = measure(&place, args);
        ends_with(&output, code, words);
        assert!(output.stdout.is_empty());
    };
    ends(&[&place.name("absent.txt")], 1, &["absent.txt"]);
    ends(&[&place.write("nothing.txt", b"")], 1, &["empty"]);
    ends(&[&place.write("short.txt", b"x")], 1, &["at least 2"]);
    ends(&[&place.write("bytes.txt", b"ab\xff")], 1, &["bytes.txt", "UTF-8"]);
    for size in ["-1", "0", "1"] {
        ends(&[&file, "--context-size", size], 2, &["--context-size", "at least 2"]);
    }
    ends(&[&file, "--context-size", "all"], 2, &["`all` is not a count"]);
    let beyond = ["context-size = 8193", "context of 8192", "--rope-scaling"];
    ends(&[&file, "--context-size", "8193"], 1, &beyond);
    ends(&[&file, "--context-size", "40", "--stride", "40"], 1, &["stride = 40", "at most 39"]);
    ends(&[&file, "--stride", "0"], 2, &["at least 1"]);
    ends(&[], 2, &["<FILE|->"]);
}

/// What a refusal suggests is accepted, and nothing is that cannot be.
#[test]
fn a_refusal_says_what_fits_and_that_does() {
    let place = Place::new();
    let file = place.write("text.txt", text(4000).as_bytes());
    let refused = |args: &[&str]| {
        let output = measure(&place, &[&[&file, "--json", "-"], args].concat());
        ends_with(&output, 3, &["a window of 4000 tokens needs", "the limit is"]);
        stderr(&output)
    };
    let smallest = |said: &str| {
        let flags = said.split("use ").nth(1).unwrap().split(',').next().unwrap();
        flags.trim().split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    let peak = json(&measure(&place, &[&file, "--json", "-"]))["planned_peak_bytes"].clone();
    let limit = (peak.as_u64().unwrap() / 4 * 3).to_string();
    let limit = ["--memory-limit", &limit];
    let said = refused(&limit);
    // What changes nothing comes before what changes the measure.
    assert!(said.find("--chunk") < said.find("--context-size"), "{said}");
    assert!(said.contains("--chunk") && said.contains("another measure"), "{said}");
    let flags = smallest(&said);
    assert_eq!((flags.len(), flags[0].as_str()), (2, "--context-size"), "{said}");
    let fits = |flags: &[String]| {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        json(&measure(&place, &[&[&file, "--json", "-"], &limit[..], &flags].concat()))
    };
    assert_eq!(fits(&flags)["scored_tokens"], 3999);
    // A stride that the smaller window has no room for comes with another.
    let wide = refused(&[&limit[..], &["--stride", "3900"]].concat());
    let flags = smallest(&wide);
    assert_eq!(flags[2], "--stride", "{wide}");
    assert_eq!(fits(&flags)["scored_tokens"], 3999);

    // Where no window fits none is suggested, nor a flag that this command lacks.
    let none = refused(&["--memory-limit", "64K"]);
    assert!(!none.contains("--context-size") && none.contains("smallest plan"), "{none}");
    for other in ["--score-block", "--budget", "--max-tokens", "--schedule"] {
        assert!(!none.contains(other) && !said.contains(other), "{none}{said}");
    }
}

#[test]
fn a_split_file_and_a_directory_give_the_numbers_of_the_file() {
    let place = Place::new();
    let file = place.write("text.txt", text(60).as_bytes());
    let nll = |model: &str| {
        let report = json(&tidekv(&["perplexity", model, &file, "--json", "-"]));
        assert_eq!(report["scored_tokens"], 59, "{model}");
        report["mean_nll"].clone()
    };
    let whole = nll(&place.model());
    assert!(whole.is_f64());
    assert_eq!(nll(&place.split(3)), whole);
    assert_eq!(nll(&place.hugging_face(2)), whole);
}

#[test]
fn a_model_with_a_bos_has_one_in_front_of_every_window() {
    let plain = Place::new();
    let file = plain.write("text.txt", text(60).as_bytes());
    let with_bos = plain.changed(|writer| {
        writer.set("tokenizer.ggml.bos_token_id", Metadata::U32(1));
        writer.set("tokenizer.ggml.add_bos_token", Metadata::Bool(true));
    });
    let report = |model: &str| {
        json(&tidekv(&["perplexity", model, &file, "--context-size", "40", "--json", "-"]))
    };
    let (without, with) = (report(&plain.model()), report(&with_bos));
    assert_eq!((&without["bos"], &with["bos"]), (&Value::Null, &1.into()));
    // Behind a BOS the first token of the text is foreseen too.
    assert_eq!((&without["scored_tokens"], &with["scored_tokens"]), (&59.into(), &60.into()));
    assert_ne!(without["mean_nll"], with["mean_nll"]);
    let inspected = json(&tidekv(&["inspect", &with_bos, "--json", "-"]));
    assert_eq!(inspected["supported"], true);
}
