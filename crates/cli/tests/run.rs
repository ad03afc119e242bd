//! `tidekv run`, the real binary: the report, what it does to streams, and how
//! it stops.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

mod rig;

use rig::{Place, command, ends_with, ids, json, stderr, tidekv};
use serde_json::Value;
use std::io::{Read, Write};
use std::process::Stdio;
use tidekv::memory::Bytes;

/// The keys of an object, sorted.
fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn the_report_is_alone_on_stdout_and_complete() {
    let place = Place::new();
    let args = ["--prompt-ids", &ids(200), "--budget", "48", "--chunk", "64", "--max-tokens", "5"];
    let output = place.run(&[&args[..], &["--json", "-"]].concat());
    ends_with(&output, 0, &["200 tokens read", "peak", "planned", "transient", "kept 48 of 200"]);
    let report = json(&output);
    let mut expected = vec![
        "model",
        "prompt_tokens",
        "generated_tokens",
        "schedule",
        "selector",
        "budget",
        "chunk",
        "isa",
        "threads",
        "seed",
        "ttft_s",
        "prefill_s",
        "compress_s",
        "decode_tokens_per_s",
        "memory",
        "kept",
        "output_token_ids",
        "output_text",
        "finish_reason",
        "dropped_tokens",
        "template_tail_tokens",
    ];
    expected.sort_unstable();
    assert_eq!(keys(&report), expected);
    let memory = &report["memory"];
    let mut expected = vec![
        "planned_peak_bytes",
        "accounted_peak_bytes",
        "peak_at",
        "transient_peak_bytes",
        "retained_bytes",
        "components_at_peak",
        "components_max",
        "allocator_peak_bytes",
        "process_peak_rss_bytes",
        "process_peak_anon_bytes",
    ];
    expected.sort_unstable();
    assert_eq!(keys(memory), expected);

    assert_eq!(report["prompt_tokens"], 200);
    assert_eq!((&report["budget"], &report["chunk"]), (&48.into(), &64.into()));
    assert_eq!(report["schedule"], "tide");
    assert_eq!(report["selector"], "snapkv");
    assert_eq!(report["kept"].as_array().unwrap().len(), 3);
    assert_eq!(report["kept"][2]["per_head"], serde_json::json!([48, 48]));
    assert_eq!(memory["planned_peak_bytes"], memory["accounted_peak_bytes"]);
    let bytes = |key: &str| memory[key].as_u64().unwrap();
    assert!(bytes("transient_peak_bytes") < bytes("accounted_peak_bytes"));
    // The allocator holds what the run charged, and more.
    assert!(bytes("allocator_peak_bytes") >= bytes("accounted_peak_bytes"));
    let generated = report["output_token_ids"].as_array().unwrap().len();
    assert_eq!(report["generated_tokens"], generated);
    assert!(report["ttft_s"].as_f64().unwrap() >= report["prefill_s"].as_f64().unwrap());
}

#[test]
fn one_of_a_thing_is_not_many() {
    let place = Place::new();
    let output =
        place.run(&["--prompt-ids", "[ 5 ]", "--max-tokens", "1", "--logit-bias", "100=100"]);
    let said = "reading 1 token;|1 token read|1 token generated|kept 1 of 1 position per head";
    ends_with(&output, 0, &said.split('|').collect::<Vec<_>>());
    let output = place.run(&["--prompt-ids", "5", "--memory-limit", "1"]);
    ends_with(&output, 3, &["a prompt of 1 token needs"]);
}

