//! Bad input to the real binary: a clear sentence, the right exit code, nothing
//! lost.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tidekv_testkit::tiny_llama;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Place { dir: tempfile::tempdir().unwrap() };
        tiny_llama(1).write_to(&place.model()).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn model(&self) -> PathBuf {
        self.path("tiny.gguf")
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        std::fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }
}

fn tidekv() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tidekv"))
}

fn run(model: &Path, args: &[&str]) -> Output {
    tidekv().arg("run").arg(model).args(args).output().unwrap()
}

/// Asserts the exit code and that stderr says each of `words`.
#[track_caller]
fn refused(output: &Output, code: i32, words: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "`{word}` is not in: {stderr}");
    }
    assert!(!stderr.contains("panicked"), "{stderr}");
}

const IDS: [&str; 2] = ["--prompt-ids", "1,2,3,4,5,6,7,8"];

#[test]
fn damaged_files_are_refused_with_what_they_are() {
    let place = Place::new();
    let whole = std::fs::read(place.model()).unwrap();
    let cut = place.write("cut.gguf", &whole[..whole.len() - 1000]);
    let sizes = [whole.len().to_string(), (whole.len() - 1000).to_string()];
    let output = run(&cut, &IDS);
    refused(&output, 1, &["truncated"]);
    let digits: String =
        String::from_utf8_lossy(&output.stderr).chars().filter(char::is_ascii_digit).collect();
    assert!(sizes.iter().any(|size| digits.contains(size.as_str())), "{digits}");
    refused(&run(&place.write("a.gguf", b"<!DOCTYPE html><html></html>"), &IDS), 1, &["HTML"]);
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";
    refused(&run(&place.write("b.gguf", pointer), &IDS), 1, &["LFS"]);
    refused(&run(&place.write("c.gguf", b""), &IDS), 1, &["c.gguf"]);
    refused(&run(&place.path("absent.gguf"), &IDS), 1, &["absent.gguf"]);
}

