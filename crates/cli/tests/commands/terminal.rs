//! Names and messages from files and flags cannot steer the terminal.

use crate::rig::{Place, command, ends_with, json, stderr, tidekv};
use std::path::Path;
use tidekv_format::{TensorType, Value as Metadata};

const HOSTILE: &str = "a\x1b[2J\u{9b}1A\u{202e}b";

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
    let run = ["--prompt", "a", "--max-tokens", "1"];
    for (args, code) in [
        ([&["run", &family], &run[..]].concat(), 1),
        ([&["run", &tensor], &run[..]].concat(), 1),
        ([&["run", &template], &run[..]].concat(), 1),
        (vec!["inspect", &named], 0),
        (vec!["inspect", &tensor, "--tensors"], 0),
        (vec!["verify", &named, "--tokens", "40", "--chunks", "16"], 0),
        (vec!["plan", HOSTILE, "--tokens", "8"], 1),
        (vec!["plan", "x", "--tokens", HOSTILE], 2),
        (vec!["run", "x", HOSTILE], 2),
    ] {
        let output = tidekv(&args);
        ends_with(&output, code, &[]);
        let shown = String::from_utf8(output.stdout.clone()).unwrap() + &stderr(&output);
        // The command line's parser leaves out what it takes for a colour.
        let expected = if code == 2 { "a\\u{9b}1A" } else { "a\\u{1b}[2J\\u{9b}1A\\u{202e}b" };
        assert!(shown.contains(expected), "{args:?}: {shown}");
        assert!(!shown.contains(['\x1b', '\u{9b}', '\u{202e}']), "{args:?}: {shown}");
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
        assert!(!text.contains(['\x1b', '\u{9b}', '\u{202e}']), "{args:?}: {text}");
        if args[0] == "inspect" {
            assert_eq!(report["name"], HOSTILE);
            assert!(text.contains(r"a\u001b[2J\u009b1A\u202eb"), "{text}");
        }
    }
}

#[cfg(unix)]
#[test]
fn usage_lines_name_the_program_whatever_it_was_called() {
    use std::os::unix::process::CommandExt;
    for line in ["bench prefill", "bench machine x", "bench --help", "pull", "run", "man x y"] {
        let args: Vec<&str> = line.split(' ').collect();
        let output = command(&args).arg0("/tmp/a/b\x1b[2J").output().unwrap();
        let shown = String::from_utf8(output.stdout.clone()).unwrap() + &stderr(&output);
        let command = line.strip_suffix(" --help").unwrap_or(line).split(" x").next().unwrap();
        assert!(shown.contains(&format!("Usage: tidekv {command}")), "{shown}");
    }
}
