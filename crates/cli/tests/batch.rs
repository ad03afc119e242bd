//! `tidekv run` with several prompt files and `tidekv plan` with several
//! lengths, the real binary: each prompt is answered as if it were alone, what
//! is wrong names its file, and nothing that was asked for is lost.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

mod rig;

use rig::{Place, command, ends_with, ids, json, stderr, tidekv};
use serde_json::Value;
use std::io::Read;
use std::process::{Output, Stdio};
use tidekv_testkit::{Head, TinySpec, tiny_llama};

const QUESTION: [&str; 2] = ["--question", "Who signed it?"];
const SETTINGS: [&str; 8] =
    ["--budget", "48", "--chunk", "64", "--max-tokens", "6", "--score-block", "50"];

/// Texts of different lengths; the first file comes twice.
fn files(place: &Place) -> [String; 4] {
    let long = place.write("long.txt", "The treaty was signed at dawn. ".repeat(12).as_bytes());
    let short = place.write("short.txt", b"Hm.");
    let other = place.write("other.txt", "Nobody came to the gate. ".repeat(5).as_bytes());
    [long.clone(), short, other, long]
}

/// `--prompt-file` for each, then the rest.
fn args<'a>(files: &'a [String], rest: &[&'a str]) -> Vec<&'a str> {
    let files = files.iter().flat_map(|file| ["--prompt-file", file]);
    files.chain(rest.iter().copied()).collect()
}

fn read(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(name).unwrap()).unwrap()
}

/// The reports of a batch.
fn reports(output: &Output) -> Vec<Value> {
    json(output).as_array().unwrap().clone()
}