#[test]
fn nan_in_weights_is_an_error_and_not_a_token() {
    let place = Place::new();
    let mut bytes = std::fs::read(place.model()).unwrap();
    // The end of the file is inside the last tensor, in F32.
    let end = bytes.len();
    for number in bytes[end - 64 * 1024..].chunks_exact_mut(4) {
        number.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    let output = run(&place.write("nan.gguf", &bytes), &IDS);
    refused(&output, 1, &["not finite"]);
    assert!(output.stdout.is_empty());
}

#[test]
fn impossible_settings_are_named_with_the_limit() {
    let place = Place::new();
    let model = place.model();
    let long: Vec<String> = (0..100).map(|id| id.to_string()).collect();
    let long = ["--prompt-ids", &long.join(",")];
    let with = |more: &[&str]| run(&model, &[&long[..], more].concat());
    refused(&with(&["--budget", "8"]), 1, &["budget of 8", "32"]);
    refused(&with(&["--memory-limit", "64K"]), 3, &["limit is 64.00 KiB"]);
    refused(&with(&["--isa", "mmx"]), 2, &["mmx"]);
    refused(&with(&["--selector", "magic"]), 2, &["magic", "snapkv"]);
    refused(&with(&["--schedule", "online"]), 2, &["tide"]);
    refused(&with(&["--temperature=-1"]), 1, &["temperature"]);
    refused(&with(&["--no-such-flag"]), 2, &["--no-such-flag"]);
    refused(&run(&model, &["--prompt-ids", "1,999999"]), 1, &["999999", "vocabulary"]);
    refused(&run(&model, &["--prompt-ids", "1,x"]), 1, &["`x`"]);
    refused(&run(&model, &["--prompt-ids", ""]), 1, &["empty"]);
    refused(&run(&model, &["--prompt", ""]), 1, &["empty"]);
    refused(&run(&model, &[]), 1, &["no prompt"]);
    let bytes = place.write("bytes.txt", b"abc\xff\xfe");
    refused(&run(&model, &["--prompt-file", bytes.to_str().unwrap()]), 1, &["bytes.txt", "UTF-8"]);
}

#[test]
fn a_prompt_longer_than_the_context_is_refused_or_cut_aloud() {
    let place = Place::new();
    let spec = tiny_llama(1);
    let text = "word ".repeat(spec.context);
    let file = place.write("long.txt", text.as_bytes());
    let file = file.to_str().unwrap();
    let context = spec.context.to_string();
    let flags = ["--raw", "--prompt-file", file, "--max-tokens", "4"];
    refused(&run(&place.model(), &flags), 1, &[&context, "--overflow"]);
    for how in ["middle", "head", "tail"] {
        let output =
            run(&place.model(), &[&flags[..], &["--overflow", how, "--json", "-"]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        assert!(stderr.contains("were dropped"), "{stderr}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["dropped_tokens"].as_u64().unwrap() > 0);
        assert!(report["prompt_tokens"].as_u64().unwrap() <= spec.context as u64 - 4);
    }
}

#[test]
fn unwritable_outputs_are_refused_before_the_run() {
    let place = Place::new();
    let missing = place.path("no/such/dir/report.json");
    for flag in ["--json", "--dump-retained"] {
        let output = run(&place.model(), &[&IDS[..], &[flag, missing.to_str().unwrap()]].concat());
        refused(&output, 1, &["cannot write", "report.json"]);
        assert!(output.stdout.is_empty(), "the run had already answered");
    }
}

#[test]
fn the_report_is_alone_on_stdout_complete_and_repeatable() {
    let place = Place::new();
    let dump = place.path("kept.json");
    let ids: Vec<String> = (0..200).map(|id| (id % 250).to_string()).collect();
    let run = || {
        let flags = ["--budget", "48", "--chunk", "64", "--max-tokens", "5", "--json", "-"];
        let output = run(
            &place.model(),
            &[
                &["--prompt-ids", &ids.join(",")],
                &flags[..],
                &["--dump-retained", dump.to_str().unwrap()],
            ]
            .concat(),
        );
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let report = run();
    let memory = &report["memory"];
    assert_eq!(memory["planned_peak_bytes"], memory["accounted_peak_bytes"]);
    assert_eq!(report["prompt_tokens"], 200);
    assert_eq!(report["kept"][0]["per_head"][0], 48);
    assert!(memory["components_at_peak"]["bridge"].as_u64().unwrap() > 0);
    let kept: serde_json::Value = serde_json::from_slice(&std::fs::read(&dump).unwrap()).unwrap();
    let positions = kept["layers"][0]["per_head"][0].as_array().unwrap();
    assert_eq!(positions.len(), 48);
    assert_eq!(positions[47], 199);
    assert_eq!(report["output_token_ids"], run()["output_token_ids"]);
}

#[test]
fn plans_need_no_file_and_exit_with_3_when_they_do_not_fit() {
    let plan = |limit: &str| {
        let flags = ["--shape", "llama-3.1-8b", "--tokens", "128k", "--json", "-"];
        tidekv().arg("plan").args(flags).args(["--memory-limit", limit]).output().unwrap()
    };
    let output = plan("8GiB");
    assert!(output.status.success());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["fits"], true);
    assert_eq!(report["plans"][0]["schedule"], "tide");
    assert_eq!(report["plans"][0]["memory"]["components_at_peak"]["bridge"], 1u64 << 30);
    let output = plan("1GiB");
    refused(&output, 3, &["does not fit"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["fits"], false);
    assert!(report["largest_prompt_tokens"].as_u64().unwrap() > 0);
}

#[test]
fn verify_passes_on_a_sound_model() {
    let place = Place::new();
    let output =
        tidekv().arg("verify").arg(place.model()).args(["--tokens", "150"]).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}");
    assert!(stdout.contains("all 17 runs"), "{stdout}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_in_prefill_exits_with_130() {
    use std::io::Read;
    let model = tidekv_testkit::models::path("smollm2-135m");
    let ids: Vec<String> = (0..8000).map(|id| (id % 40_000).to_string()).collect();
    let mut child = tidekv()
        .arg("run")
        .arg(model)
        .args(["--prompt-ids", &ids.join(",")])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Long enough to be in prefill, which takes tens of seconds.
    std::thread::sleep(std::time::Duration::from_secs(3));
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let code = child.wait().unwrap().code();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(code, Some(130), "{stderr}");
    assert!(stderr.contains("stopping"), "{stderr}");
}
