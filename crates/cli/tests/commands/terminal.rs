//! Names and messages from files and flags cannot steer the terminal.

use crate::rig::{Place, command, ends_with, json, stderr, tidekv};
use std::path::Path;
use tidekv_format::{TensorType, Value as Metadata};

const HOSTILE: &str = "a\x1b[2J\u{9b}1A\u{202e}b\nerror: c\u{200b}\u{e0041}";
const SHOWN: &str = "a\\u{1b}[2J\\u{9b}1A\\u{202e}b\\nerror: c\\u{200b}\\u{e0041}";

/// Nothing that steers a terminal or cannot be seen, and no line of somebody else's.
#[track_caller]
fn assert_harmless(text: &str) {
    let hostile = ['\x1b', '\u{9b}', '\u{202e}', '\u{200b}', '\u{e0041}'];
    assert!(!text.contains(hostile), "{text}");
    assert!(text.lines().all(|line| !line.trim_start().starts_with("error: c")), "{text}");
}

#[test]
#[should_panic = "error: c"]
fn a_line_of_somebody_elses_is_noticed() {
    assert_harmless("error: a\nerror: c");
}

#[test]
#[should_panic = "unseen"]
fn what_cannot_be_seen_is_noticed() {
    assert_harmless("unseen \u{e0041}");
}

#[test]
fn errors_and_reports_show_control_characters_as_text() {
    let place = Place::new();
    let odd = place.changed(|writer| {
        writer.set("general.architecture", Metadata::String(HOSTILE.to_owned()));
    });
    let family = place.name("family.gguf");
    std::fs::rename(&odd, &family).unwrap();
    let tensor = place.changed(|writer| {
        writer.tensor(HOSTILE, &[8], TensorType::F32, vec![0; 32]);
    });
    let template = place.name("template.gguf");
    let mut writer = tidekv_testkit::tiny_llama(1).writer();
    let raise = format!("{{{{ raise_exception('{HOSTILE}') }}}}");
    writer.set("tokenizer.chat_template", Metadata::String(raise));
    writer.write_to(Path::new(&template)).unwrap();
    let named = place.name(HOSTILE);
    std::fs::copy(place.model(), &named).unwrap();
    let directory = place.name("several");
    std::fs::create_dir(&directory).unwrap();
    for name in ["x", HOSTILE] {
        std::fs::copy(place.model(), format!("{directory}/{name}.gguf")).unwrap();
    }
    let damaged = place.name(&format!("{HOSTILE}.damaged"));
    std::fs::write(&damaged, b"GGUF").unwrap();
    let prompt = place.write(&format!("{HOSTILE}.txt"), b"a b c d e f g h");
    let run = ["--prompt", "a", "--max-tokens", "1"];
    for (args, code) in [
        ([&["run", &family], &run[..]].concat(), 1),
        ([&["run", &tensor], &run[..]].concat(), 1),
        ([&["run", &template], &run[..]].concat(), 1),
        (vec!["inspect", &named], 0),
        (vec!["inspect", &tensor, "--tensors"], 0),
        (vec!["verify", &named, "--tokens", "40", "--chunks", "16"], 0),
        (vec!["plan", &directory, "--tokens", "8"], 1),
        (vec!["plan", &damaged, "--tokens", "8"], 1),
        (vec!["inspect", &damaged], 1),
        (vec!["perplexity", &named, &prompt], 0),
        (vec!["bench", "prefill", &named, "--tokens", "9", "--decode", "1"], 0),
        (
            vec![
                "run",
                &named,
                "--prompt-file",
                &prompt,
                "--prompt-file",
                &prompt,
                "--max-tokens",
                "1",
            ],
            0,
        ),
        (
            vec![
                "run",
                &named,
                "--prompt-ids",
                "1,2",
                "--json",
                &damaged,
                "--dump-retained",
                &damaged,
            ],
            2,
        ),
        (vec!["plan", "--shape", &prompt, "--tokens", "8"], 1),
        (vec!["plan", HOSTILE, "--tokens", "8"], 1),
        (vec!["plan", "x", "--tokens", HOSTILE], 2),
        (vec!["run", "x", HOSTILE], 2),
    ] {
        let output = tidekv(&args);
        ends_with(&output, code, &[]);
        let shown = String::from_utf8(output.stdout.clone()).unwrap() + &stderr(&output);
        if args[0] != "perplexity" {
            assert!(shown.contains(SHOWN), "{args:?}: {shown}");
        }
        assert_harmless(&shown);
    }
}

#[test]
fn json_on_standard_output_cannot_either() {
    let place = Place::new();
    let hostile = place.name(HOSTILE);
    let mut writer = tidekv_testkit::tiny_llama(1).writer();
    writer.set("general.name", Metadata::String(HOSTILE.to_owned()));
    writer.write_to(Path::new(&hostile)).unwrap();
    for args in [
        &["inspect", &hostile][..],
        &["plan", &hostile, "--tokens", "8"],
        &["verify", &hostile, "--tokens", "40", "--chunks", "16"],
        &["run", &hostile, "--prompt-ids", "1,2", "--max-tokens", "1"],
    ] {
        let output = tidekv(&[args, &["--json", "-"]].concat());
        let report = json(&output);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_harmless(&text);
        if args[0] == "inspect" {
            assert_eq!(report["name"], HOSTILE);
            assert!(
                text.contains(r"a\u001b[2J\u009b1A\u202eb\nerror: c\u200b\udb40\udc41"),
                "{text}"
            );
        }
    }
}

#[cfg(unix)]
#[test]
fn usage_lines_name_the_program_whatever_it_was_called() {
    use std::os::unix::process::CommandExt;
    for line in ["bench prefill", "bench machine x", "bench --help", "pull", "run", "man x y"] {
        let args: Vec<&str> = line.split(' ').collect();
        let output = command(&args).arg0("a/b\x1b[2J").output().unwrap();
        let shown = String::from_utf8(output.stdout.clone()).unwrap() + &stderr(&output);
        let command = line.strip_suffix(" --help").unwrap_or(line).split(" x").next().unwrap();
        assert!(shown.contains(&format!("Usage: tidekv {command}")), "{shown}");
    }
}