fn text(output: Output) -> String {
    ends_with(&output, 0, &[]);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_file_is_answered_in_order_under_its_name_as_if_it_were_alone() {
    let place = Place::new();
    let files = files(&place);
    let rest = [&QUESTION[..], &SETTINGS].concat();
    let alone = |file: &String| text(place.run(&args(std::slice::from_ref(file), &rest)));
    let expected: Vec<String> =
        files.iter().map(|file| format!("==> {file} <==\n{}", alone(file))).collect();
    let output = place.run(&args(&files, &rest));
    ends_with(&output, 0, &["reading 4 prompts with", "4 prompts with", "long.txt", "short.txt"]);
    assert_eq!(text(output), expected.join("\n"));
    // In another order as well, and a single one has no heading.
    let back: Vec<String> = files.iter().rev().cloned().collect();
    let expected: Vec<String> = expected.into_iter().rev().collect();
    for schedule in ["tide", "chunked-post"] {
        let rest = [&rest[..], &["--schedule", schedule, "--threads", "1"]].concat();
        assert_eq!(text(place.run(&args(&back, &rest))), expected.join("\n"), "{schedule}");
    }
    assert!(!alone(&files[0]).contains("==>"));
}

#[test]
fn reports_are_an_array_and_memory_is_that_of_the_batch() {
    let place = Place::new();
    let files = files(&place);
    let kept = place.name("kept.json");
    let rest = [&SETTINGS[..], &["--json", "-", "--dump-retained", &kept]].concat();
    let rest = [&rest[..], &["--prompt-logprobs", "1", "--logprobs", "0"]].concat();
    let together = reports(&place.run(&args(&files, &rest)));
    let dumps = read(&kept);
    assert_eq!((together.len(), dumps.as_array().unwrap().len()), (4, 4));
    let mut lengths = Vec::new();
    for (index, file) in files.iter().enumerate() {
        let alone = json(&place.run(&args(std::slice::from_ref(file), &rest)));
        assert!(alone.get("prompt_file").is_none());
        assert_eq!(together[index]["prompt_file"], file.as_str());
        for key in [
            "prompt_tokens",
            "generated_tokens",
            "output_token_ids",
            "output_text",
            "finish_reason",
            "kept",
            "logprobs",
            "prompt_logprobs",
            "chunk",
            "template_tail_tokens",
        ] {
            assert_eq!(together[index][key], alone[key], "{file}: {key}");
        }
        assert_eq!(dumps[index], read(&kept), "{file}");
        lengths.push(alone["prompt_tokens"].to_string());
    }
    assert_ne!(together[0]["output_token_ids"], together[2]["output_token_ids"]);

    let lengths = lengths.join(",");
    let model = place.model();
    let plan = ["plan", &model, "--tokens", &lengths, "--json", "-"];
    let plan = json(&tidekv(&[&plan[..], &SETTINGS].concat()));
    let planned = &plan["plans"][0]["memory"];
    // Logits of the prompts take more than `plan` is asked about.
    let plain = [&SETTINGS[..], &["--json", "-"]].concat();
    let plain = reports(&place.run(&args(&files, &plain)));
    for (report, with_logprobs) in plain.iter().zip(&together) {
        for memory in [&report["memory"], &with_logprobs["memory"]] {
            assert_eq!(memory["planned_peak_bytes"], memory["accounted_peak_bytes"]);
        }
        let memory = &report["memory"];
        for key in ["planned_peak_bytes", "peak_at", "transient_peak_bytes", "components_max"] {
            // Also when the sessions before have gone.
            assert_eq!(memory[key], planned[key], "{key}");
        }
    }
}

#[test]
fn a_bad_file_is_named_and_nothing_is_computed() {
    let place = Place::new();
    let [good, ..] = files(&place);
    let run = |bad: &str, rest: &[&str]| {
        let files = [good.clone(), bad.to_owned(), good.clone()];
        let report = place.name("report.json");
        let output = place.run(&args(&files, &[rest, &["--json", &report]].concat()));
        assert!(output.stdout.is_empty());
        assert!(!stderr(&output).contains("reading"), "{}", stderr(&output));
        assert!(!place.path("report.json").exists());
        output
    };
    ends_with(&run(&place.name("absent.txt"), &[]), 1, &["absent.txt"]);
    ends_with(&run(&place.name(""), &[]), 1, &[&place.name("")]);
    ends_with(&run(&place.write("empty.txt", b""), &[]), 1, &["empty.txt", "empty"]);
    ends_with(&run(&place.write("bytes.txt", b"ab\xff"), &[]), 1, &["bytes.txt", "UTF-8"]);
    let endless = place.write("endless.txt", "word ".repeat(9000).as_bytes());
    ends_with(&run(&endless, &["--raw"]), 1, &["endless.txt", "8192", "prompt 2 of 3"]);
    for other in [["--prompt", "a"], ["--prompt-ids", &ids(3)]] {
        let both = place.run(&[&other[..], &["--prompt-file", &good]].concat());
        ends_with(&both, 2, &["cannot be used"]);
    }
    // What the user allowed to be cut is named too.
    let cut = args(std::slice::from_ref(&endless), &["--prompt-file", &good, "--raw"]);
    let cut = [&cut[..], &["--overflow", "middle", "--max-tokens", "1", "--chunk", "512"]].concat();
    ends_with(&place.run(&cut), 0, &["endless.txt was longer than the context"]);
}

#[test]
fn a_batch_that_does_not_fit_is_refused_with_how_many_would() {
    let place = Place::new();
    let files = files(&place);
    let lengths = |files: &[String]| {
        let output = place.run(&args(files, &[&SETTINGS[..], &["--json", "-"]].concat()));
        let tokens = |report: &Value| report["prompt_tokens"].as_u64().unwrap();
        reports(&output).iter().map(tokens).collect::<Vec<_>>()
    };
    let all = lengths(&files);
    let model = place.model();
    let plan = |tokens: &[u64], rest: &[&str]| {
        let tokens: Vec<String> = tokens.iter().map(u64::to_string).collect();
        let args = ["plan", &model, "--tokens", &tokens.join(","), "--json", "-"];
        tidekv(&[&args[..], &SETTINGS, rest].concat())
    };
    let peak = |tokens: &[u64]| {
        json(&plan(tokens, &[]))["plans"][0]["memory"]["planned_peak_bytes"].as_u64().unwrap()
    };
    let two = peak(&all[..2]).max(peak(&all[2..])).to_string();
    let limit = ["--memory-limit", &two];
    let output = plan(&all, &limit);
    ends_with(&output, 3, &["does not fit"]);
    let report = json(&output);
    assert_eq!((&report["fits"], &report["prompts_at_a_time"]), (&false.into(), &2.into()));
    assert_eq!(json(&plan(&all[..2], &limit))["prompts_at_a_time"], 2);
    assert!(json(&plan(&all[..1], &limit)).get("prompts_at_a_time").is_none());

    let rest = [&SETTINGS[..], &limit].concat();
    let refused = place.run(&args(&files, &rest));
    ends_with(&refused, 3, &["a batch of 4 prompts", "fit 2 at a time, in this order"]);
    assert!(refused.stdout.is_empty() && !stderr(&refused).contains("reading"));
    for pair in files.chunks(2) {
        ends_with(&place.run(&args(pair, &rest)), 0, &[]);
    }
    let tight = [&SETTINGS[..], &["--memory-limit", "100KiB"]].concat();
    ends_with(&place.run(&args(&files, &tight)), 3, &["does not fit even alone"]);
}

#[test]
fn plan_takes_lengths_with_commas_or_again() {
    let plan = |args: &[&str]| {
        let fixed = ["plan", "--shape", "llama-3.1-8b", "--memory-limit", "64GiB"];
        text(tidekv(&[&fixed[..], args].concat()))
    };
    let both = plan(&["--tokens", "8k,32k"]);
    assert_eq!(plan(&["--tokens", "8k", "--tokens", "32k"]), both);
    assert!(both.contains("2 prompts with 40960 tokens in all, read together"), "{both}");
    assert!(plan(&["--tokens", "8k"]).contains("memory of a prompt of 8192 tokens"));
    for (tokens, code, words) in
        [("8k,129k", 1, "132096"), ("8k,0", 2, "at least 1"), ("8k,,1k", 2, "not a count")]
    {
        ends_with(&tidekv(&["plan", "--shape", "mistral-7b", "--tokens", tokens]), code, &[words]);
    }
}

#[test]
fn help_says_what_a_batch_is() {
    let run = text(tidekv(&["run", "--help"]));
    for words in ["Several prompt files", "array of reports", "beside the others"] {
        assert!(run.contains(words), "`{words}` is not in:\n{run}");
    }
    assert!(text(tidekv(&["plan", "--help"])).contains("8k,32k"));
}

/// A reader that has gone costs no report, and no answer for it.
#[test]
fn reports_are_whole_when_nobody_reads_the_answers() {
    let place = Place::new();
    let files = files(&place);
    let (report, kept) = (place.name("report.json"), place.name("kept.json"));
    let rest = [&SETTINGS[..], &["--json", &report, "--dump-retained", &kept]].concat();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let model = place.model();
    let run = [&["run", &model], &args(&files, &rest)[..]].concat();
    ends_with(&command(&run).stdout(writer).output().unwrap(), 0, &[]);
    let whole = reports(&place.run(&args(&files, &[&SETTINGS[..], &["--json", "-"]].concat())));
    let written = read(&report);
    for (index, expected) in whole.iter().enumerate() {
        assert_eq!(written[index]["output_text"], expected["output_text"]);
    }
    assert_eq!(read(&kept).as_array().unwrap().len(), 4);
    // With nothing owed it ends the command, quietly.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let run = [&["run", &model], &args(&files, &SETTINGS)[..]].concat();
    ends_with(&command(&run).stdout(writer).output().unwrap(), 0, &[]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_in_the_answers_costs_none_of_what_has_come_and_no_kept_set() {
    let place = Place::new();
    let files = files(&place);
    let (report, kept) = (place.name("report.json"), place.name("kept.json"));
    let rest = ["--threads", "1", "--isa", "portable", "--json", &report, "--dump-retained", &kept];
    let run = [&args(&files, &rest)[..], &["--raw", "--max-tokens", "3000"]].concat();
    let mut child = command(&[&["run", &place.model()], &run[..]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut answers, mut errors) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let mut said = Vec::new();
    let mut byte = [0];
    // Some of the first answer has come, and as many tokens of the others.
    while said.len() < "==>  <==\n".len() + files[0].len() + 100 {
        assert_eq!(answers.read(&mut byte).unwrap(), 1);
        said.push(byte[0]);
    }
    let id = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    answers.read_to_end(&mut said).unwrap();
    let mut noted = String::new();
    errors.read_to_string(&mut noted).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{noted}");

    let written = read(&report);
    let reports = written.as_array().unwrap();
    assert_eq!(reports.len(), 4);
    let mut expected = Vec::new();
    let mut cancelled = Vec::new();
    for (report, file) in reports.iter().zip(&files) {
        let text = report["output_text"].as_str().unwrap();
        expected.push(format!("==> {file} <==\n{text}\n"));
        match report["finish_reason"].as_str() {
            Some("cancelled") => cancelled.push(report["generated_tokens"].as_u64().unwrap()),
            reason => assert_eq!(reason, Some("stop"), "{noted}"),
        }
    }
    // All were on their way; the signal may come while they begin their next step.
    let (least, most) = (cancelled.iter().min().unwrap(), cancelled.iter().max().unwrap());
    assert!(*least > 0 && *most < 3000 && most - least <= 1, "{cancelled:?}: {noted}");
    assert_eq!(String::from_utf8(said).unwrap(), expected.join("\n"));
    let kept = read(&kept);
    assert_eq!(kept.as_array().unwrap().len(), 4);
    assert_eq!(kept[3], kept[0], "the same file");
}

#[test]
fn an_answer_that_fails_is_named_and_costs_no_other() {
    let spec = TinySpec { head: Head::Untied, ..tiny_llama(1) };
    let place = Place::with(&spec);
    let files = files(&place);
    let files = &files[..3];
    let rest = [&SETTINGS[..], &["--json", "-", "--prompt-logprobs", "0"]].concat();
    let sound = reports(&place.run(&args(files, &rest)));
    let ids = |report: &Value| -> Vec<u64> {
        let ids = report["output_token_ids"].as_array().unwrap();
        ids.iter().map(|id| id.as_u64().unwrap()).collect()
    };
    // A token that only the second answer feeds, and nobody reads.
    let read = sound.iter().flat_map(|report| report["prompt_logprobs"].as_array().unwrap());
    let mut used: Vec<u64> = read.filter_map(|of| of["id"].as_u64()).collect();
    used.extend([ids(&sound[0]), ids(&sound[2])].concat());
    let mut fed = ids(&sound[1]);
    fed.pop();
    let faulty = fed.into_iter().find(|id| !used.contains(id)).unwrap() as usize;

    let mut writer = spec.writer();
    let gguf = tidekv_format::GgufFile::open(std::path::Path::new(&place.model())).unwrap();
    let tensor = gguf.tensor("token_embd.weight").unwrap();
    let (shape, ty, mut bytes) = (tensor.shape.clone(), tensor.ty, gguf.bytes(tensor).to_vec());
    drop(gguf);
    bytes[4 * faulty * spec.d_model..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    writer.remove_tensor("token_embd.weight").tensor("token_embd.weight", &shape, ty, bytes);
    writer.write_to(&place.path("tiny.gguf")).unwrap();
    let report = place.name("report.json");
    let output = place.run(&args(files, &[&SETTINGS[..], &["--json", &report]].concat()));
    ends_with(&output, 1, &["short.txt", "the logits", "not finite"]);
    let written = self::read(&report);
    assert_eq!(written.as_array().unwrap().len(), 2);
    let said = String::from_utf8(output.stdout).unwrap();
    for (report, sound) in written.as_array().unwrap().iter().zip([&sound[0], &sound[2]]) {
        for key in ["prompt_file", "output_text", "kept"] {
            assert_eq!(report[key], sound[key], "{key}");
        }
        let (file, text) = (&report["prompt_file"], &report["output_text"]);
        let answer = format!("==> {} <==\n{}\n", file.as_str().unwrap(), text.as_str().unwrap());
        assert!(said.contains(&answer), "{said}");
    }
}

#[test]
fn a_batch_says_how_fast_it_was_answered() {
    let place = Place::new();
    let files = files(&place);
    let output = place.run(&args(&files, &SETTINGS));
    ends_with(&output, 0, &["4 prompts with", "read at", ", answered at"]);
    let output = place.run(&args(&files, &["--max-tokens", "1"]));
    assert!(!stderr(&output).contains("answered at"), "{}", stderr(&output));
}