#[test]
fn log_probabilities_are_reported_where_they_are_asked_for() {
    let place = Place::new();
    let run = |args: &[&str]| {
        let fixed = ["--prompt-ids", "5,6,7,8", "--max-tokens", "6", "--json", "-"];
        json(&place.run(&[&fixed[..], args].concat()))
    };
    let plain = run(&[]);
    assert!(plain.get("logprobs").is_none() && plain.get("prompt_logprobs").is_none());

    let report = run(&["--logprobs", "2", "--prompt-logprobs", "1"]);
    assert_eq!(report["output_token_ids"], plain["output_token_ids"]);
    let answer = report["logprobs"].as_array().unwrap();
    assert_eq!(answer.len(), report["output_token_ids"].as_array().unwrap().len());
    for (token, id) in answer.iter().zip(report["output_token_ids"].as_array().unwrap()) {
        assert_eq!(keys(token), ["id", "logprob", "text", "top"]);
        assert_eq!(&token["id"], id);
        let top = token["top"].as_array().unwrap();
        assert_eq!(top.len(), 2);
        // Greedy takes the best one.
        assert_eq!((&top[0]["id"], &top[0]["logprob"]), (id, &token["logprob"]));
        assert!(top[0]["logprob"].as_f64() >= top[1]["logprob"].as_f64());
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
    }
    let prompt = report["prompt_logprobs"].as_array().unwrap();
    assert_eq!(prompt.len(), 4);
    assert!(prompt[0].is_null());
    let ids: Vec<_> = prompt[1..].iter().map(|token| token["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [6, 7, 8]);
    assert!(prompt[1..].iter().all(|token| token["top"].as_array().unwrap().len() == 1));
    // Their memory is planned like any other.
    let memory = |report: &Value, key: &str| report["memory"][key].as_u64().unwrap();
    assert_eq!(memory(&report, "planned_peak_bytes"), memory(&report, "accounted_peak_bytes"));
    assert!(memory(&report, "planned_peak_bytes") > memory(&plain, "planned_peak_bytes"));
    let planned = Bytes(memory(&report, "planned_peak_bytes"));
    let output = place.run(&[
        "--prompt-ids",
        "5,6,7,8",
        "--max-tokens",
        "6",
        "--json",
        &place.name("report.json"),
        "--prompt-logprobs",
        "1",
    ]);
    ends_with(&output, 0, &[&format!("the plan's peak is {planned}")]);
    // Of the model, whatever the sampler is told.
    let penalised = run(&["--logprobs", "0", "--logit-bias", "9=-100", "--temperature", "2"]);
    assert!(penalised["logprobs"][0]["top"].as_array().unwrap().is_empty());
}

#[test]
fn bias_and_penalties_change_the_answer_and_filters_are_for_heat() {
    let place = Place::new();
    let run = |args: &[&str]| {
        let fixed = ["--prompt-ids", "5,6,7,8", "--max-tokens", "12", "--json", "-"];
        let report = json(&place.run(&[&fixed[..], args].concat()));
        let ids = report["output_token_ids"].as_array().unwrap();
        ids.iter().map(|id| id.as_u64().unwrap()).collect::<Vec<_>>()
    };
    let greedy = run(&[]);
    let first = greedy[0].to_string();
    assert!(!run(&["--logit-bias", &format!("{first}=-inf")]).contains(&greedy[0]));
    assert!(run(&["--logit-bias", "100=100,101=-5"]).iter().all(|&id| id == 100));
    // With 2 off at each occurrence nothing goes on for long.
    let varied = run(&["--logit-bias", "100=3", "--frequency-penalty", "2"]);
    assert!(varied.iter().filter(|&&id| id == 100).count() < 12, "{varied:?}");
    assert_eq!(run(&["--min-p", "0.9", "--typical-p", "0.1", "--top-p", "0.1"]), greedy);
    // Only what is as likely as the best is left.
    assert_eq!(run(&["--temperature", "5", "--min-p", "1"]), greedy);
}

#[test]
fn order_chunks_and_threads_change_neither_answer_nor_what_is_kept() {
    let place = Place::new();
    let dump = place.name("kept.json");
    let run = |args: &[&str]| {
        let fixed = ["--prompt-ids", &ids(200), "--budget", "48", "--max-tokens", "8"];
        let report = json(
            &place.run(&[&fixed[..], &["--json", "-", "--dump-retained", &dump], args].concat()),
        );
        let kept: Value = serde_json::from_slice(&std::fs::read(&dump).unwrap()).unwrap();
        (report["output_token_ids"].clone(), kept)
    };
    let (answer, kept) = run(&["--chunk", "64"]);
    assert_eq!(kept["prompt_tokens"], 200);
    for layer in kept["layers"].as_array().unwrap() {
        for head in layer["per_head"].as_array().unwrap() {
            let positions: Vec<u64> = head
                .as_array()
                .unwrap()
                .iter()
                .map(|position| position.as_u64().unwrap())
                .collect();
            assert_eq!(positions.len(), 48);
            assert!(positions.is_sorted_by(|a, b| a < b));
            assert_eq!(positions[16..], (168..200).collect::<Vec<u64>>(), "the window");
        }
    }
    for args in [
        &["--chunk", "64"][..],
        &["--chunk", "7", "--score-block", "10"],
        &["--schedule", "post-prefill"],
        &["--schedule", "chunked-post", "--chunk", "33"],
        &["--threads", "1"],
        &["--threads", "3"],
    ] {
        assert_eq!(run(args), (answer.clone(), kept.clone()), "{args:?}");
    }
    assert_ne!(run(&["--selector", "recent"]).1, kept, "another selector keeps something else");
}

#[test]
fn the_answer_is_the_same_on_stdout_in_the_report_and_the_next_time() {
    let place = Place::new();
    let report = place.name("report.json");
    let run = |args: &[&str]| {
        let fixed = ["--prompt", "a long story", "--max-tokens", "40", "--json", &report];
        let output = place.run(&[&fixed[..], args].concat());
        ends_with(&output, 0, &[]);
        let read: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.strip_suffix('\n'), read["output_text"].as_str());
        text
    };
    let greedy = run(&[]);
    assert_eq!(run(&[]), greedy);
    let sampled = ["--temperature", "1", "--top-k", "50", "--top-p", "0.9", "--seed", "7"];
    let first = run(&sampled);
    assert_eq!(run(&sampled), first);
    assert_ne!(run(&["--temperature", "1", "--seed", "8"]), first);

    // A piece of the answer as stop string ends it there.
    let start = greedy.char_indices().nth(5).unwrap().0;
    let stop: String = greedy[start..].chars().take(2).collect();
    let stopped = run(&["--stop", &stop]);
    let found = greedy.find(&stop).unwrap();
    assert_eq!(stopped.strip_suffix('\n'), Some(&greedy[..found]));
}

#[test]
fn a_prompt_is_the_same_from_everywhere_and_the_question_follows_it() {
    let place = Place::new();
    let text = "The gate opens at nine.";
    let whole = format!("{text}\n\nWhen?");
    let file = place.write("prompt.txt", whole.as_bytes());
    let run = |args: &[&str]| {
        let report = json(&place.run(&[args, &["--max-tokens", "6", "--json", "-"]].concat()));
        (report["prompt_tokens"].clone(), report["output_token_ids"].clone())
    };
    for mode in ["--raw", "--chat"] {
        let expected = run(&[mode, "--prompt", &whole]);
        assert_eq!(run(&[mode, "--prompt-file", &file]), expected);
        assert_eq!(run(&[mode, "--prompt", text, "--question", "When?"]), expected);
        let mut child =
            command(&["run", &place.model(), "-", mode, "--max-tokens", "6", "--json", "-"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
        child.stdin.take().unwrap().write_all(whole.as_bytes()).unwrap();
        let report = json(&child.wait_with_output().unwrap());
        assert_eq!((report["prompt_tokens"].clone(), report["output_token_ids"].clone()), expected);
    }
    // The model has a template, so that is the default.
    assert_eq!(run(&["--prompt", &whole]), run(&["--chat", "--prompt", &whole]));
    assert_ne!(run(&["--prompt", &whole]), run(&["--raw", "--prompt", &whole]));
    let listed = place.write("ids.txt", b"[5, 6,\n7]");
    assert_eq!(run(&["--prompt-ids", &format!("@{listed}")]), run(&["--prompt-ids", "5,6,7"]));
}

#[test]
fn what_the_observation_window_holds_is_said() {
    let place = Place::new();
    let text = "word ".repeat(60);
    let run = |args: &[&str]| {
        let fixed = ["--prompt", &text, "--budget", "48", "--max-tokens", "1"];
        stderr(&place.run(&[&fixed[..], args].concat()))
    };
    assert!(run(&["--raw"]).contains("the last 32 tokens, all of them from the prompt"));
    let chat = run(&[]);
    assert!(chat.contains("the last 32 tokens"), "{chat}");
    assert!(chat.contains("of them the template's: \"<|im_end|>\""), "{chat}");
    assert!(!chat.contains("warning"), "{chat}");
    let narrow = run(&["--selector", "observation(window=3)"]);
    assert!(narrow.contains("warning: selection does not see the question"), "{narrow}");
    // The answer's opening words are not the user's question either.
    let tail = |args: &[&str]| {
        let fixed = ["--prompt", &text, "--max-tokens", "1", "--json", "-"];
        json(&place.run(&[&fixed[..], args].concat()))["template_tail_tokens"].as_u64().unwrap()
    };
    assert_eq!(tail(&["--raw"]), 0);
    assert_eq!(tail(&["--raw", "--answer-prefix", "xzq"]), 3);
    assert_eq!(tail(&["--answer-prefix", "xzq"]), tail(&[]) + 3);
    assert_eq!(tail(&["--system", "Be brief."]), tail(&[]));
}

#[test]
fn help_teaches() {
    let help = |args: &[&str]| String::from_utf8(tidekv(args).stdout).unwrap();
    let run = help(&["run", "--help"]);
    let words = [
        "snapkv-kvpress",
        "streaming",
        "recent",
        "none",
        "K, positions",
        "C, tokens",
        "bs, keys",
        "Exit codes",
        "tidekv run",
        "--overflow",
        "--answer-prefix",
        "--min-p",
        "--repetition-last-n",
        "[default: 4096]",
        "[default: 2048]",
        "[default where the model has one]",
    ];
    for word in words {
        assert!(run.contains(word), "`{word}` is not in:\n{run}");
    }
    for command in
        ["demo", "run", "plan", "inspect", "verify", "perplexity", "pull", "completions", "man"]
    {
        assert!(help(&["--help"]).contains(command));
        ends_with(&tidekv(&[command, "--help"]), 0, &[]);
    }
    assert!(help(&["--version"]).starts_with("tidekv "));
}

/// A run that goes on until it is stopped.
fn long_run(place: &Place, args: &[&str]) -> std::process::Child {
    command(&[&["run", &place.model()], args].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads a stream up to and with `word`.
fn read_until(stream: &mut impl Read, word: &str) -> String {
    let mut read = Vec::new();
    let mut byte = [0];
    while !read.ends_with(word.as_bytes()) {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&read));
        read.push(byte[0]);
    }
    String::from_utf8_lossy(&read).into_owned()
}

#[cfg(unix)]
fn interrupt(child: &std::process::Child) {
    let id = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &id]).status().unwrap().success());
}

