//! `tidekv verify`, the real binary. That it finds differences is shown with a
//! faulty backend in the engine's tests, and that one makes the command fail
//! beside the command.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};
use tidekv_format::TensorType;
use tidekv_testkit::{MatrixTypes, TinySpec, models, tiny_llama, tiny_qwen2};

struct Tiny {
    dir: tempfile::TempDir,
}

impl Tiny {
    fn new(spec: &TinySpec) -> Self {
        let tiny = Tiny { dir: tempfile::tempdir().unwrap() };
        spec.write_to(&tiny.path("tiny.gguf")).unwrap();
        tiny
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn verify(&self, args: &[&str]) -> Output {
        verify(self.path("tiny.gguf").to_str().unwrap(), args)
    }
}

fn verify(model: &str, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidekv")).arg("verify").arg(model).args(args).output().unwrap()
}

#[track_caller]
fn passed(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["passed"], true);
    let runs = report["runs"].as_array().unwrap();
    assert!(runs.iter().all(|run| run["difference"].is_null() && run["unplanned"].is_null()));
    report
}

#[track_caller]
fn failed(output: &Output, code: i32, words: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(words.iter().all(|word| stderr.contains(word)), "{words:?} in: {stderr}");
}

#[test]
fn every_order_and_chunk_passes_and_the_selector_has_to_choose() {
    let blocks = MatrixTypes::all(TensorType::Q4_1);
    let quantised = TinySpec { d_ff: 224, types: blocks, ..tiny_llama(3) };
    for spec in [tiny_llama(1), tiny_qwen2(2), quantised] {
        let args = ["--tokens", "150", "--chunks", "1,7,64,149,150,151", "--json", "-"];
        let report = passed(&Tiny::new(&spec).verify(&args));
        assert_eq!(report["runs"].as_array().unwrap().len(), 2 + 3 * 6);
        assert_eq!((&report["prompt_tokens"], &report["budget"]), (&150.into(), &75.into()));
    }
}

#[test]
fn a_real_model_passes() {
    let model = models::path("smollm2-135m");
    let args = ["--tokens", "200", "--chunks", "64,199", "--json", "-"];
    let report = passed(&verify(model.to_str().unwrap(), &args));
    assert_eq!(report["runs"].as_array().unwrap().len(), 2 + 3 * 2);
}

#[test]
fn every_run_is_a_line() {
    let output = Tiny::new(&tiny_llama(1)).verify(&["--tokens", "100", "--chunks", "10,100"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.matches("same bits   memory as planned\n").count(), 8, "{text}");
    assert!(text.contains("All 8 runs"), "{text}");
}

#[test]
fn a_short_context_is_the_default_prompt_and_a_lowered_budget_is_said() {
    let tiny = Tiny::new(&TinySpec { context: 96, ..tiny_llama(1) });
    let output = tiny.verify(&["--chunks", "32"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(": 96 tokens,") && text.contains("48 positions"), "{text}");
    assert!(text.contains("half the prompt instead of 4096"), "{text}");
    let small = tiny.verify(&["--chunks", "32", "--budget", "40"]);
    assert!(!String::from_utf8(small.stdout).unwrap().contains("instead of"));
}

#[test]
fn a_short_file_is_the_whole_prompt() {
    let tiny = Tiny::new(&tiny_llama(1));
    std::fs::write(tiny.path("prompt.txt"), "Once.").unwrap();
    let file = tiny.path("prompt.txt");
    let args = ["--prompt-file", file.to_str().unwrap(), "--json", "-"];
    let report = passed(&tiny.verify(&args));
    let tokens = report["prompt_tokens"].as_u64().unwrap();
    assert!((1..=5).contains(&tokens), "{tokens}");
    // The window alone is longer, so everything is kept.
    assert_eq!(report["budget"], 4096);

    std::fs::write(&file, "").unwrap();
    failed(&tiny.verify(&args), 1, &["empty"]);
    std::fs::write(&file, b"\xff").unwrap();
    failed(&tiny.verify(&args), 1, &["prompt.txt", "UTF-8"]);
}

#[test]
fn bad_requests_are_refused_with_the_numbers() {
    let tiny = Tiny::new(&tiny_llama(1));
    let output = tiny.verify(&["--tokens", "9000"]);
    failed(&output, 1, &["--tokens 9000", "context of 8192"]);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("--overflow"));
    failed(&tiny.verify(&["--tokens", "0"]), 2, &["--tokens"]);
    failed(&tiny.verify(&["--chunks", "64,0"]), 2, &["--chunks"]);
    failed(&tiny.verify(&["--schedule", "tide"]), 2, &["--schedule"]);
    failed(&tiny.verify(&["--memory-limit", "64KiB"]), 3, &["64.00 KiB"]);
    failed(&tiny.verify(&["--prompt-file", "/no/such/file"]), 1, &["/no/such/file"]);
}
