//! The real binary between files, pipes and signals: nothing that was asked for is lost, and nothing
//! waits for ever.
#![cfg(unix)]
// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

mod rig;

use rig::{Place, command, ends_with, ids, json, stderr, tidekv};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A named pipe.
fn pipe(place: &Place, name: &str) -> String {
    let name = place.name(name);
    assert!(Command::new("mkfifo").arg(&name).status().unwrap().success());
    name
}

fn send(signal: &str, child: &Child) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
}

/// The process's end, which has to come by itself and soon.
#[track_caller]
fn ends_soon(mut child: Child) -> Output {
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("still waiting: {}", stderr(&child.wait_with_output().unwrap()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// `tidekv run` with both files asked for and a stdout of its own; gives the files.
fn run_into(place: &Place, stdout: Stdio) -> (Output, Value, Value) {
    let (report, kept) = (place.name("report.json"), place.name("kept.json"));
    let model = place.model();
    let args = ["run", &model, "--prompt", "a story", "--max-tokens", "300"];
    let output = command(&[&args[..], &["--json", &report, "--dump-retained", &kept]].concat())
        .stdout(stdout)
        .output()
        .unwrap();
    let read = |name: &str| match std::fs::read(name) {
        Ok(bytes) => serde_json::from_slice(&bytes).unwrap(),
        Err(error) => panic!("{error}: {}", stderr(&output)),
    };
    let (report, kept) = (read(&report), read(&kept));
    (output, report, kept)
}

#[test]
fn a_reader_that_has_gone_costs_no_file() {
    let place = Place::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let (output, report, kept) = run_into(&place, writer.into());
    ends_with(&output, 0, &[]);
    assert!(kept["layers"].is_array());
    // The answer went on for the report.
    let (_, whole, _) = run_into(&place, Stdio::null());
    assert_eq!(report["output_text"], whole["output_text"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_costs_no_other_file() {
    let place = Place::new();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let (output, report, _) = run_into(&place, full().into());
    ends_with(&output, 1, &["standard output", "No space left"]);
    assert!(report["generated_tokens"].as_u64().unwrap() > 0);

    let report = place.name("other.json");
    let model = place.model();
    for args in [
        &["plan", &model, "--tokens", "100"][..],
        &["verify", &model, "--tokens", "40", "--chunks", "8"],
        &["inspect", &model],
    ] {
        let output =
            command(&[args, &["--json", &report]].concat()).stdout(full()).output().unwrap();
        ends_with(&output, 1, &["standard output"]);
        let written: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
        assert!(written.is_object(), "{args:?}");
        std::fs::remove_file(&report).unwrap();
    }

    let kept = place.name("kept.json");
    let args = ["--prompt", "a", "--json", "/dev/full", "--dump-retained", &kept];
    ends_with(&place.run(&args), 1, &["/dev/full"]);
    assert!(place.path("kept.json").exists());
    let args = ["--prompt", "a", "--json", &report, "--dump-retained", "/dev/full"];
    ends_with(&place.run(&args), 1, &["/dev/full"]);
    assert!(place.path("other.json").exists());
}

#[test]
fn named_pipes_are_neither_outputs_nor_models() {
    let place = Place::new();
    let pipe = pipe(&place, "pipe");
    for flag in ["--json", "--dump-retained"] {
        let model = place.model();
        let args = ["run", &model, "--prompt-ids", "1,2,3", flag, &pipe];
        let output = ends_soon(start(&mut command(&args)));
        ends_with(&output, 1, &[&pipe, "neither a regular file"]);
        assert!(output.stdout.is_empty());
    }
    for args in [&["run", &pipe, "--prompt", "a"][..], &["inspect", &pipe], &["pull", &pipe]] {
        let output = ends_soon(start(&mut command(args)));
        ends_with(&output, 1, &[&pipe, "not a regular file"]);
    }
    // Nor does a pipe among the files of a model directory keep anybody waiting.
    std::fs::create_dir(place.path("hf")).unwrap();
    assert!(Command::new("mkfifo").arg(place.path("hf/config.json")).status().unwrap().success());
    let directory = place.name("hf");
    let output = ends_soon(start(&mut command(&["run", &directory, "--prompt", "a"])));
    ends_with(&output, 1, &["config.json", "not a regular file"]);
    // A device and a pipe that is open already are no such trap.
    ends_with(&place.run(&["--prompt-ids", "1,2", "--json", "/dev/null"]), 0, &[]);
}

#[test]
fn what_is_read_is_not_written_over() {
    let place = Place::new();
    let prompt = place.name("prompt.txt");
    std::fs::write(&prompt, "one two three").unwrap();
    let model = place.model();
    let bytes = std::fs::read(&model).unwrap();
    for flag in ["--json", "--dump-retained"] {
        for input in [&model, &prompt] {
            let said = place.run(&["--prompt-file", &prompt, flag, input]);
            ends_with(&said, 2, &[input, "is read by this command"]);
        }
    }
    assert_eq!(std::fs::read(&model).unwrap(), bytes);
    assert_eq!(std::fs::read(&prompt).unwrap(), b"one two three");
}

#[test]
fn two_reports_in_one_file_are_refused() {
    let place = Place::new();
    let (file, dotted) = (place.name("out.json"), place.name("./out.json"));
    let args = ["--prompt-ids", "1,2", "--json", &file, "--dump-retained"];
    let run = |path: &str| place.run(&[&args[..], &[path]].concat());
    for path in [&file, &dotted] {
        ends_with(&run(path), 2, &["--json and --dump-retained name the same file", &file]);
        assert!(!place.path("out.json").exists());
    }
    ends_with(&run(&place.name("other.json")), 0, &[]);
}

/// Waits until the process has a handler for SIGINT and SIGTERM.
#[cfg(target_os = "linux")]
fn wait_for_handlers(child: &Child) {
    let started = Instant::now();
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
        // Signals 2 and 15.
        if caught & 0x4002 == 0x4002 {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "no handler was installed");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_first_signal_ends_what_only_waits() {
    let place = Place::new();
    let pipe = pipe(&place, "pipe");
    for signal in ["-INT", "-TERM"] {
        // Nobody writes into either.
        let opening = start(&mut command(&["run", &place.model(), "--prompt-file", &pipe]));
        let mut reading = command(&["run", &place.model(), "-"]);
        let reading = start(reading.stdin(Stdio::piped()));
        for mut child in [opening, reading] {
            // Waiting for the child would close it.
            let input = child.stdin.take();
            wait_for_handlers(&child);
            send(signal, &child);
            ends_with(&ends_soon(child), 130, &["interrupted"]);
            drop(input);
        }
    }
}

/// Reads a stream up to and with `word`.
fn read_until(stream: &mut impl Read, word: &str) {
    let mut read = Vec::new();
    let mut byte = [0];
    while !read.ends_with(word.as_bytes()) {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&read));
        read.push(byte[0]);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_model_that_shrinks_while_it_is_read_is_said() {
    let place = Place::new();
    // One row at a time in plain code: far longer than the file takes to shrink.
    let slow = ["--chunk", "1", "--threads", "1", "--isa", "portable", "--prompt-ids"];
    let (model, prompt) = (place.model(), ids(8000));
    let args = [&["run", &model], &slow[..], &[&prompt]].concat();
    let mut child = start(&mut command(&args));
    let mut errors = child.stderr.take().unwrap();
    read_until(&mut errors, "reading 8000 tokens");
    // Let it come to the weights: a change before the first step is found in another way.
    std::thread::sleep(Duration::from_millis(300));
    File::options().write(true).open(place.model()).unwrap().set_len(0).unwrap();
    let output = ends_soon(child);
    let mut said = String::new();
    errors.read_to_string(&mut said).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let sentences = ["truncated while it was read", "changed while it was in use"];
    assert!(sentences.iter().any(|sentence| said.contains(sentence)), "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn names_need_not_be_text() {
    let place = Place::new();
    let odd = |name: &[u8]| place.path("").join(OsStr::from_bytes(name));
    let (model, report) = (odd(b"model-\xff.gguf"), odd(b"report-\xff.json"));
    std::fs::copy(place.model(), &model).unwrap();
    let args = ["--prompt-ids", "1,2", "--max-tokens", "1", "--json"];
    let mut run = command(&["run"]);
    let output = run.arg(&model).args(args).arg(&report).output().unwrap();
    ends_with(&output, 0, &[]);
    let written: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert!(written["model"].as_str().unwrap().ends_with("model-\u{fffd}.gguf"));
    let tokens = ["--tokens", "10"];
    for (name, args) in [("plan", &tokens[..]), ("inspect", &[]), ("verify", &tokens)] {
        let output = command(&[name]).arg(&model).args(args).output().unwrap();
        ends_with(&output, 0, &[]);
    }
}

#[test]
fn a_byte_order_mark_is_not_part_of_a_prompt() {
    let place = Place::new();
    let plain = place.write("plain.txt", "Once upon".as_bytes());
    let marked = place.write("marked.txt", "\u{feff}Once upon".as_bytes());
    let tokens = |input: &[&str], stdin: Stdio| {
        let args = ["--raw", "--max-tokens", "1", "--json", "-"];
        let output = command(&[&["run", &place.model()], input, &args].concat())
            .stdin(stdin)
            .output()
            .unwrap();
        json(&output)["prompt_tokens"].as_u64().unwrap()
    };
    let expected = tokens(&["--prompt-file", &plain], Stdio::null());
    assert_eq!(tokens(&["--prompt-file", &marked], Stdio::null()), expected);
    assert_eq!(tokens(&["-"], File::open(&marked).unwrap().into()), expected);
    let listed = place.write("ids.txt", "\u{feff}5,6,7".as_bytes());
    assert_eq!(tokens_of_ids(&place, &listed), 3);
    let shape = r#"{"n_layers": 2, "d_model": 64, "d_ff": 128, "n_heads": 4, "n_kv_heads": 2,
        "head_dim": 16, "vocab": 256, "context": 1024}"#;
    let shape = place.write("shape.json", format!("\u{feff}{shape}").as_bytes());
    ends_with(&tidekv(&["plan", "--shape", &shape, "--tokens", "100"]), 0, &[]);
}

fn tokens_of_ids(place: &Place, file: &str) -> u64 {
    let listed = format!("@{file}");
    let args = ["--prompt-ids", &listed, "--max-tokens", "1", "--json", "-"];
    json(&place.run(&args))["prompt_tokens"].as_u64().unwrap()
}