#[cfg(unix)]
#[test]
fn ctrl_c_in_prefill_exits_with_130_and_leaves_nothing() {
    let place = Place::new();
    let report = place.name("report.json");
    // One row at a time in plain code: far longer than the signal takes to come.
    let slow = ["--chunk", "1", "--threads", "1", "--isa", "portable"];
    let mut child =
        long_run(&place, &[&slow[..], &["--prompt-ids", &ids(8000), "--json", &report]].concat());
    let mut errors = child.stderr.take().unwrap();
    read_until(&mut errors, "reading 8000 tokens");
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    assert_eq!(output.status.code(), Some(130), "{rest}");
    assert!(rest.contains("stopping") && rest.contains("interrupted"), "{rest}");
    assert!(!rest.contains("tokens read at"), "prefill had ended: {rest}");
    assert!(output.stdout.is_empty());
    assert!(!place.path("report.json").exists());
}

#[cfg(unix)]
#[test]
fn ctrl_c_in_an_answer_reports_what_there_is() {
    let place = Place::new();
    let report = place.name("report.json");
    let slow = ["--threads", "1", "--isa", "portable", "--max-tokens", "8000"];
    let mut child =
        long_run(&place, &[&slow[..], &["--prompt", "a story", "--json", &report]].concat());
    let mut answer = child.stdout.take().unwrap();
    let mut errors = child.stderr.take().unwrap();
    answer.read_exact(&mut [0; 16]).unwrap();
    interrupt(&child);
    std::io::copy(&mut answer, &mut std::io::sink()).unwrap();
    let mut said = String::new();
    errors.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    let read: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert_eq!(read["finish_reason"], "cancelled", "{said}");
    assert!(read["generated_tokens"].as_u64().unwrap() < 8000);
}

#[test]
fn a_reader_that_has_had_enough_is_no_error() {
    let place = Place::new();
    let mut child = long_run(&place, &["--prompt", "a story", "--max-tokens", "4000"]);
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    ends_with(&output, 0, &[]);
    assert!(!stderr(&output).contains("error"), "{}", stderr(&output));
}

#[test]
fn nobody_listening_on_stderr_costs_nothing() {
    let place = Place::new();
    let mut child = long_run(&place, &["--prompt", "a story", "--max-tokens", "4"]);
    drop(child.stderr.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(!output.stdout.is_empty());
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error() {
    let place = Place::new();
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output =
        command(&["run", &place.model(), "--prompt", "a"]).stdout(full()).output().unwrap();
    ends_with(&output, 1, &["standard output", "No space left"]);
    let output = place.run(&["--prompt", "a", "--json", "/dev/full"]);
    ends_with(&output, 1, &["/dev/full", "No space left"]);
    assert!(!output.stdout.is_empty(), "the answer is there all the same");
}
