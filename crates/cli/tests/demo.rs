//! `tidekv demo`, the real binary: right on the real model, and able to fail.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use tidekv_testkit::{models, tiny_llama};

fn demo(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidekv")).arg("demo").args(args).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Both run reports, checked for what always holds.
fn reports(json: &[u8]) -> [Value; 2] {
    let list: Vec<Value> = serde_json::from_slice(json).unwrap();
    let [ordinary, tide] = <[Value; 2]>::try_from(list).unwrap();
    assert_eq!([&ordinary["schedule"], &tide["schedule"]], ["post-prefill", "tide"]);
    assert_eq!(ordinary["output_token_ids"], tide["output_token_ids"]);
    assert_eq!(ordinary["kept"], tide["kept"]);
    for report in [&ordinary, &tide] {
        let memory = &report["memory"];
        assert_eq!(memory["planned_peak_bytes"], memory["accounted_peak_bytes"]);
    }
    [ordinary, tide]
}

#[test]
fn the_answer_is_right_and_the_saving_is_there() {
    // Pulled here if it is absent, so that the demo finds it.
    models::path("smollm2-135m");
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("demo.json");
    let output = demo(&["--json", json.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output).matches("   right, after").count(), 2, "{}", stdout(&output));
    assert!(stdout(&output).lines().all(|line| line.chars().count() <= 100));

    let [ordinary, tide] = reports(&std::fs::read(json).unwrap());
    let tokens = tide["prompt_tokens"].as_u64().unwrap();
    assert!((5000..=6000).contains(&tokens), "{tokens}");
    let transient = |run: &Value| run["memory"]["transient_peak_bytes"].as_u64().unwrap() as f64;
    let saving = 1.0 - transient(&tide) / transient(&ordinary);
    // 8,192 tokens save at least 65 %; what does not shrink with C weighs a little more in 5,457.
    assert!(saving > 0.65, "{saving}");
    assert!(stdout(&output).contains(&format!("{:.0} % less transient", 100.0 * saving)));
}

/// A model with random weights does not know the code.
fn wrong(dir: &Path, args: &[&str]) -> Output {
    let model = dir.join("tiny.gguf");
    tiny_llama(1).write_to(&model).unwrap();
    let always = ["--model", model.to_str().unwrap(), "--sentences", "12", "--budget", "200"];
    demo(&[&always, args].concat())
}

#[test]
fn a_wrong_answer_is_shown_and_fails_after_the_report_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("demo.json");
    let output = wrong(dir.path(), &["--json", json.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("the answer is wrong: the code was"), "{}", stderr(&output));
    assert_eq!(stdout(&output).matches("WRONG, after").count(), 2, "{}", stdout(&output));
    assert!(!stdout(&output).contains("same answer"));
    reports(&std::fs::read(json).unwrap());
}

#[test]
fn json_on_stdout_stands_alone() {
    let dir = tempfile::tempdir().unwrap();
    let output = wrong(dir.path(), &["--json", "-", "--chunk", "7", "--depth", "0"]);
    assert_eq!(output.status.code(), Some(1));
    let [_, tide] = reports(&output.stdout);
    assert_eq!(tide["chunk"], 7);
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_the_work() {
    let output = demo(&["--json", "/no/such/directory/demo.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/no/such/directory/demo.json"), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
}
